"""Every mutation of tests/mutate_kernels.py still finds its line, and changes it."""

import pytest

from mutate_kernels import MUTATIONS, ROOT


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.name)
def test_a_mutation_finds_its_line_once(mutation):
    assert (ROOT / mutation.file).read_text().count(mutation.line) == 1
    assert mutation.wrong != mutation.line and mutation.place().startswith(mutation.file.rpartition("/")[2] + ":")
