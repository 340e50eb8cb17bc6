"""One model on one GPU through CuPy: weights uploaded once, buffers allocated before capture, eager or graph replay.

Everything runs on one stream and a pass synchronizes once, when its output has come back. Token and positions are
written to device memory before a pass, so a captured graph serves every step. Scratch is shared by all programs; when
it must grow it moves, the generation counts up, and a program that embeds old pointers binds and captures itself anew.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from minfer.cuda import cupy_module, prefill
from minfer.cuda.kernels import KERNELS, OPTIONS, source
from minfer.cuda.lowering import KV_BYTES, CudaLowering
from minfer.cuda.upload import upload_weights
from minfer.errors import UserError
from minfer.gguf import GGUF
from minfer.instrument import Tracer, walk
from minfer.options import Options
from minfer.plan import Launch, Plan, Ref
from minfer.progress import Progress

POISON = 0xFF  # bytes of fresh scratch: NaN as f32, so a value nobody wrote cannot pass for a result
Call = Callable[[], None]


class CudaDevice:
    """Weights, KV cache and scratch of one model on the current GPU."""

    def __init__(self, gguf: GGUF, options: Options, progress: Progress | None = None) -> None:
        self.cp = cp = cupy_module.load()
        gguf.require_data()
        self.lowering = CudaLowering(options)
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
        regions = {r.key: (r.rows, r.cols) for x in plan.launches for r in _written_regions(x)}
        fresh = {key: shape for key, shape in regions.items() if key not in self.regions}
        kv = sum(rows * cols for rows, cols in fresh.values()) * KV_BYTES[self.lowering.options.kv_type]
        self._need(kv + plan.memory.scratch_bytes, f"KV cache and scratch for {plan.n_tokens} tokens a pass")
        dtype = np.float16 if self.lowering.options.kv_type == "f16" else np.float32
        with self.stream:
            self.regions |= {key: self.cp.zeros(shape, dtype) for key, shape in fresh.items()}
            for name, nbytes in _scratch_needs(plan).items():
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
            held = self.scratch_buffers[name] = self.cp.full(nbytes, 0 if name == "aux" else POISON, np.uint8)
            self.generation += 1
        return held


def _written_regions(launch: Launch) -> Sequence[Ref]:
    out = launch.args.out
    return [*launch.args.regions, *([out] if out.kind == "region" else [])]


def _scratch_needs(plan: Plan) -> dict[str, int]:
    def most(name: str) -> int:
        return max((x.args.params.get(name, 0) for x in plan.launches), default=0)

    needs = {name: most(f"{name}_bytes") for name in ("q8", "partial", "aux")}
    return needs | {"pos": 4 * plan.n_tokens}


@dataclass
class CudaProgram:
    """A plan bound to a device: eager the first time, a captured graph from the second on unless switched off."""

    device: CudaDevice
    plan: Plan
    slots: list[Any] = field(init=False)
    inputs: dict[str | int, Any] = field(init=False)
    work: list[tuple[Launch, Call]] = field(init=False)
    end: int = 0  # KV rows after the pass that runs now
    graph: Any = None
    runs: int = 0
    generation: int = -1

    def __post_init__(self) -> None:
        cp, memory = self.device.cp, self.plan.memory
        self.slots = [cp.full(4 * n, POISON, np.uint8).view(np.float32) for n in memory.slot_elements]
        self.inputs = {name: cp.zeros(self.plan.n_tokens, np.int32) for name in ("tokens", "positions")}
        nt, out = self.plan.n_tokens, self.plan.output
        self.staged = {name: cupy_module.pinned(cp, nt, np.int32) for name in ("tokens", "positions")}
        self.result = cupy_module.pinned(cp, out.cols, np.float32)
        self.captures = nt == 1 and self.device.lowering.options.on("MINFER_NO_CUDA_GRAPH")

    def run(self, tracer: Tracer, step: str, tokens: Sequence[int], position: int) -> np.ndarray:
        """One pass; the output row, valid until the next."""
        with self.device.stream as stream:
            if self.generation != self.device.generation:
                self._resolve()
            self.end = position + len(tokens)
            self.staged["tokens"][:] = tokens
            self.staged["positions"][:] = np.arange(position, self.end)
            for name, array in self.inputs.items():
                array.set(self.staged[str(name)], stream=stream)
            self._launch(tracer, step)
            self.locate(self.plan.output).get(stream=stream, out=self.result, blocking=False)
            stream.synchronize()
        self.runs += 1
        return self.result

    def _launch(self, tracer: Tracer, step: str) -> None:
        if self.captures and self.runs and self.graph is None:
            self.graph = self._capture(tracer)
        if self.graph is None:
            walk(tracer, step, self.work)
        else:
            tracer.push(step)
            self.graph.launch(self.device.stream)
            tracer.pop()
            tracer.flush()

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
        _check_q8(self.plan)
        self.work = [(launch, self._call(launch)) for launch in self.plan.launches]

    def _call(self, launch: Launch) -> Call:
        if launch.kernel in prefill.LIBRARY:
            return prefill.LIBRARY[launch.kernel](self, launch)
        row = KERNELS[launch.kernel]
        function = cupy_module.function(self.device.cp, source(row.file), OPTIONS, launch.kernel)
        args = tuple(self._argument(launch, word) for word in row.args.split())
        return lambda: function(launch.grid, launch.block, args)

    def _argument(self, launch: Launch, word: str) -> Any:
        """One word of a kernel's argument row: in0, w1, out, a scratch name, k, v, i:NAME or f:NAME."""
        args = launch.args
        if word[:2] in ("i:", "f:"):
            return (np.int32 if word[0] == "i" else np.float32)(args.params[word[2:]])
        if word in self.device.scratch_buffers:
            return np.uint64(self.device.scratch_buffers[word].data.ptr)
        if word in ("k", "v"):
            return self._pointer(args.regions["kv".index(word)])
        if word == "out":
            return self._pointer(args.out)
        if word.startswith("w"):
            return np.uint64(self.device.weights[args.weights[int(word[1:])]].data.ptr)
        return self._pointer(args.inputs[int(word.removeprefix("in"))])

    def _pointer(self, ref: Ref) -> np.uint64:
        return np.uint64(self.locate(ref).data.ptr)

    def locate(self, ref: Ref) -> Any:
        """The array behind a reference, flat from its offset on."""
        if ref.kind == "slot":
            return self.slots[int(ref.key)][ref.offset : ref.offset + ref.rows * ref.cols]
        if ref.kind == "input":
            return self.inputs[ref.key][ref.offset :]
        return self.device.regions[ref.key] if ref.kind == "region" else self.device.scratch_buffers[str(ref.key)]


def _check_q8(plan: Plan) -> None:
    """Every launch that reads the q8 plane must find the one it was planned on: written last, not since replaced."""
    held = None
    for launch in plan.launches:
        reads, writes = launch.args.params.get("q8_reads"), launch.args.params.get("q8_writes")
        if reads is not None and reads != held:
            raise AssertionError(f"{launch.kernel} {launch.name} reads the plane of {reads}, the buffer holds {held}")
        held = writes or held
