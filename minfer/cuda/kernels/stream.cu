// Decode's matmuls as persistent blocks that stream rows (stream.cuh). A name says where the activations come from and
// what becomes of the products:
//   plane  the q8 plane that another kernel wrote     store  out = product
//   quant  an f32 row, quantized here                 add    out = product + residual
//   norm   an f32 row, RMSNorm and quantized here     glu    silu(gate) · up, of two matrices, as quads
//   quads  the plane that a glu wrote                 qkv    bias, RoPE, q out, k and v into the cache
// Every block makes the activations anew, in shared memory: a launch less costs more than reading a row from L2.
#include "math.cuh"
#include "stream.cuh"

// One block a multiprocessor: two would fit with half the registers, and were slower (analysis/log.md).
#define STREAM_KERNEL extern "C" __global__ void __launch_bounds__(STREAM_THREADS, 1)

// Where the activations come from: `prepare` before the wait for the previous kernel, then the call.
struct FromPlane {
    const u8* q8;
    BODY void prepare(int) {}
    BODY void operator()(const Plane& plane, int id) const { copy_plane(plane, q8, id); }
};
struct FromRow {
    const float* x;
    BODY void prepare(int) {}
    BODY void operator()(const Plane& plane, int id) const { quantize_row(plane, x, id); }
};
struct FromQuads {
    const u8* quads;
    BODY void prepare(int) {}
    BODY void operator()(const Plane& plane, int id) const { copy_quads(plane, quads, id); }
};
typedef Norm FromNorm;

// Dynamic shared memory: plane, warps' rings, items' sums, then what an epilogue keeps (kernels.py: stream_shared).
BODY u8* dynamic_bytes() {
    extern __shared__ uint4 s_dynamic[];
    return reinterpret_cast<u8*>(s_dynamic);
}
BODY u8* rings(int id) { return dynamic_bytes() + quads_of(id) * Plane::BYTES; }
BODY float* sums_of_items(int id) { return reinterpret_cast<float*>(rings(id) + STREAM_WARPS * RING); }
BODY float* epilogue_room(int id) { return sums_of_items(id) + 2 * Stream::ROOM; }

BODY Stream open_stream(int id) {
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const Shared ring = shared_address(rings(id)) + warp * RING;
    return {{dynamic_bytes()}, ring, sums_of_items(id), id / SUPER, warp, lane};
}

BODY size_t row_bytes(int type, int id) {
    return type == 4 ? StreamQ4K::row_bytes(id / SUPER) : StreamQ6K::row_bytes(id / SUPER);
}

// The share of block `block` of `blocks` in so many: x up to y - 1. The first ones have one more; one division, since
// nothing is asked for before it is done.
BODY int2 share(u32 count, u32 block, u32 blocks) {
    const u32 each = count / blocks, more = count - each * blocks, first = block * each + min(block, more);
    return {static_cast<int>(first), static_cast<int>(first + each + (block < more))};
}

// This block's share of `units` pairs of neighbouring rows.
BODY Rows neighbours(const u8* w, int type, int id, int units) {
    const int2 mine = share(units, blockIdx.x, gridDim.x);
    return {w, row_bytes(type, id), type, 2, Rows::WHOLE, mine.x, mine.y};
}

struct Nothing {
    BODY void operator()(int) const {}
};

// `fetch` and `compute` are given each of the block's units, counted from rows.from, by one thread. `fetch` begins to
// copy what the previous kernel does not write, ahead of the weights, which are many: what is asked for behind them
// comes late. `compute` works while the weights come. Then `finish` is given each unit's products by one thread; unless
// `real`, it must write nothing but shared memory.
template <class From, class Fetch, class Compute, class Finish>
BODY void product(const Rows& rows, From from, int id, const Fetch& fetch, const Compute& compute,
                  const Finish& finish) {
    const Stream stream = open_stream(id);
    from.prepare(id);
    for (int i = threadIdx.x; i < rows.to - rows.from; i += STREAM_THREADS) fetch(i);
    close_group();
    const Walk walk = stream.prime(rows);
    for (int i = threadIdx.x; i < rows.to - rows.from; i += STREAM_THREADS) compute(i);
    const auto begin = [&] {
        wait_for_previous();
        from(stream.plane, id);
        wait_for_groups<LEAST_STAGES>();  // what this thread has fetched is there, for all of them
    };
    stream.run(rows, walk, begin, finish);
}

