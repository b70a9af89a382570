// Rotation of keys and queries into a basis in which no channel is alone.
//
// Included only by src/kernels/isa/*.cpp, under the same rules as simd.h.
#pragma once

#include "kv_layout.h"
#include "simd.h"

namespace lpx::LPX_ISA_NS {

// Lane i of the result is lane i ^ kDistance of `a`.
template <int kDistance>
inline F32 swap_lanes(F32 a) {
#if defined(__AVX512F__)
    if constexpr (kDistance == 1) return {_mm512_permute_ps(a.v, 0xb1)};
    if constexpr (kDistance == 2) return {_mm512_permute_ps(a.v, 0x4e)};
    if constexpr (kDistance == 4) return {_mm512_shuffle_f32x4(a.v, a.v, 0xb1)};
    return {_mm512_shuffle_f32x4(a.v, a.v, 0x4e)};
#elif defined(__AVX2__)
    if constexpr (kDistance == 1) return {_mm256_permute_ps(a.v, 0xb1)};
    if constexpr (kDistance == 2) return {_mm256_permute_ps(a.v, 0x4e)};
    return {_mm256_permute2f128_ps(a.v, a.v, 1)};
#else
    F32 r;
    for (int i = 0; i < kLanes; ++i) r.v[i] = a.v[i ^ kDistance];
    return r;
#endif
}

// One step within vectors: of each two lanes kDistance apart their sum, and their difference.
template <int kDistance>
inline F32 sum_and_difference(F32 a) {
    float sign[kLanes];
    for (int i = 0; i < kLanes; ++i) sign[i] = i & kDistance ? -1.0f : 1.0f;
    return fma(a, load(sign), swap_lanes<kDistance>(a));
}

// A padded head in the orthonormal basis of Walsh and Hadamard, over the largest powers of two that fit one behind the
// other. A few channels of keys are much larger than the others, a hundred times where keys have a bias, and would take
// all codes for themselves. Products of rotated vectors are what they were.
inline void rotate_head(float* x, int64_t padded) {
    while (padded > 0) {
        int64_t count = kHeadDimStep;
        while (2 * count <= padded) count *= 2;
        const F32 norm = set1(1.0f / __builtin_sqrtf(static_cast<float>(count)));
        for (int64_t i = 0; i < count; i += kLanes) {
            F32 a = sum_and_difference<4>(sum_and_difference<2>(sum_and_difference<1>(load(x + i))));
            if constexpr (kLanes > 8) a = sum_and_difference<8>(a);
            store(x + i, mul(a, norm));
        }
        for (int64_t half = kLanes; half < count; half *= 2)
            for (int64_t i = 0; i < count; i += 2 * half)
                for (int64_t j = i; j < i + half; j += kLanes) {
                    const F32 a = load(x + j), b = load(x + j + half);
                    store(x + j, add(a, b));
                    store(x + j + half, sub(a, b));
                }
        x += count;
        padded -= count;
    }
}

}  // namespace lpx::LPX_ISA_NS
