// Arithmetic that several kernels share operation by operation, so that fused and separate forms round alike.
#include "common.cuh"

struct Angle {
    float cos, sin;
};

// pair j of n_rot/2 turns by position · scale / base^(2j/n_rot), divided by the pair's factor if there are factors
BODY Angle rope_angle(int position, int j, int n_rot, float base, float scale, float factor) {
    const float freq = scale / powf(base, (2.0f * j) / n_rot);
    const float theta = position * freq / factor;
    return {cosf(theta), sinf(theta)};
}

BODY void rotate(float a, float b, Angle t, float& out_a, float& out_b) {
    out_a = __fsub_rn(__fmul_rn(a, t.cos), __fmul_rn(b, t.sin));
    out_b = __fadd_rn(__fmul_rn(a, t.sin), __fmul_rn(b, t.cos));
}

BODY float sum_squares(float4 v, float sum) {
    return fmaf(v.w, v.w, fmaf(v.z, v.z, fmaf(v.y, v.y, fmaf(v.x, v.x, sum))));
}

// RMSNorm's product with its weights g
BODY float4 normed(float4 v, float scale, float4 g) {
    return make_float4(v.x * scale * g.x, v.y * scale * g.y, v.z * scale * g.z, v.w * scale * g.w);
}

// The sum may not be contracted with expf's last product: every kernel must round alike.
BODY float swiglu(float gate, float up) { return gate / __fadd_rn(1.0f, expf(-gate)) * up; }