template <class From> BODY void store(const From& from, const u8* w, float* out, int id, int od, int type) {
    const Rows rows = neighbours(w, type, id, od / 2);
    product(rows, from, id, Nothing(), Nothing(), [&](int unit, float a, float b, bool real) {
        if (real) *reinterpret_cast<float2*>(out + 2 * unit) = make_float2(a, b);
    });
}

// residual may be out; no kernel writes it between the one before the previous and this
template <class From>
BODY void add(const From& from, const u8* w, const float* residual, float* out, int id, int od, int type) {
    const Rows rows = neighbours(w, type, id, od / 2);
    float2* kept = reinterpret_cast<float2*>(epilogue_room(id));
    const auto keep = [&](int i) { copy_async<8>(shared_address(kept + i), residual + 2 * (rows.from + i)); };
    product(rows, from, id, keep, Nothing(), [&](int unit, float a, float b, bool real) {
        const float2 r = kept[unit - rows.from];
        if (real) *reinterpret_cast<float2*>(out + 2 * unit) = make_float2(r.x + a, r.y + b);
    });
}

// Blocks share the rows in whole runs of 32, which have one scale. quads: the plane that the next matmul takes.
template <class From>
BODY void glu(const From& from, const u8* gate, const u8* up, u8* quads, int id, int od, int type) {
    const int runs = od / Q8_VALUES;
    const int2 mine = share(runs, blockIdx.x, gridDim.x);
    const int first = mine.x * Q8_VALUES, last = mine.y * Q8_VALUES;
    float* kept = epilogue_room(id);
    product({gate, static_cast<size_t>(up - gate), type, 1, Rows::WHOLE, first, last}, from, id, Nothing(), Nothing(),
            [&](int unit, float a, float b, bool) { kept[unit - first] = swiglu(a, b); });
    write_plane(quads, kept, first, last - first);
}

// --- q, k and v ------------------------------------------------------------------------------------------------------

template <class KV> struct Heads {  // sizes, where things are, and RoPE
    const u8* w[3];
    const float* bias[3];
    int type[3], units[3], blocks[3];  // of q, k and v: pairs of rows, and blocks that share them
    float* q;
    KV *keys, *values;  // the position's rows
    int position, hd;
    float base, scale;
};

template <class T> BODY T pick(const T (&three)[3], int k) { return k == 0 ? three[0] : k == 1 ? three[1] : three[2]; }

// A block has rows of one of the three: with rows of two it would fill its rings twice, and all the others wait for it.
template <class KV> BODY Rows rows_of_block(const Heads<KV>& h, int k, int id) {
    const int before = k == 0 ? 0 : k == 1 ? h.blocks[0] : h.blocks[0] + h.blocks[1];
    const int2 mine = share(pick(h.units, k), blockIdx.x - before, pick(h.blocks, k));
    const int type = pick(h.type, k), half = h.hd / 2;
    if (k == 2) return {pick(h.w, k), row_bytes(type, id), type, 2, Rows::WHOLE, mine.x, mine.y};
    return {pick(h.w, k), half * row_bytes(type, id), type, 1, half, mine.x, mine.y};
}

// What the epilogue needs of a unit, there before the previous kernel is done.
struct Prepared {
    float bias_a, bias_b;
    Angle angle;
};

template <class KV>
BODY void finish_pair(const Heads<KV>& h, int k, int row, int half, const Prepared& p, float a, float b, bool real) {
    a += p.bias_a, b += p.bias_b;
    if (k < 2) rotate(a, b, p.angle, a, b);
    if (!real) return;
    if (k == 0) {
        h.q[row] = a, h.q[row + half] = b;
    } else {
        KV* to = k == 1 ? h.keys : h.values;
        store_as(to + row, a), store_as(to + row + half, b);
    }
}

template <class KV, class From> BODY void qkv(const From& from, const Heads<KV>& h, int id) {
    const int block = blockIdx.x, k = block < h.blocks[0] ? 0 : block < h.blocks[0] + h.blocks[1] ? 1 : 2;
    const Rows rows = rows_of_block(h, k, id);
    const int apart = k < 2 ? h.hd / 2 : 1;  // the rows of a pair
    Prepared* prepared = reinterpret_cast<Prepared*>(epilogue_room(id));
    const auto biases = [&](int i) {
        const float* bias = pick(h.bias, k) + rows.first(rows.from + i);
        copy_async<4>(shared_address(&prepared[i].bias_a), bias);
        copy_async<4>(shared_address(&prepared[i].bias_b), bias + apart);
    };
    const auto angles = [&](int i) {
        if (k == 2) return;
        prepared[i].angle = rope_angle(h.position, rows.first(rows.from + i) % h.hd, h.hd, h.base, h.scale, 1.0f);
    };
    product(rows, from, id, biases, angles, [&](int unit, float a, float b, bool real) {
        finish_pair(h, k, rows.first(unit), apart, prepared[unit - rows.from], a, b, real);
    });
}

