"""What the switches decide about a plan, as one frozen value: part of the key under which programs are reused."""

from collections.abc import Mapping
from dataclasses import dataclass

from minfer import switches


@dataclass(frozen=True)
class Options:
    """Settings that change a plan. `off` names the MINFER_NO_* switches that are set."""

    off: frozenset[str] = frozenset()
    kv_type: str = "f32"  # "f32" or "f16"

    def on(self, switch: str) -> bool:
        """Whether what `switch` (MINFER_NO_...) would turn off is on; what it builds on must be, too."""
        needs = switches.SWITCHES[switch].needs
        return switch not in self.off and (needs is None or self.on(needs))


def from_switches(values: Mapping[str, str | None], kv_type: str) -> Options:
    """The options that these switch values ask for."""
    names = (n for n, row in switches.SWITCHES.items() if row.plan)
    return Options(frozenset(n for n in names if values[n] == "1"), kv_type)
