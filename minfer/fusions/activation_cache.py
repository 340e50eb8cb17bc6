"""Producer-fused quantize: who writes the q8 plane that a decode matmul reads, and when it is written again.

The plane is a pure function of (source buffer, nt, id). One plane is kept: RMSNorm and SwiGLU write it beside their
f32 output when a matmul right after them will read it; a matmul that finds it skips its own quantize. Any node that is
not a matmul clears it, and so does the end of a step. Bitwise: producers run the standalone quantize body, and
max, rint and clamp do not depend on who computes them (report 70).
"""

from dataclasses import dataclass

from minfer.fusions import stream
from minfer.plan import Ref

SWITCH = "MINFER_NO_DECODE_A_FUSE"
PRODUCERS = ("rms_norm", "swiglu")
PRESERVING = ("matmul", "stream_matmul")  # nodes that leave the plane as it is
READING = (*PRESERVING, *stream.OPS)  # those that may read it


@dataclass(frozen=True)
class Key:
    """What a plane holds: which buffer, how many tokens, how long its rows."""

    source: Ref
    nt: int
    id: int

    @classmethod
    def of(cls, source: Ref) -> "Key":
        return cls(source, source.rows, source.cols)

    def __str__(self) -> str:
        return f"{self.source.kind}:{self.source.key}/{self.nt}/{self.id}"


@dataclass
class ActivationCache:
    """The one plane of a step, while its launches are planned. Switched off, it neither hits nor records."""

    active: bool
    held: Key | None = None

    def enter(self, op: str) -> None:
        """A node begins: what cannot read the plane clears it."""
        if op not in READING:
            self.held = None

    def leave(self, op: str) -> None:
        """A node is done: one that read it and fuses more than a matmul clears it; its output may lie where x was."""
        if op in READING and op not in PRESERVING:
            self.held = None

    def hit(self, key: Key) -> bool:
        return self.active and self.held == key

    def record(self, key: Key) -> None:
        if self.active:
            self.held = key
