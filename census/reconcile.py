"""Plan against trace, launch by launch: every recorded step must launch what the engine said, in that order."""

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

SHOWN = 10  # differences listed; more are counted


@dataclass(frozen=True)
class Reconciliation:
    steps: int
    planned: int  # launches per step
    matching: int  # steps that equal the plan launch by launch
    differences: tuple[str, ...]  # each names its launches
    more: int  # differences not listed

    @property
    def holds(self) -> bool:
        return self.steps > 0 and self.matching == self.steps


def reconcile(planned: Sequence[dict[str, Any]], steps: Sequence[Sequence[str]]) -> Reconciliation:
    """Compare the plan's launches (rows of `minfer plan --json`) with the kernel names of each recorded step."""
    kernels = [str(row["kernel"]) for row in planned]
    wrong = [(i, step) for i, step in enumerate(steps) if list(step) != kernels]
    differences = [text for i, step in wrong for text in _differences(i, planned, kernels, step)]
    shown = tuple(differences[:SHOWN])
    return Reconciliation(len(steps), len(kernels), len(steps) - len(wrong), shown, len(differences) - len(shown))


def _differences(
    index: int, planned: Sequence[dict[str, Any]], kernels: Sequence[str], step: Sequence[str]
) -> Iterator[str]:
    matcher = difflib.SequenceMatcher(None, kernels, step, autojunk=False)
    for tag, a0, a1, b0, b1 in matcher.get_opcodes():
        if tag == "equal":
            continue
        missing = ", ".join(_label(row) for row in planned[a0:a1]) or "nothing"
        found = ", ".join(step[b0:b1]) or "nothing"
        yield f"step {index}, launch {a0}: the plan has {missing}; the trace has {found}"


def _label(row: dict[str, Any]) -> str:
    where = "" if row.get("layer") is None else f" of layer {row['layer']}"
    return f"{row['kernel']} ({row.get('name', '?')}{where})"
