// Rows of weights as floats: embedding lookup, and whole matrices for a library's product with many tokens.
#include "quants.cuh"

// out (nt, id): row ids[t] of the table. A thread writes one unit of 8 weights.
template <class Q> BODY void embed_row(const u8* table, const int* ids, float* out, int id) {
    const int u = flat_index();
    if (u >= id / UNIT) return;
    const Unit w = row_unit<Q>(weight_row<Q>(table, ids[blockIdx.y], id), u, id);
    float* to = out + static_cast<size_t>(blockIdx.y) * id + unit_first<Q>(u);
    store4(to, w.lo);
    store4(to + Q::PAIR, w.hi);
}

BODY void store4(__half* to, float4 v) {
    const u32 a = __half_as_ushort(__float2half(v.x)) | static_cast<u32>(__half_as_ushort(__float2half(v.y))) << 16;
    const u32 b = __half_as_ushort(__float2half(v.z)) | static_cast<u32>(__half_as_ushort(__float2half(v.w))) << 16;
    *reinterpret_cast<uint2*>(to) = make_uint2(a, b);
}

// out (rows, id). One unit a thread over a flat grid: a vocabulary has more rows than a grid has in y.
// Needs rows * id / 8 < 2^32: 32-bit division is several times faster.
template <class Q, class T> BODY void dequant(const u8* w, T* out, int id, int rows) {
    const u32 units = id / UNIT, i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= rows * units) return;
    const int row = static_cast<int>(i / units), u = static_cast<int>(i % units);
    const Unit weights = row_unit<Q>(weight_row<Q>(w, row, id), u, id);
    T* to = out + static_cast<size_t>(row) * id + unit_first<Q>(u);
    store4(to, weights.lo);
    store4(to + Q::PAIR, weights.hi);
}

#define ROWS(t, Q)                                                                                            \
    KERNEL(256) embed_rows_##t(const u8* table, const int* ids, float* out, int id) {                         \
        embed_row<Q>(table, ids, out, id);                                                                    \
    }                                                                                                         \
    KERNEL(256) dequant_##t##_f16(const u8* w, __half* out, int id, int rows) { dequant<Q>(w, out, id, rows); } \
    KERNEL(256) dequant_##t##_f32(const u8* w, float* out, int id, int rows) { dequant<Q>(w, out, id, rows); }
QUANT_TYPES(ROWS)
