"""The one table of MINFER_* switches, and the only place that reads the environment.

Switches are read once per process. A value that is not allowed and a name that is not in the table are errors: a
mistyped switch in an A/B would otherwise compare a build with itself.
"""

import difflib
import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass

from minfer.errors import UserError

PREFIX = "MINFER_"


@dataclass(frozen=True)
class Switch:
    name: str
    kind: str  # "flag": 0 or 1; "path": a file to write
    default: str | None
    help: str
    plan: bool = False  # 1 turns off a route or fusion, and so changes the plan
    needs: str | None = None  # what this switch turns off is off as well when that one is set


SWITCHES: dict[str, Switch] = {
    row.name: row
    for row in (
        Switch("MINFER_NVTX", "flag", "1", "push NVTX ranges (domain minfer: step, layer, op)"),
        Switch("MINFER_LAUNCH_LOG", "path", None, "write every step's ranges and launches to this file (JSON lines)"),
        Switch("MINFER_GRAPH_DUMP", "path", None, "write every pass's logits and KV cache into this folder (.npy)"),
        Switch("MINFER_CUPTI_LOG", "path", None, "cuda: write ranges and what CUPTI saw the GPU run to this file"),
        Switch("MINFER_GRAPH_TRACE", "flag", "0", "print each launch on stderr as it is dispatched"),
        *(
            Switch(f"MINFER_NO_{name}", "flag", "0", f"cuda: {text}", plan=True)
            for name, text in (
                ("DECODE_A_FUSE", "every matmul quantizes its own activations, no producer does, nothing is shared"),
                ("POS_MEMO", "convert the positions before every kernel that reads them, not once a step"),
                ("WIDE_RMS", "RMSNorm in blocks of 32 threads, not 128"),
                ("FUSE_QKV", "q, k, v as separate matmuls, biases, RoPEs and stores"),
                ("KQ_MMVQ", "Q5_K and Q6_K matmuls that do not stream take f32 activations whatever their size"),
                ("MMVQ", "every matmul takes f32 activations"),
                ("CUDA_GRAPH", "launch a step's kernels one by one, not as a captured graph"),
                ("F16_PREFILL", "prompts in f32, not f16, matrix products"),
            )
        ),
        Switch(
            "MINFER_NO_STREAM", "flag", "0", "cuda: decode as in the reports, without what was built after them",
            plan=True, needs="MINFER_NO_MMVQ",
        ),
        *(
            Switch(f"MINFER_NO_{name}", "flag", "0", f"cuda: {text}", plan=True, needs="MINFER_NO_STREAM")
            for name, text in (
                ("STREAM_QKV", "q, k and v, bias, RoPE and store not in one launch"),
                ("STREAM_GLU", "gate, up and SwiGLU not in one launch"),
                ("STREAM_ADD", "residual adds not in the launch of the matmul before"),
                ("STREAM_NORM", "RMSNorm and quantize not in the launch of the matmul behind"),
                ("ONE_ATTENTION", "decode attention as two launches, split and combine"),
                ("ATTENTION_QUADS", "attention hands down f32, which every block of the matmul behind quantizes"),
                ("DEPENDENT_LAUNCH", "a kernel begins when the one before it has ended, not while it runs"),
                ("TOKEN_LOOP", "the host reads each token back and writes the next step's inputs"),
            )
        ),
    )
}


def parse(environ: Mapping[str, str]) -> dict[str, str | None]:
    """Values of all switches, defaults filled in. Raises UserError for an unknown name or a value not allowed."""
    given = {k: v for k, v in environ.items() if k.startswith(PREFIX)}
    for name, value in given.items():
        _check(name, value)
    return {name: given.get(name, row.default) for name, row in SWITCHES.items()}


def _check(name: str, value: str) -> None:
    if name not in SWITCHES:
        near = difflib.get_close_matches(name, SWITCHES, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(SWITCHES)}"
        raise UserError(f"unknown switch {name}={value!r}: {hint}")
    kind = SWITCHES[name].kind
    if kind == "flag" and value not in ("0", "1"):
        raise UserError(f"switch {name}={value!r} is not allowed: use 0 or 1, or unset it")
    if not value:
        raise UserError(f"switch {name}={value!r} is not allowed: give a {kind}, or unset it")


@functools.cache
def current() -> dict[str, str | None]:
    """The switches of this process."""
    return parse(os.environ)


def flag(name: str) -> bool:
    """Whether the flag `name` is 1."""
    return current()[name] == "1"


def changed() -> dict[str, str]:
    """The switches whose value differs from the default, for reports."""
    return {name: value for name, value in current().items() if value is not None and value != SWITCHES[name].default}
