"""What of a GPU decides a plan: enough to plan for one that is not here."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Gpu:
    """Numbers of a device; the defaults are an H200's."""

    multiprocessors: int = 132
    shared: int = 232_448  # bytes that a block may have, static and dynamic


H200 = Gpu()
