"""One model on one GPU through CuPy: weights uploaded once, buffers allocated before capture, eager or graph replay.

Everything runs on one stream and a pass synchronizes once, when its output has come back. Token and positions are
written to device memory before a pass, so a captured graph serves every step; in a greedy run each step writes the next
one's itself (token_loop.py). Scratch is shared by all programs; when
it must grow it moves, the generation counts up, and a program that embeds old pointers binds and captures itself anew.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from minfer.cuda import cupy_module, prefill
from minfer.cuda.binding import POISON, Buffers, arguments, check_planes, fresh_scratch, scratch_needs, written_regions
from minfer.cuda.kernels import KERNELS, compile_options, source
from minfer.cuda.lowering import KV_BYTES, CudaLowering
from minfer.cuda.token_loop import TokenLoop
from minfer.cuda.upload import upload_weights
from minfer.errors import UserError
from minfer.gguf import GGUF
from minfer.instrument import Tracer, walk
from minfer.options import Options
from minfer.plan import N_UBATCH, Launch, Plan
from minfer.progress import Progress

Call = Callable[[], None]


class CudaDevice:
    """Weights, KV cache and scratch of one model on the current GPU."""

    max_pass = N_UBATCH

    def __init__(self, gguf: GGUF, options: Options, progress: Progress | None = None) -> None:
        self.cp = cp = cupy_module.load()
        gguf.require_data()
        self.lowering = CudaLowering(options, gpu=cupy_module.gpu(cp))
        self.compile_options = compile_options(self.lowering.gpu)
        reaches = cupy_module.capability(cp) >= cupy_module.DEPENDENT_CAPABILITY
        self.dependent = reaches and options.on("MINFER_NO_DEPENDENT_LAUNCH")
        self.stream = cp.cuda.Stream(non_blocking=True)
        self.description = cupy_module.device_name(cp)
        with self.stream:
            self.weights = upload_weights(cp, gguf, progress)
        self.regions: dict[str | int, Any] = {}
        self.scratch_buffers: dict[str, Any] = {}
        self.generation = 0

    @property
    def facts(self) -> dict[str, Any]:
        kv = self.lowering.options.kv_type
        return {
            "gpu_info": self.description, "backends": "CUDA", "n_gpu_layers": 99, "type_k": kv, "type_v": kv,
            "flash_attn": 0,
        }  # fmt: skip

    def bind(self, plan: Plan) -> "CudaProgram":
        """Allocate what the plan needs. Raises UserError, with the numbers, when memory does not suffice."""
        fresh = {key: shape for key, shape in written_regions(plan).items() if key not in self.regions}
        kv = sum(rows * cols for rows, cols in fresh.values()) * KV_BYTES[self.lowering.options.kv_type]
        self._need(kv + plan.memory.scratch_bytes, f"KV cache and scratch for {plan.n_tokens} tokens a pass")
        dtype = np.float16 if self.lowering.options.kv_type == "f16" else np.float32
        with self.stream:
            self.regions |= {key: self.cp.zeros(shape, dtype) for key, shape in fresh.items()}
            for name, nbytes in scratch_needs(plan).items():
                self.scratch(name, nbytes)
            return CudaProgram(self, plan)

    def kv(self, rows: int) -> dict[str, np.ndarray]:
        """Region -> its first rows on the host, as f32 (rows, cols)."""
        return {str(key): self.cp.asnumpy(r[:rows]).astype(np.float32) for key, r in self.regions.items()}

    def _need(self, nbytes: int, what: str) -> None:
        free, total = self.cp.cuda.runtime.memGetInfo()
        free += self.cp.get_default_memory_pool().free_bytes()
        if nbytes > free:
            raise UserError(
                f"{what} needs {nbytes / 1e9:.1f} GB, {free / 1e9:.1f} of the GPU's {total / 1e9:.1f} GB are free: "
                "use a smaller context or model"
            )

    def scratch(self, name: str, nbytes: int) -> Any:
        """The shared scratch of that name, grown when it is smaller; growing moves it and counts the generation up."""
        held = self.scratch_buffers.get(name)
        if held is None or held.nbytes < nbytes:
            self._need(nbytes, f"scratch {name}")
            held = self.scratch_buffers[name] = self._fresh(name, nbytes)
            self.generation += 1
        return held

    def _fresh(self, name: str, nbytes: int) -> Any:
        """New scratch; the ring lies where the host can read it while kernels run."""
        if name != "ring":
            return self.cp.full(nbytes, fresh_scratch(name), np.uint8)
        ring = cupy_module.pinned(self.cp, nbytes, np.uint8)
        ring[:] = fresh_scratch(name)
        return ring


@dataclass
class CudaProgram:
    """A plan bound to a device: eager the first time, a captured graph from the second on unless switched off."""

    device: CudaDevice
    plan: Plan
    buffers: Buffers = field(init=False)
    work: list[tuple[Launch, Call]] = field(init=False)
    token_loop: TokenLoop | None = field(init=False)
    end: int = 0  # KV rows after the pass that runs now
    graph: Any = None
    runs: int = 0
    generation: int = -1

    def __post_init__(self) -> None:
        cp, device, nt, out = self.device.cp, self.device, self.plan.n_tokens, self.plan.output
        slots = [cp.full(4 * n, POISON, np.uint8).view(np.float32) for n in self.plan.memory.slot_elements]
        inputs: dict[str | int, Any] = {name: cp.zeros(nt, np.int32) for name in ("tokens", "positions")}
        self.buffers = Buffers(device.weights, device.regions, device.scratch_buffers, slots, inputs)
        self.staged = {name: cupy_module.pinned(cp, nt, np.int32) for name in ("tokens", "positions")}
        self.result = cupy_module.pinned(cp, out.cols, np.float32)
        self.captures = nt == 1 and device.lowering.options.on("MINFER_NO_CUDA_GRAPH")
        self.token_loop = TokenLoop(self) if self.plan.launches[-1].kernel == "next_token" else None

    def run(self, tracer: Tracer, step: str, tokens: Sequence[int], position: int) -> np.ndarray:
        """One pass; the output row, valid until the next."""
        with self.device.stream as stream:
            self.start(tokens, position)
            self.launch(tracer, step)
            self.buffers.locate(self.plan.output).get(stream=stream, out=self.result, blocking=False)
            stream.synchronize()
        return self.result

    def start(self, tokens: Sequence[int], position: int) -> None:
        """Send a pass's inputs. They are staged: the stream must be idle, and is not waited for."""
        if self.generation != self.device.generation:
            self._resolve()
        self.end = position + len(tokens)
        self.staged["tokens"][:] = tokens
        self.staged["positions"][:] = np.arange(position, self.end)
        for name, array in self.buffers.inputs.items():
            array.set(self.staged[str(name)], stream=self.device.stream)

    def launch(self, tracer: Tracer, step: str) -> None:
        """A pass's kernels on the inputs that the device holds, without waiting for them."""
        if self.captures and self.runs and self.graph is None:
            self.graph = self._capture(tracer)
        if self.graph is None:
            walk(tracer, step, self.work)
        else:
            tracer.push(step)
            self.graph.launch(self.device.stream)
            tracer.pop()
            tracer.flush()
        self.runs += 1

    def _capture(self, tracer: Tracer) -> Any:
        """Record one walk; the ranges open now are those that replayed kernels are attributed to."""
        stream = self.device.stream
        stream.begin_capture()
        walk(tracer, "capture", self.work)
        graph = stream.end_capture()
        graph.upload(stream)
        return graph

    def _resolve(self) -> None:
        """Look up every pointer. The first run after this is eager: modules load lazily, and not during a capture."""
        self.generation, self.graph, self.runs = self.device.generation, None, 0
        check_planes(self.plan)
        self.work = [(launch, self._call(launch)) for launch in self.plan.launches]

    def _call(self, launch: Launch) -> Call:
        if launch.kernel in prefill.LIBRARY:
            return prefill.LIBRARY[launch.kernel](self, launch)
        row = KERNELS[launch.kernel]
        cp, device = self.device.cp, self.device
        function = cupy_module.function(cp, source(row.file), device.compile_options, launch.kernel)
        found = arguments(launch, row.args, self.buffers)
        args = tuple(a if isinstance(a, np.generic) else _address(a) for a in found)
        return cupy_module.call(cp, function, launch, args, device.dependent and row.dependent)


def _address(array: Any) -> np.uint64:
    """Where a kernel finds an array: pinned host memory has the same address on the device."""
    return np.uint64(array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr)
