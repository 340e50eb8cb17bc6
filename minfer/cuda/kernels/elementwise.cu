// Element by element: residual add, bias, SwiGLU, conversions, and the standalone quantize. In-place is allowed
// wherever a thread reads only what it writes, so no pointer here is declared free of aliases.
#include "math.cuh"
#include "q8.cuh"

KERNEL(256) add_f32(const float* a, const float* b, float* out, int n) {
    const int i = flat_index();
    if (i < n) out[i] = a[i] + b[i];
}

// bias: `cols` values, the same for every row
KERNEL(256) add_bias_f32(const float* x, const float* bias, float* out, int cols, int n) {
    const int i = flat_index();
    if (i < n) out[i] = x[i] + bias[i % cols];
}

KERNEL(256) swiglu_f32(const float* gate, const float* up, float* out, int n) {
    const int i = flat_index();
    if (i < n) out[i] = swiglu(gate[i], up[i]);
}

// Block b writes elements 256b..256b+255, which are its own eight q8 blocks: this needs the 256-thread geometry, and
// every thread at the barrier. Needs n % 32 == 0.
KERNEL(256) swiglu_quant_pad40(const float* gate, const float* up, float* out, u8* q8, int n) {
    const int i = flat_index();
    if (i < n) out[i] = swiglu(gate[i], up[i]);
    __syncthreads();
    constexpr int mine = THREADS / Q8_VALUES;
    const int b = blockIdx.x * mine + threadIdx.x;
    if (threadIdx.x < mine && b < n / Q8_VALUES)
        quantize_pad40_block(out + static_cast<size_t>(b) * Q8_VALUES, q8 + static_cast<size_t>(b) * Q8_BYTES);
}

KERNEL(64) quantize_pad40(const float* x, u8* q8, int blocks) {
    const int b = flat_index();
    if (b < blocks)
        quantize_pad40_block(x + static_cast<size_t>(b) * Q8_VALUES, q8 + static_cast<size_t>(b) * Q8_BYTES);
}

KERNEL(256) last_row_f32(const float* x, float* out, int rows, int cols) {
    const int i = flat_index();
    if (i < cols) out[i] = x[static_cast<size_t>(rows - 1) * cols + i];
}

// Positions travel as int32 bit patterns in an f32 buffer.
KERNEL(256) f32_bits_to_i32(const float* x, int* out, int n) {
    const int i = flat_index();
    if (i < n) out[i] = __float_as_int(x[i]);
}

KERNEL(256) f32_to_f16(const float* x, __half* out, int n) {
    const int i = flat_index();
    if (i < n) store_as(out + i, x[i]);
}
