// Float vectors of the instruction set that this translation unit is compiled for.
//
// Included only by src/kernels/isa/*.cpp. Everything lives in the namespace of the instruction set, and those files
// use no inline code of the standard library: a template instantiated with wide instructions must never be the copy
// that the linker keeps for everybody.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace lpx::LPX_ISA_NS {

// To be read soon.
inline void prefetch(const void* p) {
    __builtin_prefetch(p);
}

// For weights, keys and values, which come from far: more lines can be under way to the second-level cache than to the
// first, which pays where a block is worked off quickly (docs/performance.md). Weights are fetched kFetchAhead bytes
// ahead of where they are read.
#if defined(__AVX512F__)
inline constexpr int kFetchAhead = 4096;
inline void prefetch_stream(const void* p) {
    __builtin_prefetch(p, 0, 2);
}
#else
inline constexpr int kFetchAhead = 1024;
inline void prefetch_stream(const void* p) {
    __builtin_prefetch(p);
}
#endif

#if defined(__AVX512F__)

inline constexpr int kLanes = 16;

struct F32 {
    __m512 v;
};
inline F32 load(const float* p) {
    return {_mm512_loadu_ps(p)};
}
inline void store(float* p, F32 a) {
    _mm512_storeu_ps(p, a.v);
}
inline F32 set1(float x) {
    return {_mm512_set1_ps(x)};
}
inline F32 zero() {
    return {_mm512_setzero_ps()};
}
inline F32 add(F32 a, F32 b) {
    return {_mm512_add_ps(a.v, b.v)};
}
inline F32 sub(F32 a, F32 b) {
    return {_mm512_sub_ps(a.v, b.v)};
}
inline F32 mul(F32 a, F32 b) {
    return {_mm512_mul_ps(a.v, b.v)};
}
inline F32 div(F32 a, F32 b) {
    return {_mm512_div_ps(a.v, b.v)};
}
inline F32 fma(F32 a, F32 b, F32 c) {
    return {_mm512_fmadd_ps(a.v, b.v, c.v)};
}
inline F32 max(F32 a, F32 b) {
    return {_mm512_max_ps(a.v, b.v)};
}
inline F32 min(F32 a, F32 b) {
    return {_mm512_min_ps(a.v, b.v)};
}
inline F32 load_f16(const uint16_t* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline void store_f16(uint16_t* p, F32 a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
}
inline F32 load_bf16(const uint16_t* p) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}

#elif defined(__AVX2__)

inline constexpr int kLanes = 8;

struct F32 {
    __m256 v;
};
inline F32 load(const float* p) {
    return {_mm256_loadu_ps(p)};
}
inline void store(float* p, F32 a) {
    _mm256_storeu_ps(p, a.v);
}
inline F32 set1(float x) {
    return {_mm256_set1_ps(x)};
}
inline F32 zero() {
    return {_mm256_setzero_ps()};
}
inline F32 add(F32 a, F32 b) {
    return {_mm256_add_ps(a.v, b.v)};
}
inline F32 sub(F32 a, F32 b) {
    return {_mm256_sub_ps(a.v, b.v)};
}
inline F32 mul(F32 a, F32 b) {
    return {_mm256_mul_ps(a.v, b.v)};
}
inline F32 div(F32 a, F32 b) {
    return {_mm256_div_ps(a.v, b.v)};
}
inline F32 fma(F32 a, F32 b, F32 c) {
    return {_mm256_fmadd_ps(a.v, b.v, c.v)};
}
inline F32 max(F32 a, F32 b) {
    return {_mm256_max_ps(a.v, b.v)};
}
inline F32 min(F32 a, F32 b) {
    return {_mm256_min_ps(a.v, b.v)};
}
inline F32 load_f16(const uint16_t* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
inline void store_f16(uint16_t* p, F32 a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
}
inline F32 load_bf16(const uint16_t* p) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(wide, 16))};
}

#else

inline constexpr int kLanes = 8;

typedef float Float8 __attribute__((vector_size(32)));

