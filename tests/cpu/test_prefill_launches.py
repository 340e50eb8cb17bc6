"""A prompt's own kernels on the emulator, every access checked: all launches of a pass but the library's products.

What the products would write stays poisoned, so values are not looked at, only where each kernel reads and writes, and
the positions and rows that depend on no product.
"""

from dataclasses import replace

import numpy as np
import pytest

from minfer.cuda.prefill import LIBRARY
from minfer.emulated.device import EmulatedDevice
from minfer.engine import plan_pass
from minfer.models import load_hparams
from minfer.options import Options


@pytest.mark.parametrize(("nt", "first"), [(512, 0), (300, 100), (257, 5), (20, 0)])
def test_every_kernel_of_a_prompt_covers_its_tokens(nano, nt, first):
    """One block once converted 256 positions of 512: the rest were poison, and rows were stored before the cache."""
    device = EmulatedDevice(nano, Options(kv_type="f16"))
    n_ctx = first + nt + 3
    plan = plan_pass(nano, load_hparams(nano), device.lowering, nt=nt, n_kv=n_ctx, n_ctx=n_ctx)
    own = replace(plan, launches=tuple(x for x in plan.launches if x.kernel not in LIBRARY))
    assert 0 < len(own.launches) < len(plan.launches)
    program = device.bind(own)
    positions = np.arange(first, first + nt)
    program.buffers.inputs["tokens"][:], program.buffers.inputs["positions"][:] = 7, positions
    for _, call in program.work:
        call()
    assert (device.scratch["pos"].view(np.int32)[:nt] == positions).all()
    poisoned = np.full(1, -1, np.int16).view(np.float16)[0]
    for region in device.regions.values():
        rows = region.view(np.int16) != np.array(poisoned).view(np.int16)
        assert not rows[:first].any() and not rows[first + nt :].any()