#define ROWS_ARGS int id, int od, int type
STREAM_KERNEL stream_plane_store(const u8* w, const u8* q8, float* out, ROWS_ARGS) {
    store(FromPlane{q8}, w, out, id, od, type);
}
STREAM_KERNEL stream_norm_store(const u8* w, const float* norm, const float* x, float* out, ROWS_ARGS, float eps) {
    store(FromNorm{x, norm, eps}, w, out, id, od, type);
}
STREAM_KERNEL stream_quant_store(const u8* w, const float* x, float* out, ROWS_ARGS) {
    store(FromRow{x}, w, out, id, od, type);
}
STREAM_KERNEL stream_quads_store(const u8* w, const u8* quads, float* out, ROWS_ARGS) {
    store(FromQuads{quads}, w, out, id, od, type);
}
STREAM_KERNEL stream_plane_add(const u8* w, const u8* q8, const float* residual, float* out, ROWS_ARGS) {
    add(FromPlane{q8}, w, residual, out, id, od, type);
}
STREAM_KERNEL stream_quant_add(const u8* w, const float* x, const float* residual, float* out, ROWS_ARGS) {
    add(FromRow{x}, w, residual, out, id, od, type);
}
STREAM_KERNEL stream_quads_add(const u8* w, const u8* quads, const float* residual, float* out,
                               ROWS_ARGS) {
    add(FromQuads{quads}, w, residual, out, id, od, type);
}
STREAM_KERNEL stream_plane_glu(const u8* gate, const u8* up, const u8* q8, u8* quads, ROWS_ARGS) {
    glu(FromPlane{q8}, gate, up, quads, id, od, type);
}
STREAM_KERNEL stream_norm_glu(const u8* gate, const u8* up, const float* norm, const float* x, u8* quads,
                              ROWS_ARGS, float eps) {
    glu(FromNorm{x, norm, eps}, gate, up, quads, id, od, type);
}

#define HEADS_ARGS(KV)                                                                                          \
    const int *pos, float *q, KV *keys, KV *values, int id, int nqt, int nkt, int hd, int type_q, int type_k,   \
        int type_v, int blocks_q, int blocks_k, float base, float scale
#define WEIGHTS_ARGS                                                                                          \
    const u8 *wq, const u8 *wk, const u8 *wv, const float *bq, const float *bk, const float *bv
template <class KV, class From> BODY void qkv_of(const From& from, WEIGHTS_ARGS, HEADS_ARGS(KV)) {
    const int position = pos[0];  // no kernel in between writes it
    const size_t row = static_cast<size_t>(position) * nkt;
    const Heads<KV> heads = {{wq, wk, wv}, {bq, bk, bv}, {type_q, type_k, type_v}, {nqt / 2, nkt / 2, nkt / 2},
                             {blocks_q, blocks_k, static_cast<int>(gridDim.x) - blocks_q - blocks_k}, q, keys + row,
                             values + row, position, hd, base, scale};
    qkv<KV>(from, heads, id);
}
#define QKV(t, T)                                                                                                  \
    STREAM_KERNEL stream_plane_qkv_##t(WEIGHTS_ARGS, const u8* q8, HEADS_ARGS(T)) {                                \
        qkv_of<T>(FromPlane{q8}, wq, wk, wv, bq, bk, bv, pos, q, keys, values, id, nqt, nkt, hd, type_q, type_k,    \
                  type_v, blocks_q, blocks_k, base, scale);                                                        \
    }                                                                                                              \
    STREAM_KERNEL stream_norm_qkv_##t(WEIGHTS_ARGS, const float* norm, const float* x, HEADS_ARGS(T), float eps) { \
        qkv_of<T>(FromNorm{x, norm, eps}, wq, wk, wv, bq, bk, bv, pos, q, keys, values, id, nqt, nkt, hd, type_q,  \
                  type_k, type_v, blocks_q, blocks_k, base, scale);                                                \
    }
QKV(f32, float)
QKV(f16, __half)
