// Vectors of pairs of 16-bit numbers and their exact dot products, and the bits that pairs of codes hold, for the
// instruction set of this translation unit.
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

// The lowest bits of the codes [32 dimensions][2 tokens]: a word of 32 for each token, the first dimension lowest.
inline void store_lowest_bits(const void* codes, uint32_t* words) {
    const __m512i both = _mm512_loadu_si512(codes);
    words[0] = _mm512_test_epi16_mask(both, _mm512_set1_epi16(0x0001));
    words[1] = _mm512_test_epi16_mask(both, _mm512_set1_epi16(0x0100));
}
// float16 numbers in the low or the high halves of kLanes words.
inline F32 load_low_f16(const uint32_t* words) {
    return {_mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_loadu_si512(words)))};
}
inline F32 load_high_f16(const uint32_t* words) {
    return {_mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_loadu_si512(words), 16)))};
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

// The lowest bits of the codes [32 dimensions][2 tokens]: a word of 32 for each token, the first dimension lowest.
inline void store_lowest_bits(const void* codes, uint32_t* words) {
    // Eight dimensions of a token side by side, then those of the other token; then sixteen.
    const __m256i order = _mm256_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15,  //
                                           0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    const auto bits_of = [&](const __m256i* p) {
        const __m256i by_token = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(_mm256_loadu_si256(p), order), 0xd8);
        return static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_slli_epi16(by_token, 7)));
    };
    const uint32_t low = bits_of(static_cast<const __m256i*>(codes));
    const uint32_t high = bits_of(static_cast<const __m256i*>(codes) + 1);
    words[0] = (low & 0xffff) | high << 16;
    words[1] = low >> 16 | (high & 0xffff0000);
}
// float16 numbers in the low or the high halves of kLanes words.
inline F32 load_low_f16(const uint32_t* words) {
    const __m256i low =
        _mm256_and_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(words)), _mm256_set1_epi32(0xffff));
    return {_mm256_cvtph_ps(_mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1)))};
}
inline F32 load_high_f16(const uint32_t* words) {
    const __m256i high = _mm256_srli_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(words)), 16);
    return {_mm256_cvtph_ps(_mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1)))};
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

// The lowest bits of the codes [32 dimensions][2 tokens]: a word of 32 for each token, the first dimension lowest.
inline void store_lowest_bits(const void* codes, uint32_t* words) {
    const auto* const bytes = static_cast<const uint8_t*>(codes);
    for (int token = 0; token < 2; ++token) {
        words[token] = 0;
        for (int d = 0; d < 32; ++d) words[token] |= uint32_t{bytes[2 * d + token] & 1u} << d;
    }
}
// float16 numbers in the low or the high halves of kLanes words.
inline F32 load_f16_of(const uint32_t* words, int shift) {
    uint16_t halves[kLanes];
    for (int i = 0; i < kLanes; ++i) halves[i] = static_cast<uint16_t>(words[i] >> shift);
    return load_f16(halves);
}
inline F32 load_low_f16(const uint32_t* words) {
    return load_f16_of(words, 0);
}
inline F32 load_high_f16(const uint32_t* words) {
    return load_f16_of(words, 16);
}

#endif

}  // namespace lpx::LPX_ISA_NS
