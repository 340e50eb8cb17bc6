// Kernels for test_cuda_on_cpu.py that break one rule each, on the line that ends in FAULT, and twins that do not.
// All are launched with 2 blocks of 256 threads and 1,024 bytes of dynamic shared memory; x and out have 256 elements,
// one has one. Only block 0 works, unless the rule is about blocks.

#define KERNEL(name) extern "C" __global__ void name(const float* x, float* out, int* one)
#define ONLY_BLOCK_0 \
    if (blockIdx.x) return
#define ME threadIdx.x

KERNEL(missing_barrier_good) {
    ONLY_BLOCK_0;
    __shared__ float buffer[256];
    buffer[ME] = x[ME];
    __syncthreads();
    out[ME] = buffer[ME ^ 32];
}
KERNEL(missing_barrier) {
    ONLY_BLOCK_0;
    __shared__ float buffer[256];
    buffer[ME] = 0.0f;
    __syncthreads();
    buffer[ME] = x[ME];
    out[ME] = buffer[ME & ~32];  // FAULT
}

KERNEL(global_race_good) {
    ONLY_BLOCK_0;
    out[ME] = x[ME];
}
KERNEL(global_race) {
    ONLY_BLOCK_0;
    out[ME] = x[ME];
    out[ME / 2] = 1.0f;  // FAULT
}

KERNEL(two_writers_good) {
    ONLY_BLOCK_0;
    __shared__ int flag;
    if (ME == 7) flag = 1;
    __syncthreads();
    out[ME] = flag;
}
KERNEL(two_writers) {
    ONLY_BLOCK_0;
    __shared__ int flag;
    if (ME > 7) flag = 1;  // FAULT
    __syncthreads();
    out[ME] = flag;
}

KERNEL(missing_wait_good) {
    ONLY_BLOCK_0;
    __shared__ float buffer[256];
    __pipeline_memcpy_async(&buffer[ME], &x[ME], 4);
    __pipeline_commit();
    __pipeline_commit();
    __pipeline_wait_prior(1);
    __syncthreads();
    out[ME] = buffer[ME ^ 32];
}
KERNEL(missing_wait) {
    ONLY_BLOCK_0;
    __shared__ float buffer[256];
    __pipeline_memcpy_async(&buffer[ME], &x[ME], 4);
    __pipeline_commit();
    __pipeline_wait_prior(1);
    __syncthreads();
    out[ME] = buffer[ME ^ 32];  // FAULT
}

KERNEL(copied_over_good) {
    ONLY_BLOCK_0;
    __shared__ float buffer[256];
    buffer[ME] = x[ME];
    __syncthreads();
    out[ME] = buffer[ME ^ 32];
    __syncthreads();
    __pipeline_memcpy_async(&buffer[ME], &x[ME], 4);
    __pipeline_commit();
    __pipeline_wait_prior(0);
}
KERNEL(copied_over) {
    ONLY_BLOCK_0;
    __shared__ float buffer[256];
    buffer[ME] = x[ME];
    __syncthreads();
    __pipeline_memcpy_async(&buffer[ME], &x[ME], 4);
    __pipeline_commit();
    out[ME] = buffer[ME ^ 33];  // FAULT
    __syncthreads();
    __pipeline_wait_prior(0);
}

KERNEL(missing_syncwarp_good) {
    ONLY_BLOCK_0;
    __shared__ float buffer[256];
    buffer[ME] = x[ME];
    __syncwarp();
    out[ME] = buffer[ME ^ 1];
    __syncwarp();
    buffer[ME ^ 3] = 0.0f;
}
KERNEL(missing_syncwarp) {
    ONLY_BLOCK_0;
    __shared__ float buffer[256];
    buffer[ME] = x[ME];
    __syncwarp();
    out[ME] = buffer[ME ^ 1];
    buffer[ME ^ 3] = 0.0f;  // FAULT
}

// Barrier 1 joins the first two warps and barrier 2 the next two; a pair may read its own half only.
KERNEL(named_barrier_good) {
    ONLY_BLOCK_0;
    __shared__ float buffer[256];
    buffer[ME] = x[ME];
    cuda_bar_sync(1 + ME / 64, 64);
    out[ME] = buffer[ME ^ 32];
}
KERNEL(named_barrier) {
    ONLY_BLOCK_0;
    __shared__ float buffer[256];
    buffer[ME] = x[ME];
    cuda_bar_sync(1 + ME / 64, 64);
    out[ME] = ME < 64 ? 0.0f : buffer[ME - 64];  // FAULT
}

KERNEL(divergent_barrier_good) {
    ONLY_BLOCK_0;
    if (ME < 128) out[ME] = 1.0f;
    __syncthreads();
    if (ME >= 128) out[ME] = 1.0f;
}
KERNEL(divergent_barrier) {
    ONLY_BLOCK_0;
    out[ME] = 1.0f;
    if (ME < 128)
        __syncthreads();  // FAULT
    else
        cuda_bar_sync(1, 256);
}

