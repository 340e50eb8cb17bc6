// Rows of queries, keys and values as the attention kernels read them.
#include "common.cuh"

// N consecutive features, read as one vector; address aligned to all of them
template <class T, int N> struct alignas(sizeof(T) * N) Features {
    T v[N];
};

BODY float as_float(float v) { return v; }
BODY float as_float(__half v) { return __half2float(v); }
