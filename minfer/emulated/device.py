"""One model on an emulated GPU: the CUDA plan, run by the kernels' own source on the CPU with CUDA's rules checked.

What a GPU holds in its memory are numpy arrays here. It is slow, for looking and for tests. A kernel that breaks a rule
(README.md) ends the pass with a KernelFault that names kernel, line, block and thread.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from minfer.cpu.backend import check_memory, cpu_name
from minfer.cuda.binding import POISON, Buffers, arguments, check_planes, fresh_scratch, scratch_needs, written_regions
from minfer.cuda.kernels import FOLDER, KERNELS
from minfer.cuda.lowering import CudaLowering
from minfer.cuda.walk import resident_bytes
from minfer.cuda.weights import group_bytes, groups, pack, place
from minfer.emulated import build, emulate
from minfer.errors import UserError
from minfer.gguf import GGUF
from minfer.gpu import Gpu
from minfer.instrument import Tracer, walk
from minfer.options import Options
from minfer.plan import Launch, Plan
from minfer.progress import Progress

SMALL = Gpu(multiprocessors=3)  # few blocks, since they run one after the other
WHOLE = ("out", "q8", "pos")  # arguments of which a kernel that writes them writes every element


def lowering(options: Options) -> CudaLowering:
    """The CUDA backend's plan under the emulator's name."""
    return CudaLowering(options, name="emulated", gpu=SMALL)


def require_emulator() -> None:
    """Raise UserError where kernels cannot be compiled or the machine does not give the emulator its addresses."""
    if build.GXX is None:
        raise UserError("device emulated compiles the kernels with g++, which is not here: install it or use cpu")
    try:
        emulate.machine()
    except (build.BuildError, MemoryError) as error:
        raise UserError(f"device emulated cannot start: {str(error).splitlines()[0]}; use cpu") from None


class EmulatedDevice:
    """Weights, KV cache and scratch of one model, laid out as on a GPU."""

    max_pass = 1  # a prompt's library products (cuBLAS) have no source to emulate: it goes token by token

    def __init__(self, gguf: GGUF, options: Options, progress: Progress | None = None) -> None:
        gguf.require_data()
        require_emulator()
        self.lowering = lowering(options)
        self.description = f"emulated GPU on {cpu_name()}"
        self.facts: dict[str, Any] = {
            "gpu_info": "", "backends": "CUDA emulated", "n_gpu_layers": 0, "type_k": options.kv_type,
            "type_v": options.kv_type, "flash_attn": 0,
        }  # fmt: skip
        self.weights = _load(gguf, progress)
        self.regions: dict[str | int, Any] = {}
        self.scratch: dict[str, Any] = {}

    def bind(self, plan: Plan) -> "EmulatedProgram":
        """Allocate what the plan needs, poisoned. Raises UserError when memory does not suffice."""
        check_planes(plan)
        fresh = {key: shape for key, shape in written_regions(plan).items() if key not in self.regions}
        kv = sum(rows * cols for rows, cols in fresh.values()) * self.lowering.kv_bytes
        check_memory(kv + plan.memory.scratch_bytes, "KV cache and scratch", "use a smaller context")
        dtype = np.dtype(self.lowering.options.kv_type.replace("f", "float"))
        for key, (rows, cols) in fresh.items():
            self.regions[key] = _poisoned(rows * cols * dtype.itemsize).view(dtype).reshape(rows, cols)
        for name, nbytes in scratch_needs(plan).items():
            if name not in self.scratch or self.scratch[name].nbytes < nbytes:
                self.scratch[name] = np.full(nbytes, fresh_scratch(name), np.uint8)
        return EmulatedProgram(self, plan)

    def kv(self, rows: int) -> dict[str, np.ndarray]:
        """Region -> its first rows, as f32 (rows, cols)."""
        return {str(key): region[:rows].astype(np.float32) for key, region in self.regions.items()}


def _poisoned(nbytes: int) -> np.ndarray:
    return np.full(nbytes, POISON, np.uint8)


def _load(gguf: GGUF, progress: Progress | None) -> dict[str, Any]:
    allocations = groups(gguf)
    total = sum(resident_bytes(t) for group in allocations for t in group)
    check_memory(total, f"the weights of {gguf.path.name}", "use a smaller model")
    found: dict[str, Any] = {}
    done = 0
    for group in allocations:
        found |= place(_poisoned(group_bytes(group)), group)
        for tensor in group:
            pack(gguf.raw(tensor), found[tensor.name], tensor.type, tensor.shape[0])
            done += resident_bytes(tensor)
            if progress is not None:
                progress(done, total)
    return found


@dataclass
class EmulatedProgram:
    """A plan bound to a device. Arguments are looked up at each launch, so scratch may move."""

    device: EmulatedDevice
    plan: Plan
    buffers: Buffers = field(init=False)
    token_loop = None  # nothing runs by itself here

    def __post_init__(self) -> None:
        device, nt = self.device, self.plan.n_tokens
        slots = [_poisoned(4 * n).view(np.float32) for n in self.plan.memory.slot_elements]
        inputs: dict[str | int, Any] = {name: np.zeros(nt, np.int32) for name in ("tokens", "positions")}
        self.buffers = Buffers(device.weights, device.regions, device.scratch, slots, inputs)
        self.work = [(launch, self._call(launch)) for launch in self.plan.launches]

    def run(self, tracer: Tracer, step: str, tokens: Sequence[int], position: int) -> np.ndarray:
        """One pass; the output row, valid until the next."""
        self.buffers.inputs["tokens"][:] = tokens
        self.buffers.inputs["positions"][:] = np.arange(position, position + len(tokens))
        walk(tracer, step, self.work)
        return np.asarray(self.buffers.locate(self.plan.output))

    def _call(self, launch: Launch) -> Callable[[], None]:
        return functools.partial(_run, launch, self.buffers)


def _run(launch: Launch, buffers: Buffers) -> None:
    row = KERNELS[launch.kernel]
    module, found = emulate.load(FOLDER / row.file), arguments(launch, row.args, buffers)
    sizes, words = module.parameters(launch.kernel), row.args.split()
    whole = (*WHOLE, "partial") if launch.args.out.key == "partial" else WHOLE
    outputs = [i for i, word in enumerate(words) if word in whole and sizes[i] == emulate.WRITABLE]
    if launch.args.out.kind == "region":
        outputs.remove(words.index("out"))  # the other rows are earlier tokens'
    alone, shared = [i for i in outputs if _alone(found, i)], int(launch.args.params.get("shared", 0))
    module.launch(launch.kernel, launch.grid, launch.block, found, shared, alone)


def _alone(arrays: Sequence[Any], index: int) -> bool:
    """Whether no other argument shares the memory of this one, as one does in place."""
    others = (a for i, a in enumerate(arrays) if i != index and isinstance(a, np.ndarray))
    return not any(np.may_share_memory(arrays[index], other) for other in others)


def runner() -> Callable[..., None]:
    """A probe runner on the emulated GPU (minfer.cuda.probes)."""
    require_emulator()

    def run(kernel: str, grid: tuple[int, ...], args: list[Any], block: int = 0, shared: int = 0) -> None:
        row = KERNELS[kernel]
        emulate.load(FOLDER / row.file).launch(kernel, grid, block or row.block, args, shared)

    return run
