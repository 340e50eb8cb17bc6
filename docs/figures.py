"""Draw the README's figures from recordings in the repository: `make docs`."""

from pathlib import Path

from analysis import clock, plots
from census import ledger

ROOT = Path(__file__).parent.parent
LEDGER = ROOT / "traces" / "7b-d0-default-node.sqlite.gz"
WINDOW = ROOT / "tests" / "data" / "window-llamacpp-fusion-14b-h200.json"


def main() -> None:
    """Write docs/figures/ledger.svg and docs/figures/window.svg."""
    folder = ROOT / "docs" / "figures"
    bars = plots.svg(plots.ledger_bars(ledger.of_file(str(LEDGER))))
    pairs = plots.svg(plots.window_pairs(clock.pairs(WINDOW), clock.read(WINDOW)))
    for name, text in {"ledger": bars, "window": pairs}.items():
        (folder / f"{name}.svg").write_text(text)


if __name__ == "__main__":
    main()
