// Vectors of pairs of 16-bit numbers and their exact dot products, for the instruction set of this translation unit.
//
// Same rules as simd.h: only for src/kernels/isa/*.cpp, everything inside the namespace of the instruction set.
#pragma once

#include "simd_int.h"

namespace lpx::LPX_ISA_NS {

#if defined(__AVX512F__)

struct Pairs {
    __m512i v;
};
// 2 kLanes bytes, a pair for each lane.
inline Pairs widen_signed(const void* p) {
    return {_mm512_cvtepi8_epi16(_mm256_loadu_si256(static_cast<const __m256i*>(p)))};
}
inline Pairs widen_unsigned(const void* p) {
    return {_mm512_cvtepu8_epi16(_mm256_loadu_si256(static_cast<const __m256i*>(p)))};
}
// The halves of bytes that were widened.
inline Pairs low_nibbles(Pairs a) {
    return {_mm512_and_si512(a.v, _mm512_set1_epi16(15))};
}
inline Pairs high_nibbles(Pairs a) {
    return {_mm512_srli_epi16(a.v, 4)};
}
inline Pairs broadcast_pair(const int16_t* p) {
    int32_t pair;
    std::memcpy(&pair, p, sizeof pair);
    return {_mm512_set1_epi32(pair)};
}
// sum + a[0] * b[0] + a[1] * b[1] in each lane.
inline I32 multiply_add(I32 sum, Pairs a, Pairs b) {
#if LPX_DOT_ZMM
    return {_mm512_dpwssd_epi32(sum.v, a.v, b.v)};
#else
    return {_mm512_add_epi32(sum.v, _mm512_madd_epi16(a.v, b.v))};
#endif
}
// kLanes values of magnitude at most 32767, rounded to nearest even.
inline void store_rounded(int16_t* p, F32 a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(a.v)));
}
inline void store_rounded(int16_t* p, F32 a, F32 b) {
    store_rounded(p, a);
    store_rounded(p + kLanes, b);
}
// kLanes finite values, rounded to nearest even.
inline void store_bf16(uint16_t* p, F32 a) {
    const __m512i bits = _mm512_castps_si512(a.v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
}

#elif defined(__AVX2__)

struct Pairs {
    __m256i v;
};
// 2 kLanes bytes, a pair for each lane.
inline Pairs widen_signed(const void* p) {
    return {_mm256_cvtepi8_epi16(_mm_loadu_si128(static_cast<const __m128i*>(p)))};
}
inline Pairs widen_unsigned(const void* p) {
    return {_mm256_cvtepu8_epi16(_mm_loadu_si128(static_cast<const __m128i*>(p)))};
}
// The halves of bytes that were widened.
inline Pairs low_nibbles(Pairs a) {
    return {_mm256_and_si256(a.v, _mm256_set1_epi16(15))};
}
inline Pairs high_nibbles(Pairs a) {
    return {_mm256_srli_epi16(a.v, 4)};
}
inline Pairs broadcast_pair(const int16_t* p) {
    int32_t pair;
    std::memcpy(&pair, p, sizeof pair);
    return {_mm256_set1_epi32(pair)};
}
// sum + a[0] * b[0] + a[1] * b[1] in each lane.
inline I32 multiply_add(I32 sum, Pairs a, Pairs b) {
#if LPX_DOT_YMM
    return {_mm256_dpwssd_avx_epi32(sum.v, a.v, b.v)};
#else
    return {_mm256_add_epi32(sum.v, _mm256_madd_epi16(a.v, b.v))};
#endif
}
// The low halves of 8 numbers of 32 bits.
inline void store_halves(void* p, __m256i a, __m128i (*pack)(__m128i, __m128i)) {
    _mm_storeu_si128(static_cast<__m128i*>(p), pack(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1)));
}
// kLanes values of magnitude at most 32767, rounded to nearest even.
inline void store_rounded(int16_t* p, F32 a) {
    store_halves(p, _mm256_cvtps_epi32(a.v), [](__m128i x, __m128i y) { return _mm_packs_epi32(x, y); });
}
inline void store_rounded(int16_t* p, F32 a, F32 b) {
    const __m256i packed = _mm256_packs_epi32(_mm256_cvtps_epi32(a.v), _mm256_cvtps_epi32(b.v));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xd8));
}
// kLanes finite values, rounded to nearest even.
inline void store_bf16(uint16_t* p, F32 a) {
    const __m256i bits = _mm256_castps_si256(a.v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    store_halves(p, _mm256_srli_epi32(rounded, 16), [](__m128i x, __m128i y) { return _mm_packus_epi32(x, y); });
}

#else

struct Pairs {
    Short16 v;
};
inline Pairs widen_signed(const void* p) {
    typedef int8_t Signed16 __attribute__((vector_size(16)));
    Signed16 bytes;
    std::memcpy(&bytes, p, sizeof bytes);
    return {__builtin_convertvector(bytes, Short16)};
}
inline Pairs widen_unsigned(const void* p) {
    typedef uint8_t Unsigned16 __attribute__((vector_size(16)));
    Unsigned16 bytes;
    std::memcpy(&bytes, p, sizeof bytes);
    return {__builtin_convertvector(bytes, Short16)};
}
inline Pairs low_nibbles(Pairs a) {
    return {a.v & 15};
}
inline Pairs high_nibbles(Pairs a) {
    return {a.v >> 4};
}
inline Pairs broadcast_pair(const int16_t* p) {
    int32_t pair;
    std::memcpy(&pair, p, sizeof pair);
    return {reinterpret_cast<Short16>(Int8{} + pair)};
}
inline I32 multiply_add(I32 sum, Pairs a, Pairs b) {
    const Int8 x = reinterpret_cast<Int8>(a.v), y = reinterpret_cast<Int8>(b.v);
    return {sum.v + ((x << 16) >> 16) * ((y << 16) >> 16) + (x >> 16) * (y >> 16)};
}
inline void store_rounded(int16_t* p, F32 a) {
    for (int i = 0; i < kLanes; ++i) {
        const float magic = 12582912.0f, shifted = a.v[i] + magic;  // 1.5 * 2^23: adding it rounds to an integer
        int32_t bits, magic_bits;
        std::memcpy(&bits, &shifted, sizeof bits);
        std::memcpy(&magic_bits, &magic, sizeof magic_bits);
        p[i] = static_cast<int16_t>(bits - magic_bits);
    }
}
inline void store_rounded(int16_t* p, F32 a, F32 b) {
    store_rounded(p, a);
    store_rounded(p + kLanes, b);
}
inline void store_bf16(uint16_t* p, F32 a) {
    uint32_t bits[kLanes];
    std::memcpy(bits, &a.v, sizeof bits);
    for (int i = 0; i < kLanes; ++i) p[i] = static_cast<uint16_t>((bits[i] + 0x7fffu + (bits[i] >> 16 & 1u)) >> 16);
}

#endif

}  // namespace lpx::LPX_ISA_NS
