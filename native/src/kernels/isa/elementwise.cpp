// Norms, activations and rotation of single rows.

#include "kernels/kernels.h"
#include "kernels/simd.h"
#include "kernels/simd_math.h"

namespace lpx::LPX_ISA_NS {

namespace {

// out[i] = f(vector of x at i, ...) with the last, incomplete vector in a padded copy.
template <class F>
inline void map1(const float* x, int64_t n, float* out, F f) {
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) store(out + i, f(load(x + i)));
    if (i < n) {
        float a[kLanes] = {};
        std::memcpy(a, x + i, (n - i) * sizeof(float));
        store(a, f(load(a)));
        std::memcpy(out + i, a, (n - i) * sizeof(float));
    }
}

template <class F>
inline void map2(const float* x, const float* y, int64_t n, float* out, F f) {
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) store(out + i, f(load(x + i), load(y + i)));
    if (i < n) {
        float a[kLanes] = {}, b[kLanes] = {};
        std::memcpy(a, x + i, (n - i) * sizeof(float));
        std::memcpy(b, y + i, (n - i) * sizeof(float));
        store(a, f(load(a), load(b)));
        std::memcpy(out + i, a, (n - i) * sizeof(float));
    }
}

float sum_of_squares(const float* x, int64_t n) {
    F32 sum[4] = {zero(), zero(), zero(), zero()};
    int64_t i = 0;
    for (; i + 4 * kLanes <= n; i += 4 * kLanes)
        for (int j = 0; j < 4; ++j) {
            const F32 v = load(x + i + j * kLanes);
            sum[j] = fma(v, v, sum[j]);
        }
    for (; i < n; i += kLanes) {
        float a[kLanes] = {};
        std::memcpy(a, x + i, (n - i < kLanes ? n - i : kLanes) * sizeof(float));
        const F32 v = load(a);
        sum[0] = fma(v, v, sum[0]);
    }
    return sum_lanes(add(add(sum[0], sum[1]), add(sum[2], sum[3])));
}

void rms_norm(const float* x, const float* weight, float eps, int64_t n, float* out) {
    const float mean = sum_of_squares(x, n) / static_cast<float>(n);
    const F32 factor = set1(1.0f / __builtin_sqrtf(mean + eps));
    map2(x, weight, n, out, [factor](F32 a, F32 w) { return mul(mul(a, factor), w); });
}

void add_to(float* x, const float* y, int64_t n) {
    map2(x, y, n, x, [](F32 a, F32 b) { return add(a, b); });
}

void scale(float* x, float factor, int64_t n) {
    const F32 f = set1(factor);
    map1(x, n, x, [f](F32 a) { return mul(a, f); });
}

void silu_mul(const float* gate, const float* up, int64_t n, float* out) {
    map2(gate, up, n, out, [](F32 g, F32 u) { return mul(div(g, add(set1(1.0f), exp(sub(zero(), g)))), u); });
}

// gelu with tanh: 0.5 g (1 + tanh(w)) = g / (1 + e^(-2w)), w = sqrt(2 / pi) (g + 0.044715 g^3)
void gelu_tanh_mul(const float* gate, const float* up, int64_t n, float* out) {
    map2(gate, up, n, out, [](F32 g, F32 u) {
        const F32 cubic = fma(mul(g, g), set1(0.044715f), set1(1.0f));
        const F32 minus_2w = mul(mul(g, cubic), set1(-2.0f * 0.7978845608f));
        return mul(div(g, add(set1(1.0f), exp(minus_2w))), u);
    });
}

void softcap(float* x, float cap, int64_t n) {
    const F32 c = set1(cap);
    map1(x, n, x, [c](F32 a) { return mul(c, tanh(div(a, c))); });
}

void rotate(float* head, const float* cos, const float* sin, int64_t half) {
    float* const low = head;
    float* const high = head + half;
    int64_t i = 0;
    for (; i + kLanes <= half; i += kLanes) {
        const F32 a = load(low + i), b = load(high + i), c = load(cos + i), s = load(sin + i);
        store(low + i, sub(mul(a, c), mul(b, s)));
        store(high + i, add(mul(b, c), mul(a, s)));
    }
    for (; i < half; ++i) {
        const float a = low[i], b = high[i];
        low[i] = a * cos[i] - b * sin[i];
        high[i] = b * cos[i] + a * sin[i];
    }
}

}  // namespace

void fill_elementwise(KernelTable& table) {
    table.rms_norm = rms_norm;
    table.add = add_to;
    table.scale = scale;
    table.silu_mul = silu_mul;
    table.gelu_tanh_mul = gelu_tanh_mul;
    table.softcap = softcap;
    table.rotate = rotate;
}

}  // namespace lpx::LPX_ISA_NS