KERNEL(early_return_good) {
    ONLY_BLOCK_0;
    out[ME] = 1.0f;
    __syncthreads();
    if (ME >= 200) return;
}
KERNEL(early_return) {
    ONLY_BLOCK_0;
    out[ME] = 1.0f;
    if (ME >= 200) return;
    __syncthreads();  // FAULT
}

KERNEL(two_barriers_good) {
    ONLY_BLOCK_0;
    out[ME] = 1.0f;
    for (int i = 0; i < 3; i++) __syncthreads();
}
KERNEL(two_barriers) {
    ONLY_BLOCK_0;
    out[ME] = 1.0f;
    if (ME < 64)
        __syncthreads();
    else
        __syncthreads();  // FAULT
}

KERNEL(divergent_shuffle_good) {
    ONLY_BLOCK_0;
    const float next = __shfl_down_sync(0xffffffffu, x[ME], 1);
    out[ME] = ME % 32 < 16 ? next : 0.0f;
}
KERNEL(divergent_shuffle) {
    ONLY_BLOCK_0;
    out[ME] = x[ME];
    if (ME % 32 < 16)
        out[ME] = __shfl_down_sync(0xffffffffu, x[ME], 1);  // FAULT
    else
        __syncthreads();
}

KERNEL(absent_lane_good) {
    ONLY_BLOCK_0;
    out[ME] = 0.0f;
    if (ME % 32 < 16) out[ME] = __shfl_xor_sync(0x0000ffffu, x[ME], 8);
}
KERNEL(absent_lane) {
    ONLY_BLOCK_0;
    out[ME] = 0.0f;
    if (ME % 32 < 16) out[ME] = __shfl_xor_sync(0x0000ffffu, x[ME], 16);  // FAULT
}

KERNEL(unwritten_shared_good) {
    __shared__ float buffer[256];
    buffer[ME] = 0.0f;
    ONLY_BLOCK_0;
    buffer[ME] = x[ME];
    __syncthreads();
    out[ME] = buffer[ME];
}
KERNEL(unwritten_shared) {
    __shared__ float buffer[256];
    if (blockIdx.x == 0) buffer[ME] = x[ME];  // what block 0 leaves behind is nothing to block 1
    if (blockIdx.x == 0) out[ME] = 0.0f;
    if (blockIdx.x == 1) *one = buffer[ME];  // FAULT
}

KERNEL(unwritten_dynamic_good) {
    ONLY_BLOCK_0;
    extern __shared__ float dynamic[];
    dynamic[ME] = x[ME];
    out[ME] = dynamic[ME];
}
KERNEL(unwritten_dynamic) {
    ONLY_BLOCK_0;
    extern __shared__ float dynamic[];
    if (ME % 2) dynamic[ME] = x[ME];
    out[ME] = dynamic[ME];  // FAULT
}

KERNEL(read_by_one_good) {
    ONLY_BLOCK_0;
    out[ME] = ME < 255 ? x[ME + 1] : 0.0f;
}
KERNEL(read_by_one) {
    ONLY_BLOCK_0;
    out[ME] = x[ME + 1];  // FAULT
}

KERNEL(write_by_one_good) {
    ONLY_BLOCK_0;
    out[255 - ME] = 1.0f;
}
KERNEL(write_by_one) {
    ONLY_BLOCK_0;
    out[254 - static_cast<int>(ME)] = 1.0f;  // FAULT
}

KERNEL(past_dynamic_good) {
    ONLY_BLOCK_0;
    extern __shared__ float dynamic[];
    dynamic[ME] = out[ME] = 1.0f;
}
KERNEL(past_dynamic) {
    ONLY_BLOCK_0;
    extern __shared__ float dynamic[];
    dynamic[ME + 1] = 1.0f;  // FAULT
}

KERNEL(misaligned_good) {
    ONLY_BLOCK_0;
    out[ME] = 0.0f;
    __syncthreads();
    if (ME < 64) reinterpret_cast<float4*>(out)[ME] = reinterpret_cast<const float4*>(x)[ME];
}
KERNEL(misaligned) {
    ONLY_BLOCK_0;
    const float4 v = *reinterpret_cast<const float4*>(x + 1);  // FAULT
    out[ME] = v.x;
}

KERNEL(const_write_good) {
    ONLY_BLOCK_0;
    out[ME] = x[ME];
}
KERNEL(const_write) {
    ONLY_BLOCK_0;
    const_cast<float*>(x)[ME] = 1.0f;  // FAULT
}

KERNEL(output_read_good) {
    ONLY_BLOCK_0;
    out[ME] = x[ME];
    out[ME] += 1.0f;
}
KERNEL(output_read) {
    ONLY_BLOCK_0;
    out[ME] += x[ME];  // FAULT
}

KERNEL(blocks_race_good) {
    if (ME < 128) out[blockIdx.x * 128 + ME] = 1.0f;
}
KERNEL(blocks_race) {
    out[ME] = 1.0f;  // FAULT
}

KERNEL(trap_good) {
    ONLY_BLOCK_0;
    out[ME] = 1.0f;
    if (x[ME] < 0.0f) __trap();
}
KERNEL(trap) {
    ONLY_BLOCK_0;
    if (x[ME] > 99.0f) __trap();  // FAULT
}
