"""What kind of work a kernel does, from its name: one ordered table, first match wins, no match is `unknown`.

The table decides what may be fused with what (see fusions.RULES) and how an account groups its items. It is data: a
kernel of another engine is a row here.
"""

import re

MATMUL, NORM, ELEMENTWISE, QUANTIZE, STORE, ROPE, ATTENTION, CONVERT, OTHER, UNKNOWN = CLASSES = (
    "matmul", "norm", "elementwise", "quantize", "store", "rope", "attention", "convert", "other", "unknown",
)

# (class, pattern found anywhere in the kernel's name). Order matters: a fused kernel is what its host is.
TABLE: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, re.compile(pattern, re.IGNORECASE))
    for name, pattern in (
        (ATTENTION, r"attention|attn_(?!bias)|fmha|flash|paged|softmax|decode_kernel"),
        (MATMUL, r"mul_mat|mmvq|matmul|gemv|gemm|cutlass|cublas|marlin|nvjet|splitk|wgmma"),
        (MATMUL, r"^stream_(norm|quads|quant|plane)_"),  # minfer's: what comes in, then what the epilogue does
        (NORM, r"rms_?norm|layer_?norm|(?<![a-z])norm"),
        (ROPE, r"rope|rotary"),
        (STORE, r"set_rows|kv_store|store_kv|reshape_and_cache|kv_cache"),
        (ELEMENTWISE, r"swiglu|silu|gelu"),  # before quantize: swiglu_quant is a gated activation that also quantizes
        (QUANTIZE, r"quantize|quant_pad|q8_1|scaled_fp8_quant"),
        (CONVERT, r"bits_to_i32|convert|(?<!b)cast|copy_kernel|cpy"),
        (ELEMENTWISE, r"bin_bcast|add_|(?<![a-z])add|bias|gated|act_and_mul|elementwise|(?<![a-z])mul"),
        (OTHER, r"argmax|next_token|embed|get_rows|gather|index|sampl|topk|reduce|fill|memset|memcpy"),
    )
)


def of(kernel: str) -> str:
    """The class of a kernel; `unknown` where no row of the table matches."""
    return next((name for name, pattern in TABLE if pattern.search(kernel)), UNKNOWN)
