"""minfer: the decode engine under study. Its plan is data, its launches carry NVTX ranges."""

__version__ = "0.1.0"
