// RMSNorm, alone and with the q8 plane of its output.
#include "math.cuh"
#include "q8.cuh"

// One block a row, 32 or 128 threads: the same bits for both. The sum of squares is always taken by lanes 0..31 over
// the same elements in the same order; the other threads only share the writing. Needs d % 4 == 0.
BODY void rms_norm_row(const float* x, const float* w, float* y, int d, float eps) {
    __shared__ float s_scale;
    if (threadIdx.x < WARP) {
        float sum = 0.0f;
#pragma unroll 8
        for (int i = threadIdx.x; i < d / 4; i += WARP) {
            sum = sum_squares(load4(x + 4 * i), sum);
        }
        sum = warp_sum(sum);
        if (threadIdx.x == 0) s_scale = rsqrtf(sum / static_cast<float>(d) + eps);
    }
    __syncthreads();
    const float scale = s_scale;
    for (int i = threadIdx.x; i < d / 4; i += blockDim.x) {
        store4(y + 4 * i, normed(load4(x + 4 * i), scale, load4(w + 4 * i)));
    }
}

KERNEL(128) rms_norm_f32(const float* x, const float* w, float* out, int d, float eps) {
    const size_t row = static_cast<size_t>(blockIdx.x) * d;
    rms_norm_row(x + row, w, out + row, d, eps);
}

// The epilogue reads back the row that the block has just written. Needs d % 32 == 0.
KERNEL(128) rms_norm_quant_pad40(const float* x, const float* w, float* out, u8* q8, int d, float eps) {
    const size_t row = static_cast<size_t>(blockIdx.x) * d;
    rms_norm_row(x + row, w, out + row, d, eps);
    __syncthreads();
    u8* plane = q8 + row / Q8_VALUES * Q8_BYTES;
    for (int b = threadIdx.x; b < d / Q8_VALUES; b += blockDim.x)
        quantize_pad40_block(out + row + static_cast<size_t>(b) * Q8_VALUES, plane + static_cast<size_t>(b) * Q8_BYTES);
}
