"""Probes: kernels and chains compared bitwise, on any runner that can execute a kernel.

A fusion is bitwise by construction (the same body in another place); a probe rechecks it on real bytes. The runner is
the GPU, or its emulation on the CPU: `minfer gate probe`, and the tests.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from minfer.cuda.kernels import KERNELS, ROWS_PER_BLOCK, row_bytes
from minfer.cuda.weights import pack
from minfer.gguf import QUANTS

Array = np.ndarray


class Runner(Protocol):
    """Executes one kernel on numpy arrays, in place, and returns when it is done."""

    def __call__(self, kernel: str, grid: tuple[int, ...], args: list[Any], block: int = 0) -> None: ...


@dataclass(frozen=True)
class Shape:
    """Sizes of a probe: a model's, or small ones for an emulator."""

    name: str
    d: int  # hidden size
    ffn: int
    nqt: int  # q columns
    nkt: int  # k and v columns
    hd: int
    pos: int  # position in the KV cache


SHAPES = {
    s.name: s
    for s in (
        Shape("small", d=256, ffn=288, nqt=128, nkt=64, hd=32, pos=3),
        Shape("7b", d=3584, ffn=18944, nqt=3584, nkt=512, hd=128, pos=1234),
        Shape("14b", d=5120, ffn=13824, nqt=5120, nkt=1024, hd=128, pos=3254),
    )
}
Pair = tuple[str, Array, Array]  # what, fused, unfused


@dataclass(frozen=True)
class Probe:
    name: str
    what: str
    pairs: Callable[[Runner, Shape, np.random.Generator], Iterator[Pair]]


def _f32(rng: np.random.Generator, *shape: int) -> Array:
    return rng.standard_normal(shape).astype(np.float32)


