"""Where a launch's arrays lie in the emulated device memory.

Each array gets guard zones on both sides, so an access outside finds no region. Arrays that share memory on the host
share it here too (in-place kernels). A view keeps its offset, modulo 256, from the array it was cut from, as a pointer
into a device buffer would: a view that starts off a vector's alignment is caught.
"""

import ctypes
from dataclasses import dataclass

import numpy as np

GUARD = 1 << 20
PAGE = 4096
ALIGN = 256  # of cudaMalloc
CONSTANT, GLOBAL, OUTPUT, SHARED = range(4)


class Region(ctypes.Structure):
    _fields_ = (
        ("begin", ctypes.c_uint64),
        ("end", ctypes.c_uint64),
        ("shadow", ctypes.c_uint64),
        ("kind", ctypes.c_int),
    )


@dataclass
class Placed:
    """A stretch of host memory and its offset in the arena."""

    host: int
    size: int
    offset: int
    kind: int
    arguments: list[int]


def address(array: np.ndarray) -> int:
    return int(array.ctypes.data)


def skew(array: np.ndarray) -> int:
    root = array
    while isinstance(root.base, np.ndarray):
        root = root.base
    return (address(array) - address(root)) % ALIGN


def overlapping(arrays: dict[int, np.ndarray]) -> list[list[int]]:
    """Arguments in groups that share memory, each in order of address."""
    groups: list[list[int]] = []
    end = -1
    for index in sorted(arrays, key=lambda i: (address(arrays[i]), i)):
        start = address(arrays[index])
        if start < end and groups:
            groups[-1].append(index)
        else:
            groups.append([index])
        end = max(end, start + arrays[index].nbytes)
    return groups


def room(offset: int, size: int) -> int:
    """The next free page after a stretch and its guard zone."""
    return -(-(offset + size + GUARD) // PAGE) * PAGE


def place(arrays: dict[int, np.ndarray], constant: set[int], outputs: set[int]) -> tuple[list[Placed], int]:
    """Stretches for all arrays, and the first free offset behind them."""
    placed, offset = [], GUARD
    for group in overlapping(arrays):
        first = arrays[group[0]]
        host, end = address(first), max(address(arrays[i]) + arrays[i].nbytes for i in group)
        pure_output = len(group) == 1 and group[0] in outputs
        kind = CONSTANT if constant.issuperset(group) else OUTPUT if pure_output else GLOBAL
        stretch = Placed(host, end - host, offset + skew(first), kind, group)
        placed.append(stretch)
        offset = room(stretch.offset, stretch.size)
    return placed, offset
