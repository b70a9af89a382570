// exp and tanh on the vectors of simd.h, to about one unit in the last place of float32.
//
// Included only by src/kernels/isa/*.cpp, under the same rules as simd.h.
#pragma once

#include "simd.h"

namespace lpx::LPX_ISA_NS {

// `scale_by_power(y, magic)`: y * 2^n for magic = n + kRoundMagic, |n| <= 126 and y near 1; n sits in the low mantissa
// bits. `select_less(a, b, x, y)`: a < b ? x : y per lane, y where one is NaN.
inline constexpr float kRoundMagic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer

#if defined(__AVX512F__)

inline F32 scale_by_power(F32 y, F32 magic) {
    const __m512i exponent = _mm512_slli_epi32(_mm512_castps_si512(magic.v), 23);
    return {_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(y.v), exponent))};
}
inline F32 select_less(F32 a, F32 b, F32 x, F32 y) {
    return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), y.v, x.v)};
}
inline F32 absolute(F32 a) {
    return {_mm512_abs_ps(a.v)};
}

#elif defined(__AVX2__)

inline F32 scale_by_power(F32 y, F32 magic) {
    const __m256i exponent = _mm256_slli_epi32(_mm256_castps_si256(magic.v), 23);
    return {_mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(y.v), exponent))};
}
inline F32 select_less(F32 a, F32 b, F32 x, F32 y) {
    return {_mm256_blendv_ps(y.v, x.v, _mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ))};
}
inline F32 absolute(F32 a) {
    return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.v)};
}

#else

inline F32 scale_by_power(F32 y, F32 magic) {
    uint32_t bits[kLanes], exponent[kLanes];
    std::memcpy(bits, &y.v, sizeof bits);
    std::memcpy(exponent, &magic.v, sizeof exponent);
    for (int i = 0; i < kLanes; ++i) bits[i] += exponent[i] << 23;
    std::memcpy(&y.v, bits, sizeof bits);
    return y;
}
inline F32 select_less(F32 a, F32 b, F32 x, F32 y) {
    F32 r;
    for (int i = 0; i < kLanes; ++i) r.v[i] = a.v[i] < b.v[i] ? x.v[i] : y.v[i];
    return r;
}
inline F32 absolute(F32 a) {
    F32 r;
    for (int i = 0; i < kLanes; ++i) r.v[i] = __builtin_fabsf(a.v[i]);
    return r;
}

#endif

// e^x; exactly 0 below -87.3 (where float32 gets subnormal), clamped above 88.3. NaN stays NaN.
inline F32 exp(F32 x) {
    const F32 lowest = set1(-87.3f);
    const F32 clamped = min(set1(88.3f), max(lowest, x));  // x second: NaN passes
    const F32 magic = fma(clamped, set1(1.44269504f), set1(kRoundMagic));
    const F32 n = sub(magic, set1(kRoundMagic));
    // r = x - n ln 2 with ln 2 in two parts, the first short enough that n times it is exact.
    F32 r = fma(n, set1(-0.693359375f), clamped);
    r = fma(n, set1(2.12194440e-4f), r);
    // Taylor to r^7 / 7!: |r| <= ln 2 / 2 leaves 5e-9.
    F32 p = fma(r, set1(1.0f / 5040), set1(1.0f / 720));
    p = fma(p, r, set1(1.0f / 120));
    p = fma(p, r, set1(1.0f / 24));
    p = fma(p, r, set1(1.0f / 6));
    p = fma(p, r, set1(0.5f));
    p = fma(p, mul(r, r), add(r, set1(1.0f)));
    return select_less(x, lowest, zero(), scale_by_power(p, magic));
}

inline F32 tanh(F32 x) {
    const F32 magnitude = absolute(x);
    // Near 0 an odd polynomial, minimax on [0, 0.625]; beyond, 1 - 2 / (e^2|x| + 1), which cancels nothing there.
    const F32 z = mul(x, x);
    F32 p = fma(z, set1(-0.005704987f), set1(0.020639088f));
    p = fma(p, z, set1(-0.053739715f));
    p = fma(p, z, set1(0.13331442f));
    p = fma(p, z, set1(-0.3333328f));
    const F32 near = fma(mul(p, z), x, x);
    const F32 far = sub(set1(1.0f), div(set1(2.0f), add(exp(add(magnitude, magnitude)), set1(1.0f))));
    const F32 signed_far = select_less(x, zero(), sub(zero(), far), far);
    return select_less(magnitude, set1(0.625f), near, signed_far);
}

}  // namespace lpx::LPX_ISA_NS
