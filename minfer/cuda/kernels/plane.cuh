// One token's activations as the stream kernels (stream.cuh) read them, in shared memory, or in global memory on the way
// from a kernel to the next.
#include "q8.cuh"

inline constexpr int SUPER = 256;  // weights of a superblock
inline constexpr int QUAD = 4;  // superblocks; a *quad* of a row is so many
BODY int quads_of(int id) { return (id + QUAD * SUPER - 1) / (QUAD * SUPER); }

// A plane: quad by quad, ready for the lanes. Lane l = 4 * superblock + j of a quad's LANES owns 64 values, 64j to
// 64j + 63 of its superblock, as four chunks of 16: t = 0, 1 meet the low nibbles of Q4_K's 32 bytes, t = 2, 3 the high.
//   4 x 320  chunk t of the lanes, 16 bytes each, and 64 unused: so two chunks of four lanes meet in no bank
//   256      per lane: d of chunks 0 and 1, d / 16 of chunks 2 and 3, d * (sum of chunks 0 and 1), of 2 and 3
//   256      per lane: d * sum of each chunk
struct Plane {
    static constexpr int LANES = 16;  // of a quad
    static constexpr int CHUNKS = LANES * 16 + 64, SCALES = 4 * CHUNKS, SUMS = SCALES + LANES * 16;
    static constexpr int BYTES = SUMS + LANES * 16;  // a quad
    u8* quads;

    // Word i of the row, four values with scale d; a warp's lanes hold consecutive words, and all of them call.
    BODY void write(u32 i, u32 word, float d, bool real = true) const {
        int sum = __dp4a(static_cast<int>(word), 0x01010101, 0);
        sum += __shfl_xor_sync(ALL_LANES, sum, 1);
        sum += __shfl_xor_sync(ALL_LANES, sum, 2);
        const int both = sum + __shfl_xor_sync(ALL_LANES, sum, 4);
        if (!real) return;
        const u32 l = i / 16 % LANES, t = i / 4 % 4, k = i % 4;
        u8* quad = quads + i / 256 * BYTES + 16 * l;
        *reinterpret_cast<u32*>(quad + t * CHUNKS + 4 * k) = word;
        if (k == 0) reinterpret_cast<float*>(quad + SUMS)[t] = d * static_cast<float>(sum);
        if (k != 0 || t % 2 != 0) return;
        float* scales = reinterpret_cast<float*>(quad + SCALES);
        scales[t / 2] = t == 0 ? d : d / 16.0f;
        scales[2 + t / 2] = d * static_cast<float>(both);
    }
};

// Word i of the row; eight lanes share a scale.
BODY void quantize_word(const Plane& plane, u32 i, float4 v, bool real = true) {
    float most = abs_max4(v);
#pragma unroll
    for (int k = 1; k < 8; k *= 2) most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, k));
    const float d = most / 127.0f;
    int sum = 0;
    const u32 word = quantize4(v, d != 0.0f ? 1.0f / d : 0.0f, sum);
    plane.write(i, word, __half2float(__float2half(d)), real);
}
