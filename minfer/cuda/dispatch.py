"""Which kernel a matmul takes where it does not stream: gates as data, first match wins.

In a decode step fusions/stream.py takes what it can before; with MINFER_NO_STREAM=1, as in the reports, nothing. Every
constant carries its reason and date; `minfer crossover` measures them again. Nothing here needs a GPU.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass

MAX_BATCH = 16  # tokens that one launch of the batched f32-activation kernel takes
ANY = 1 << 62


@dataclass(frozen=True)
class Gate:
    """A row: a matmul of `type` (None: any) with these sizes takes `kernel`, unless one of `switches` is set."""

    type: str | None
    kernel: str  # {t} stands for the lower-case type
    q8: bool  # reads the quantized activation plane, not f32 activations
    nt: tuple[int, int]  # tokens, inclusive
    min_elements: int  # od · id
    switches: tuple[str, ...]
    reason: str
    date: str
    was: int | None = None  # min_elements before that date


_NO_MMVQ, _NO_KQ = "MINFER_NO_MMVQ", "MINFER_NO_KQ_MMVQ"
# The reports' constants stay, since their routes are what is compared here; the crossover measured on an H200
# (2026-11-29, traces/crossover-h200.jsonl) proposes 0 for both. There dp4a loses only at rows of some 1,500 weights and
# less, whatever their number: what a constant in od · id cannot say.
_LARGE_ROWS = "below it the f32 form won on the report's GPU; the H200's crossover proposes 0"

_ONE, _SEVERAL, _MANY = (1, 1), (2, ANY), (MAX_BATCH + 1, ANY)

GATES: tuple[Gate, ...] = (
    Gate("Q4_K", "mmvq_{t}", True, _ONE, 0, (_NO_MMVQ,), "report 70: dp4a wins at every decode shape", "2026-09-08"),
    Gate("Q8_0", "mmvq_{t}", True, _ONE, 0, (_NO_MMVQ,), "one scale a block: dp4a needs no unpacking", "2026-11-29"),
    Gate(
        "Q6_K", "mmvq_{t}", True, _ONE, 4_000_000, (_NO_KQ, _NO_MMVQ), f"report 72: {_LARGE_ROWS}", "2026-09-08",
        was=24_000_000,
    ),
    Gate("Q5_K", "mmvq_{t}", True, _ONE, 24_000_000, (_NO_KQ, _NO_MMVQ), f"report 72: {_LARGE_ROWS}", "2026-09-08"),
    Gate(None, "matmul_{t}_f32", False, _ONE, 0, (), "the form that every type has", "2026-11-29"),
    Gate(None, "gemm_f16", False, _MANY, 0, ("MINFER_NO_F16_PREFILL",), "tensor cores", "2026-11-29"),
    Gate(None, "matmul_{t}_f32_batch", False, _SEVERAL, 0, (), "weights read once for 16 tokens", "2026-11-29"),
)


def route(
    weight_type: str, od: int, id: int, nt: int, off: Container[str] = (), gates: Sequence[Gate] = GATES
) -> Gate:
    """The gate that a matmul (od, id) · (nt, id) falls through first; `off`: the switches that are set."""
    for gate in gates:
        fits = gate.type in (None, weight_type) and gate.nt[0] <= nt <= gate.nt[1] and od * id >= gate.min_elements
        if fits and not any(s in off for s in gate.switches) and not (gate.q8 and id % 32):
            return gate
    raise ValueError(f"no gate takes a matmul of {weight_type} {od}x{id} for {nt} tokens")


def kernel_name(gate: Gate, weight_type: str) -> str:
    """The gate's kernel for this type."""
    return gate.kernel.format(t=weight_type.lower())
