"""GPU tests are skipped, visibly, where there is no GPU."""

import pytest

from minfer.devices import resolve


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if resolve("auto") == "cuda":
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no GPU that CuPy can use"))
