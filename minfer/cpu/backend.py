"""Lowering to, and running on, numpy. Weights are kept as f32, whatever the file stores."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from minfer.cpu.kernels import KERNELS
from minfer.errors import UserError
from minfer.gguf import GGUF, Tensor
from minfer.graph import Graph, Node
from minfer.instrument import Tracer, walk
from minfer.memory import Memory
from minfer.ops import F32, OPS, Kv
from minfer.plan import N_UBATCH, Args, Launch, Plan, Ref, make_launch, node_args, stored_bytes

Progress = Callable[[int, int], None]  # (done, total) in bytes


class CpuLowering:
    """What the planner asks of the CPU. Needs no data and no memory."""

    name = "cpu"
    kv_bytes = F32

    def fuse(self, graph: Graph) -> Graph:
        """The reference computes every op by itself."""
        return graph

    def lower(self, graph: Graph, memory: Memory, kv: Kv) -> list[Launch]:
        """One launch a node."""
        return [_lower(graph, memory, kv, node) for node in graph.nodes if node.op != "input"]


def _lower(graph: Graph, memory: Memory, kv: Kv, node: Node) -> Launch:
    # a numpy call has no blocks; its grid is the shape it computes, so that launches of one kernel tell apart
    shape = graph.nodes[node.inputs[0]] if node.region else node
    args, cost = node_args(graph, memory, node), OPS[node.op].cost(graph, node, kv)
    weights = stored_bytes(graph, node), _resident_bytes(graph, node)
    return make_launch(graph, node, args, _kernel(graph, node), (shape.cols, shape.rows, 1), (1, 1, 1), cost, weights)


def _kernel(graph: Graph, node: Node) -> str:
    if node.op == "embed_rows":
        return f"embed_rows_{graph.tensors[node.weights[0]].type.lower()}"
    return f"{node.op}_{node.params['style']}_f32" if node.op == "rope" else f"{node.op}_f32"


def _resident_bytes(graph: Graph, node: Node) -> int:
    if node.op == "embed_rows":  # dequantized row by row from the file
        return stored_bytes(graph, node)
    return F32 * sum(graph.tensors[w].rows * graph.tensors[w].shape[0] for w in node.weights)


@dataclass(frozen=True)
class Program:
    """A plan bound to memory."""

    plan: Plan
    work: tuple[tuple[Launch, Callable[[], None]], ...]
    tokens: np.ndarray  # (nt, 1) int32
    positions: np.ndarray  # (nt, 1) int32
    output: np.ndarray  # (1, vocab) f32 logits, or (1, 1) int32 bits of a greedy step's token
    token_loop = None

    def run(self, tracer: Tracer, step: str, tokens: Sequence[int], position: int) -> np.ndarray:
        """One pass over `tokens` from `position` on, its ranges named `step`; the output row (a view)."""
        self.tokens[:, 0] = tokens
        self.positions[:, 0] = np.arange(position, position + len(tokens))
        walk(tracer, step, self.work)
        row: np.ndarray = self.output[0]
        return row


class CpuDevice:
    """Weights and KV of one model in host memory. Regions are shared by every program, scratch is not."""

    max_pass = N_UBATCH

    def __init__(self, gguf: GGUF, progress: Progress | None = None) -> None:
        gguf.require_data()
        self.gguf = gguf
        self.description = f"CPU ({cpu_name()})"
        self.lowering = CpuLowering()
        self.facts = {
            "gpu_info": "", "backends": "CPU", "n_gpu_layers": 0, "type_k": "f32", "type_v": "f32", "flash_attn": 0,
        }  # fmt: skip
        self.weights = _load(gguf, progress)
        self.regions: dict[str | int, np.ndarray] = {}

    def bind(self, plan: Plan) -> Program:
        """Give every launch its arrays. Raises UserError when memory does not suffice for KV and scratch."""
        need = plan.memory.scratch_bytes + (0 if self.regions else plan.memory.kv_bytes)
        check_memory(need, f"KV cache and scratch for {plan.n_tokens} tokens a pass", "use a smaller context")
        if not self.regions:
            shapes = {x.args.out.key: (x.args.out.rows, x.args.out.cols) for x in plan.launches if _is_region(x)}
            self.regions = {key: np.zeros(shape, np.float32) for key, shape in shapes.items()}
        slots = [np.empty(n, np.float32) for n in plan.memory.slot_elements]
        inputs = {name: np.zeros((plan.n_tokens, 1), np.int32) for name in ("tokens", "positions")}
        locate = functools.partial(_locate, slots, self.regions, inputs)
        work = tuple((x, self._call(x.op, x.args, locate)) for x in plan.launches)
        return Program(plan, work, inputs["tokens"], inputs["positions"], locate(plan.output))

    def kv(self, rows: int) -> dict[str, np.ndarray]:
        """Region -> its first rows, as f32 (rows, cols)."""
        return {str(key): region[:rows].copy() for key, region in self.regions.items()}

    def _call(self, op: str, args: Args, locate: Callable[[Ref], np.ndarray]) -> Callable[[], None]:
        ins = [locate(r) for r in args.inputs]
        weights = [self._rows_of(w) if op == "embed_rows" else self.weights[w] for w in args.weights]
        return functools.partial(KERNELS[op], locate(args.out), ins, weights, args.params)

    def _rows_of(self, name: str) -> Callable[[np.ndarray], np.ndarray]:
        tensor = self.gguf.tensors[name]
        return lambda ids: self.gguf.f32(tensor, rows=ids.tolist())


def _is_region(launch: Launch) -> bool:
    return launch.args.out.kind == "region"


def _locate(
    slots: list[np.ndarray], regions: dict[str | int, np.ndarray], inputs: dict[str, np.ndarray], ref: Ref
) -> np.ndarray:
    if ref.kind == "slot":
        return slots[int(ref.key)][: ref.rows * ref.cols].reshape(ref.rows, ref.cols)
    return regions[ref.key] if ref.kind == "region" else inputs[str(ref.key)]


def _load(gguf: GGUF, progress: Progress | None) -> dict[str, np.ndarray]:
    """Every weight that a kernel reads whole, as f32; the embedding table too when the head is tied to it."""
    tied = "output.weight" not in gguf.tensors
    wanted = [t for t in gguf.tensors.values() if tied or t.name != "token_embd.weight"]
    total = sum(_f32_bytes(t) for t in wanted)
    copied = sum(_f32_bytes(t) for t in wanted if t.type != "F32")  # F32 tensors stay in the mapped file
    check_memory(copied, f"the weights of {gguf.path.name} as f32", "use a smaller model")
    done, weights = 0, {}
    for tensor in wanted:
        weights[tensor.name] = gguf.f32(tensor)
        done += _f32_bytes(tensor)
        if progress is not None:
            progress(done, total)
    return weights


def _f32_bytes(tensor: Tensor) -> int:
    return F32 * tensor.rows * tensor.shape[0]


def check_memory(need: int, what: str, remedy: str) -> None:
    """Raise UserError when `need` bytes are more than the memory now available; unknown availability passes."""
    available = available_memory()
    if available is not None and need > available:
        raise UserError(f"{what} needs {need / 1e9:.1f} GB, {available / 1e9:.1f} GB of memory is available: {remedy}")


def available_memory() -> int | None:
    """Bytes the kernel says can be had without swapping; None where it does not say."""
    text = _proc_field("/proc/meminfo", "MemAvailable")  # e.g. "24012 kB"
    return int(text.split()[0]) * 1024 if text else None


def cpu_name() -> str:
    """The processor's name, or "unknown processor"."""
    return _proc_field("/proc/cpuinfo", "model name") or "unknown processor"


def _proc_field(path: str, key: str) -> str | None:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), None)