def _blocks(n: int, kernel: str) -> tuple[int]:
    return (-(-n // KERNELS[kernel].block),)


def _i(value: int) -> np.int32:
    return np.int32(value)


def _quantized(run: Runner, x: Array) -> Array:
    """The plane that the standalone kernel makes of one row."""
    plane = np.zeros(x.size // 32 * 40, np.uint8)
    run("quantize_pad40", _blocks(x.size // 32, "quantize_pad40"), [x, plane, _i(x.size // 32)])
    return plane


def rms_quant(run: Runner, s: Shape, rng: np.random.Generator) -> Iterator[Pair]:
    """RMSNorm that writes the plane, against RMSNorm and the standalone quantize."""
    x, w, eps = _f32(rng, s.d), _f32(rng, s.d), np.float32(1e-6)
    plain, fused, plane = np.empty_like(x), np.empty_like(x), np.zeros(s.d // 32 * 40, np.uint8)
    run("rms_norm_f32", (1,), [x, w, plain, _i(s.d), eps])
    run("rms_norm_quant_pad40", (1,), [x, w, fused, plane, _i(s.d), eps])
    yield "f32 output", fused, plain
    yield "q8 plane", plane, _quantized(run, plain)


def swiglu_quant(run: Runner, s: Shape, rng: np.random.Generator) -> Iterator[Pair]:
    """SwiGLU that writes the plane, against SwiGLU and the standalone quantize."""
    gate, up = _f32(rng, s.ffn), _f32(rng, s.ffn)
    plain, fused, plane = np.empty_like(gate), np.empty_like(gate), np.zeros(s.ffn // 32 * 40, np.uint8)
    run("swiglu_f32", _blocks(s.ffn, "swiglu_f32"), [gate, up, plain, _i(s.ffn)])
    run("swiglu_quant_pad40", _blocks(s.ffn, "swiglu_quant_pad40"), [gate, up, fused, plane, _i(s.ffn)])
    yield "f32 output", fused, plain
    yield "q8 plane", plane, _quantized(run, plain)


def wide_rms(run: Runner, s: Shape, rng: np.random.Generator) -> Iterator[Pair]:
    """RMSNorm in blocks of 128 threads, against blocks of 32."""
    x, w = _f32(rng, s.d), _f32(rng, s.d)
    for kernel in ("rms_norm_f32", "rms_norm_quant_pad40"):
        found = []
        for block in (128, 32):
            out, plane = np.empty_like(x), np.zeros(s.d // 32 * 40, np.uint8)
            tail = [plane] if "quant" in kernel else []
            run(kernel, (1,), [x, w, out, *tail, _i(s.d), np.float32(1e-6)], block)
            found.append((out, plane))
        yield f"{kernel} output", found[0][0], found[1][0]
        yield f"{kernel} plane", found[0][1], found[1][1]


def concat_rows(run: Runner, s: Shape, rng: np.random.Generator) -> Iterator[Pair]:
    """One matmul over the rows of q, k and v, against three; both activation forms."""
    x, rows = _f32(rng, s.d), (s.nqt, s.nkt, s.nkt)
    plane = _quantized(run, x)
    for kind in ("Q4_K", "Q6_K"):
        weights = [_weights(rng, kind, od, s.d) for od in rows]
        for kernel, source in ((f"mmvq_{kind.lower()}", plane), (f"matmul_{kind.lower()}_f32", x)):
            parts = [_matmul(run, kernel, w, source, s.d, od) for w, od in zip(weights, rows, strict=True)]
            whole = _matmul(run, kernel, np.concatenate(weights), source, s.d, sum(rows))
            yield kernel, whole, np.concatenate(parts)


def _weights(rng: np.random.Generator, kind: str, od: int, id: int) -> Array:
    """Random rows in their form on the device, their f16 scales kept small and finite."""
    blocks = rng.integers(0, 256, (od * id // QUANTS[kind].elements, QUANTS[kind].nbytes), dtype=np.uint8)
    for at in {"Q4_K": (0, 2), "Q6_K": (208,)}[kind]:
        scales = rng.uniform(0.001, 0.01, len(blocks)).astype("<f2")
        blocks[:, at : at + 2] = scales.view(np.uint8).reshape(-1, 2)
    out = np.empty(od * row_bytes(kind, id), np.uint8)
    pack(blocks, out, kind, id)
    return out


def _matmul(run: Runner, kernel: str, w: Array, source: Array, id: int, od: int) -> Array:
    out = np.empty(od, np.float32)
    rows = ROWS_PER_BLOCK[KERNELS[kernel].family]
    run(kernel, (-(-od // rows),), [w, source, out, _i(id), _i(od)])
    return out


def qkv_epilogue(run: Runner, s: Shape, rng: np.random.Generator) -> Iterator[Pair]:
    """Bias, RoPE and store in one pass, against seven kernels; both KV types, both pointer forms."""
    qkv, bias = _f32(rng, s.nqt + 2 * s.nkt), [_f32(rng, n) for n in (s.nqt, s.nkt, s.nkt)]
    for kv in ("f32", "f16"):
        want = _unfused(run, s, qkv, bias, kv)
        for form in ("concat sections", "separate buffers"):
            got = _fused(run, s, qkv, bias, kv, separate=form == "separate buffers")
            for name in ("q", "k", "v", "keys", "values"):
                yield f"{name}, {kv} cache, {form}", got[name], want[name]


def _sections(s: Shape, qkv: Array) -> list[Array]:
    return np.split(qkv, [s.nqt, s.nqt + s.nkt])


def _cache(s: Shape, kv: str) -> dict[str, Array]:
    dtype = np.float16 if kv == "f16" else np.float32
    return {name: np.zeros((s.pos + 2, s.nkt), dtype) for name in ("keys", "values")}


def _unfused(run: Runner, s: Shape, qkv: Array, bias: list[Array], kv: str) -> dict[str, Array]:
    pos, cache = np.array([s.pos], np.int32), _cache(s, kv)
    parts = [p.copy() for p in _sections(s, qkv)]
    for x, b in zip(parts, bias, strict=True):
        run("add_bias_f32", _blocks(x.size, "add_bias_f32"), [x, b, x, _i(x.size), _i(x.size)])
    for x in parts[:2]:
        sizes = [_i(x.size), _i(s.hd), _i(s.hd), np.float32(1e6), np.float32(1)]
        run("rope_neox_f32", (*_blocks(x.size // 2, "rope_neox_f32"), 1), [x, x, pos, *sizes])
    for x, region in zip(parts[1:], cache.values(), strict=True):
        run(f"kv_store_{kv}", (*_blocks(s.nkt, f"kv_store_{kv}"), 1), [x, region, pos, _i(s.nkt)])
    return dict(zip("qkv", parts, strict=True)) | cache


def _fused(run: Runner, s: Shape, qkv: Array, bias: list[Array], kv: str, separate: bool) -> dict[str, Array]:
    pos, cache, buffer = np.array([s.pos], np.int32), _cache(s, kv), qkv.copy()
    parts = [p.copy() if separate else p for p in _sections(s, buffer)]  # sections are views into one buffer
    kernel = f"attn_bias_rope_store_{kv}"
    sizes = [_i(s.nqt), _i(s.nkt), _i(s.hd), np.float32(1e6), np.float32(1)]
    args = [*parts, *bias, cache["keys"], cache["values"], pos, *sizes]
    run(kernel, _blocks(s.nqt // 2 + s.nkt // 2 + s.nkt, kernel), args)
    return dict(zip("qkv", parts, strict=True)) | cache


PROBES: tuple[Probe, ...] = (
    Probe("rms-quant", "producer-fused q8 bytes = standalone, RMSNorm", rms_quant),
    Probe("swiglu-quant", "producer-fused q8 bytes = standalone, SwiGLU", swiglu_quant),
    Probe("wide-rms", "wide RMSNorm = narrow RMSNorm", wide_rms),
    Probe("concat-rows", "concat matmul rows = separate matmuls' rows", concat_rows),
    Probe("qkv-epilogue", "fused QKV epilogue = the chain of seven kernels", qkv_epilogue),
)


def run_probes(run: Runner, shape: Shape, seed: int = 0) -> list[dict[str, Any]]:
    """One row per compared array: probe, what, bytes, bytes that differ. Bitwise: none may."""
    rows = []
    for probe in PROBES:
        for what, got, want in probe.pairs(run, shape, np.random.default_rng(seed)):
            differ = int((got.view(np.uint8).reshape(-1) != want.view(np.uint8).reshape(-1)).sum())
            rows.append({"probe": probe.name, "shape": shape.name, "what": what, "bytes": got.nbytes, "differ": differ})
    return rows
