"""What can be wrong with a GPU is one clear line each. CuPy is a stand-in here: it fails as the real one does."""

import sys
import types

import pytest

from cli import run_main
from minfer import devices
from minfer.cli import main
from minfer.cuda import cupy_module
from minfer.cuda.lowering import CudaLowering
from minfer.engine import plan_pass
from minfer.errors import UserError
from minfer.gguf import open_gguf
from minfer.gpu import H200, Gpu
from minfer.models import load_hparams
from minfer.options import Options
from tiny import write_llama


class Runtime:
    def __init__(self, count, capability="90", error=None):
        self.count, self.capability, self.error = count, capability, error

    def getDeviceCount(self):
        if self.error:
            raise RuntimeError(self.error)
        return self.count

    def getDeviceProperties(self, device):
        return {"name": b"Tesla X"}


def fake_cupy(monkeypatch, runtime):
    device = types.SimpleNamespace(id=0, compute_capability=runtime.capability)
    module = types.ModuleType("cupy")
    module.cuda = types.SimpleNamespace(runtime=runtime, Device=lambda: device)
    monkeypatch.setitem(sys.modules, "cupy", module)


class Missing:
    """An importer that fails for cupy as the interpreter or the dynamic linker would."""

    def __init__(self, error):
        self.error = error

    def find_spec(self, name, path=None, target=None):
        if name == "cupy":
            raise self.error


CASES = {
    "CuPy missing": (ModuleNotFoundError("No module named 'cupy'", name="cupy"), "needs CuPy: pip install"),
    "CuPy for another CUDA": (ImportError("libnvrtc.so.12: cannot open shared object file"), "libnvrtc.so.12"),
    "no driver": (Runtime(0, error="cudaErrorInsufficientDriver: the driver is too old"), "no usable GPU"),
    "no GPU": (Runtime(0), "the driver reports no GPU"),
    "old GPU": (Runtime(1, capability="75"), "Tesla X has compute capability 7.5, 8.0 is the least"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_gpu_that_cannot_be_used_is_one_line(monkeypatch, capsys, tmp_path, case):
    fault, message = CASES[case]
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    if isinstance(fault, Exception):
        monkeypatch.setattr(sys, "meta_path", [Missing(fault), *sys.meta_path])
    else:
        fake_cupy(monkeypatch, fault)
    args = ["bench", write_llama(tmp_path / "m.gguf"), "--device", "cuda"]
    done = run_main(main, "minfer", args, monkeypatch, capsys)
    assert done.code == 2 and done.err.count("\n") == 1 and message in done.err, done.err


def test_auto_takes_the_cpu_where_there_is_no_gpu(monkeypatch, capsys, tmp_path):
    fake_cupy(monkeypatch, Runtime(0))
    model = write_llama(tmp_path / "m.gguf")
    done = run_main(main, "minfer", ["bench", model, "-p", "0", "-n", "1", "-r", "1"], monkeypatch, capsys)
    assert done.code == 0 and "| CPU |" in done.out


@pytest.mark.parametrize(
    ("device", "kv", "message"),
    [("tpu", None, "--device 'tpu' is not allowed"), ("cpu", "f16", "--kv 'f16' is not allowed on cpu: give f32")],
)
def test_devices_and_kv_types_are_checked(monkeypatch, capsys, tmp_path, device, kv, message):
    args = ["plan", write_llama(tmp_path / "m.gguf"), "--device", device, *(["--kv", kv] if kv else [])]
    done = run_main(main, "minfer", args, monkeypatch, capsys)
    assert done.code == 2 and done.err.count("\n") == 1 and message in done.err


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"attention.head_count": 32, "attention.head_count_kv": 16}, "heads of a multiple of 8, at most 256, not 2"),
    ],
)
def test_sizes_that_no_kernel_takes_are_refused_before_anything_runs(tmp_path, metadata, message):
    gguf = open_gguf(write_llama(tmp_path / "m.gguf", metadata=metadata))
    with pytest.raises(UserError, match=message):
        plan_pass(gguf, load_hparams(gguf), CudaLowering(Options()), nt=1, n_kv=1, n_ctx=8)


def test_dependent_launch_without_its_package_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    cupy_module._driver.cache_clear()
    with pytest.raises(UserError, match=r"^dependent launch needs cuda-bindings .*MINFER_NO_DEPENDENT_LAUNCH=1$"):
        cupy_module._driver()


def test_a_plan_takes_the_numbers_of_the_gpu_that_is_here(monkeypatch):
    attributes = {"MultiProcessorCount": 84, "MaxSharedMemoryPerBlockOptin": 101376}
    device = types.SimpleNamespace(attributes=attributes)
    monkeypatch.setitem(sys.modules, "cupy", types.SimpleNamespace(cuda=types.SimpleNamespace(Device=lambda: device)))
    for usable, gpu in ((True, Gpu(84, 101376)), (False, H200)):
        monkeypatch.setattr(devices, "_gpu_usable", lambda usable=usable: usable)
        assert devices.where("cuda", None).lowering().gpu == gpu