struct F32 {
    Float8 v;
};
inline F32 load(const float* p) {
    F32 a;
    std::memcpy(&a.v, p, sizeof a.v);
    return a;
}
inline void store(float* p, F32 a) {
    std::memcpy(p, &a.v, sizeof a.v);
}
inline F32 set1(float x) {
    return {Float8{x, x, x, x, x, x, x, x}};
}
inline F32 zero() {
    return set1(0.0f);
}
inline F32 add(F32 a, F32 b) {
    return {a.v + b.v};
}
inline F32 sub(F32 a, F32 b) {
    return {a.v - b.v};
}
inline F32 mul(F32 a, F32 b) {
    return {a.v * b.v};
}
inline F32 div(F32 a, F32 b) {
    return {a.v / b.v};
}
inline F32 fma(F32 a, F32 b, F32 c) {
    return {a.v * b.v + c.v};
}
inline F32 max(F32 a, F32 b) {
    F32 r;
    for (int i = 0; i < kLanes; ++i) r.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i];
    return r;
}
inline F32 min(F32 a, F32 b) {
    F32 r;
    for (int i = 0; i < kLanes; ++i) r.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i];
    return r;
}
inline float widen_f16(uint16_t h) {
    const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
    const uint32_t magnitude = h & 0x7fffu;
    uint32_t bits;
    float f;
    if (magnitude >= 0x7c00u) {  // infinity and NaN
        bits = sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13);
        std::memcpy(&f, &bits, sizeof f);
        return f;
    }
    if (magnitude < 0x400u) {  // zero and subnormal: magnitude * 2^-24
        f = static_cast<float>(magnitude) * 0x1p-24f;
        return sign ? -f : f;
    }
    bits = sign | ((magnitude << 13) + (112u << 23));
    std::memcpy(&f, &bits, sizeof f);
    return f;
}
inline uint16_t narrow_f16(float f) {  // round to nearest even
    uint32_t bits;
    std::memcpy(&bits, &f, sizeof bits);
    const uint32_t sign = (bits >> 16) & 0x8000u;
    bits &= 0x7fffffffu;
    if (bits > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
    if (bits >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
    if (bits < 0x38800000u) {  // subnormal result: the addition rounds to a multiple of 2^-24
        float magnitude;
        std::memcpy(&magnitude, &bits, sizeof magnitude);
        magnitude += 0.5f;
        uint32_t rounded;
        std::memcpy(&rounded, &magnitude, sizeof rounded);
        return static_cast<uint16_t>(sign | (rounded - 0x3f000000u));
    }
    bits += 0xfffu + ((bits >> 13) & 1u);
    return static_cast<uint16_t>(sign | ((bits - (112u << 23)) >> 13));
}
inline F32 load_f16(const uint16_t* p) {
    F32 r;
    for (int i = 0; i < kLanes; ++i) r.v[i] = widen_f16(p[i]);
    return r;
}
inline void store_f16(uint16_t* p, F32 a) {
    for (int i = 0; i < kLanes; ++i) p[i] = narrow_f16(a.v[i]);
}
inline F32 load_bf16(const uint16_t* p) {
    F32 r;
    for (int i = 0; i < kLanes; ++i) {
        const uint32_t bits = static_cast<uint32_t>(p[i]) << 16;
        float f;
        std::memcpy(&f, &bits, sizeof f);
        r.v[i] = f;
    }
    return r;
}

#endif

// Sum and maximum over the lanes, in a fixed order.
inline float sum_lanes(F32 a) {
#if defined(__AVX512F__) || defined(__AVX2__)
#if defined(__AVX512F__)
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
#else
    const __m256 eight = a.v;
#endif
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
#else
    float lane[kLanes];
    store(lane, a);
    for (int width = kLanes / 2; width > 0; width /= 2)
        for (int i = 0; i < width; ++i) lane[i] += lane[i + width];
    return lane[0];
#endif
}
inline float max_lanes(F32 a) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps(a.v);
#elif defined(__AVX2__)
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
#else
    float lane[kLanes];
    store(lane, a);
    for (int i = 1; i < kLanes; ++i) lane[0] = lane[i] > lane[0] ? lane[i] : lane[0];
    return lane[0];
#endif
}

}  // namespace lpx::LPX_ISA_NS
