// Passes over one row of logits.

#include "kernels/kernels.h"
#include "kernels/simd.h"
#include "kernels/simd_math.h"

namespace lpx::LPX_ISA_NS {

namespace {

inline constexpr float kLowest = -3.402823466e38f;

bool block_maxima(const float* x, int64_t n, float* maxima) {
    static_assert(kMaximaBlock % (4 * kLanes) == 0);
    F32 taint = zero();  // x * 0 is NaN for NaN and for infinities
    int64_t i = 0;
    for (; i + kMaximaBlock <= n; i += kMaximaBlock) {
        F32 best[4];
        for (int j = 0; j < 4; ++j) best[j] = set1(kLowest);
        for (int k = 0; k < kMaximaBlock; k += 4 * kLanes)
            for (int j = 0; j < 4; ++j) {
                const F32 v = load(x + i + k + j * kLanes);
                best[j] = max(best[j], v);
                taint = fma(v, zero(), taint);
            }
        *maxima++ = max_lanes(max(max(best[0], best[1]), max(best[2], best[3])));
    }
    const float sum = sum_lanes(taint);
    bool tainted = sum != sum;
    if (i < n) {
        float highest = kLowest;
        for (; i < n; ++i) {
            highest = x[i] > highest ? x[i] : highest;
            tainted |= x[i] != x[i];
        }
        *maxima = highest;
    }
    if (!tainted) return true;
    for (int64_t j = 0; j < n; ++j)
        if (x[j] != x[j]) return false;
    return true;
}

float sum_exp(const float* x, float shift, float factor, int64_t n) {
    const F32 s = set1(shift), f = set1(factor);
    F32 sum[4] = {zero(), zero(), zero(), zero()};
    int64_t i = 0;
    for (; i + 4 * kLanes <= n; i += 4 * kLanes)
        for (int j = 0; j < 4; ++j) sum[j] = add(sum[j], exp(mul(sub(load(x + i + j * kLanes), s), f)));
    for (; i < n; i += kLanes) {
        float a[kLanes];
        for (int j = 0; j < kLanes; ++j) a[j] = i + j < n ? x[i + j] : kLowest;
        sum[0] = add(sum[0], exp(mul(sub(load(a), s), f)));
    }
    return sum_lanes(add(add(sum[0], sum[1]), add(sum[2], sum[3])));
}

}  // namespace

void fill_sampling(KernelTable& table) {
    table.block_maxima = block_maxima;
    table.sum_exp = sum_exp;
}

}  // namespace lpx::LPX_ISA_NS
