"""The notebooks run top to bottom on the repository's recordings; figures are drawn, not blank."""

import ast
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[2] / "notebooks"
BOOKS = sorted(FOLDER.glob("*.ipynb"))
FIGURES = {"1": 2, "2": 1, "3": 1, "4": 1, "5": 1, "6": 1, "7": 1}


@pytest.mark.parametrize("path", BOOKS, ids=lambda p: p.stem)
def test_it_runs_top_to_bottom(path):
    book = nbformat.read(path, as_version=4)
    NotebookClient(book, timeout=120, resources={"metadata": {"path": str(FOLDER)}}).execute()
    outputs = [o for c in book.cells if c.cell_type == "code" for o in c.outputs]
    assert not [o for o in outputs if o.output_type == "error"]
    assert not [o.text for o in outputs if o.output_type == "stream" and o.name == "stderr"]
    shown = [o.data for o in outputs if o.output_type == "execute_result"]
    drawn = [data["image/svg+xml"] for data in shown if "image/svg+xml" in data]
    assert len(drawn) == FIGURES[path.stem[0]]
    for svg in drawn:
        assert svg.count("<path") > 10 and any(unit in svg for unit in ("µs", "ms per step", "GB/s"))


@pytest.mark.parametrize("path", BOOKS, ids=lambda p: p.stem)
def test_parameters_come_first_and_there_is_no_logic(path):
    """The first code cell only assigns constants; no cell defines a function, a class or a loop."""
    cells = [ast.parse(c.source) for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code"]
    for node in cells[0].body:
        assert isinstance(node, ast.Assign)
        ast.literal_eval(node.value)
    logic = (ast.FunctionDef, ast.ClassDef, ast.For, ast.While, ast.Lambda, ast.Try)
    assert not [n for cell in cells for n in ast.walk(cell) if isinstance(n, logic)]


def test_they_are_kept_without_outputs_or_paths_of_a_machine():
    for path in BOOKS:
        assert not [c for c in nbformat.read(path, as_version=4).cells if c.get("outputs")]
        assert "/home/" not in path.read_text() and str(FOLDER.parent) not in path.read_text()


def test_all_seven_are_there():
    assert [p.stem[0] for p in BOOKS] == list(FIGURES)
