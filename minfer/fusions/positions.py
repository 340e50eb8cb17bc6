"""Positions memo: the positions are converted once per execution of a step, not before every kernel that reads them.

Bitwise: within one execution the input does not change (report 72). Replay runs the one conversion every step.
"""

from dataclasses import dataclass

SWITCH = "MINFER_NO_POS_MEMO"


@dataclass
class PositionsMemo:
    active: bool
    converted: bool = False

    def needs_conversion(self) -> bool:
        """Whether the next consumer must convert; from then on it is done."""
        needed = not (self.active and self.converted)
        self.converted = True
        return needed
