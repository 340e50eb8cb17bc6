"""Prefill's library launches: weights dequantized to f16, matrix products by cuBLAS, attention as two products.

A prompt's weights are read once for all its tokens, so unpacking them to f16 first costs little beside the tensor
cores' product. Attention keeps one KV head's scores at a time: group · nt · n_kv of them.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from minfer.cuda import cupy_module
from minfer.cuda.kernels import BLOCK, KERNELS, OPTIONS, UNIT, source
from minfer.plan import Launch

if TYPE_CHECKING:
    from minfer.cuda.device import CudaProgram

NORMAL, TRANSPOSED = 0, 1  # cublasOperation_t
R_32F, R_16F = 0, 2  # cudaDataType_t
ALGO = -1  # cublasGemmAlgo_t: default


def _blas(cp: Any) -> tuple[Any, int]:
    from cupy_backends.cuda.libs import cublas

    return cublas, cp.cuda.device.get_cublas_handle()


def _kernel(program: "CudaProgram", name: str, blocks: int, *args: Any) -> None:
    row = KERNELS[name]
    function = cupy_module.function(program.device.cp, source(row.file), OPTIONS, name)
    function((blocks, 1, 1), (row.block, 1, 1), args)


def _as_f16(program: "CudaProgram", x: Any, n: int, name: str) -> Any:
    """n f32 values as f16 in the scratch `name`."""
    half = program.device.scratch(name, 2 * n)
    _kernel(program, "f32_to_f16", -(-n // BLOCK["f32_to_f16"]), x, half, np.int32(n))
    return half


def gemm_f16(program: "CudaProgram", launch: Launch) -> Callable[[], None]:
    """out (nt, od) = x (nt, id) · wᵀ, both in f16, summed in f32."""
    p, args = launch.args.params, launch.args
    nt, od, id = p["nt"], p["od"], p["id"]
    kind = f"dequant_{str(launch.weight_type).lower()}_f16"
    cublas, handle = _blas(program.device.cp)

    def call() -> None:
        w, buffers = program.device.weights[args.weights[0]], program.buffers
        x, out = buffers.locate(args.inputs[0]), buffers.locate(args.out)
        half = program.device.scratch("weights_f16", 2 * od * id)
        _kernel(program, kind, -(-od * id // UNIT // BLOCK["dequant"]), w, half, np.int32(id), np.int32(od))
        x16 = _as_f16(program, x, nt * id, "x_f16")
        cublas.gemmEx(
            handle, TRANSPOSED, NORMAL, od, nt, id, ONE.ctypes.data, half.data.ptr, R_16F, id, x16.data.ptr, R_16F, id,
            ZERO.ctypes.data, out.data.ptr, R_32F, od, cublas.CUBLAS_COMPUTE_32F, ALGO,
        )  # fmt: skip

    return call


def attention_prefill(program: "CudaProgram", launch: Launch) -> Callable[[], None]:
    """Causal attention of nt tokens over the cache up to their own positions, KV head by KV head."""

    def call() -> None:
        q, k, v = (program.buffers.locate(r) for r in launch.args.inputs[:3])
        f16 = k.dtype == np.float16
        queries = _as_f16(program, q, q.size, "x_f16") if f16 else q
        for head in range(launch.args.params["n_head_kv"]):
            _attend(program, launch, head, (queries, k, v), "f16" if f16 else "f32")

    return call


def _attend(program: "CudaProgram", launch: Launch, head: int, qkv: tuple[Any, Any, Any], kind: str) -> None:
    """One KV head and its group of query heads."""
    p, nt, n_kv = launch.args.params, program.plan.n_tokens, program.end
    hd, group = p["head_dim"], p["n_head"] // p["n_head_kv"]
    size, data_type = (2, R_16F) if kind == "f16" else (4, R_32F)
    q_row, kv_row = p["n_head"] * hd, p["n_head_kv"] * hd  # elements
    q, k, v = (a.data.ptr + head * hd * size * (group if i == 0 else 1) for i, a in enumerate(qkv))
    scores = program.device.scratch("scores", 4 * group * nt * n_kv)
    probs = program.device.scratch("probs", size * group * nt * n_kv)
    out = program.buffers.locate(launch.args.out).data.ptr + head * group * hd * 4
    cublas, handle = _blas(program.device.cp)
    scale = np.array(hd**-0.5, np.float32)
    cublas.gemmStridedBatchedEx(
        handle, TRANSPOSED, NORMAL, n_kv, nt, hd, scale.ctypes.data, k, data_type, kv_row, 0, q, data_type, q_row, hd,
        ZERO.ctypes.data, scores.data.ptr, R_32F, n_kv, nt * n_kv, group, cublas.CUBLAS_COMPUTE_32F, ALGO,
    )  # fmt: skip
    pos = program.device.scratch_buffers["pos"]
    _kernel(program, f"softmax_causal_{kind}", group * nt, scores, pos, probs, np.int32(nt), np.int32(n_kv))
    cublas.gemmStridedBatchedEx(
        handle, NORMAL, NORMAL, hd, nt, n_kv, ONE.ctypes.data, v, data_type, kv_row, 0, probs.data.ptr, data_type, n_kv,
        nt * n_kv, ZERO.ctypes.data, out, R_32F, q_row, hd, group, cublas.CUBLAS_COMPUTE_32F, ALGO,
    )  # fmt: skip


ONE, ZERO = np.array(1.0, np.float32), np.array(0.0, np.float32)

LIBRARY: dict[str, Callable[["CudaProgram", Launch], Callable[[], None]]] = {
    "gemm_f16": gemm_f16,
    "attention_prefill": attention_prefill,
}
