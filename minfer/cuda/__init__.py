"""The CUDA backend. dispatch.py and lowering.py plan without a GPU; only device.py needs CuPy."""
