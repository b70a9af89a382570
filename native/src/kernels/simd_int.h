// Vectors of 8-bit codes and the integer dot products on them, for the instruction set of this translation unit.
//
// Same rules as simd.h: only for src/kernels/isa/*.cpp, everything inside the namespace of the instruction set.
#pragma once

#include "simd.h"

#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
#define LPX_DOT_ZMM 1
#elif defined(__AVXVNNI__)
#define LPX_DOT_YMM 1
#endif

namespace lpx::LPX_ISA_NS {

#define LPX_INLINE inline __attribute__((always_inline))

inline constexpr int kParts = 16 / kLanes;     // vectors per group of 16 output rows
inline constexpr int kPartBytes = 4 * kLanes;  // bytes of a vector of codes: 4 columns of kLanes rows

#if defined(__AVX512F__)

struct Bytes {
    __m512i v;
};
struct I32 {
    __m512i v;
};
inline Bytes load_bytes(const void* p) {
    return {_mm512_loadu_si512(p)};
}
inline void store_bytes(void* p, Bytes a) {
    _mm512_storeu_si512(p, a.v);
}
inline Bytes set_bytes(uint8_t x) {
    return {_mm512_set1_epi8(static_cast<char>(x))};
}
inline Bytes bit_and(Bytes a, Bytes b) {
    return {_mm512_and_si512(a.v, b.v)};
}
// Bits of `a` where `mask` has them, of `b` elsewhere.
inline Bytes bit_select(Bytes mask, Bytes a, Bytes b) {
    return {_mm512_ternarylogic_epi32(mask.v, a.v, b.v, 0xca)};
}
inline Bytes bit_or(Bytes a, Bytes b) {
    return {_mm512_or_si512(a.v, b.v)};
}
inline Bytes bit_xor(Bytes a, Bytes b) {
    return {_mm512_xor_si512(a.v, b.v)};
}
// Shifts cross byte borders; the caller masks.
template <int kLeft>
inline Bytes shift(Bytes a) {
    if constexpr (kLeft > 0) return {_mm512_slli_epi16(a.v, kLeft)};
    if constexpr (kLeft < 0) return {_mm512_srli_epi16(a.v, -kLeft)};
    return a;
}
// The same for a count known at run time.
inline Bytes shift_right(Bytes a, int count) {
    return {_mm512_srl_epi16(a.v, _mm_cvtsi32_si128(count))};
}
inline Bytes load_table(const void* p) {
    return {_mm512_broadcast_i32x4(_mm_loadu_si128(static_cast<const __m128i*>(p)))};
}
inline Bytes lookup(Bytes table, Bytes index) {
    return {_mm512_shuffle_epi8(table.v, index.v)};
}
inline Bytes broadcast_quad(const int8_t* p) {
    int32_t quad;
    std::memcpy(&quad, p, sizeof quad);
    return {_mm512_set1_epi32(quad)};
}
inline I32 broadcast_i32(int32_t x) {
    return {_mm512_set1_epi32(x)};
}
inline I32 add(I32 a, I32 b) {
    return {_mm512_add_epi32(a.v, b.v)};
}
inline I32 times16(I32 a) {
    return {_mm512_slli_epi32(a.v, 4)};
}
inline F32 to_float(I32 a) {
    return {_mm512_cvtepi32_ps(a.v)};
}
inline F32 load_i8(const void* p) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p))))};
}
inline F32 load_u8(const void* p) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p))))};
}
inline F32 load_low_nibbles(const void* p) {
    const __m512i wide = _mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
    return {_mm512_cvtepi32_ps(_mm512_and_si512(wide, _mm512_set1_epi32(15)))};
}
inline F32 load_high_nibbles(const void* p) {
    const __m512i wide = _mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
    return {_mm512_cvtepi32_ps(_mm512_srli_epi32(wide, 4))};
}

#elif defined(__AVX2__)

struct Bytes {
    __m256i v;
};
struct I32 {
    __m256i v;
};
inline Bytes load_bytes(const void* p) {
    return {_mm256_loadu_si256(static_cast<const __m256i*>(p))};
}
inline void store_bytes(void* p, Bytes a) {
    _mm256_storeu_si256(static_cast<__m256i*>(p), a.v);
}
inline Bytes set_bytes(uint8_t x) {
    return {_mm256_set1_epi8(static_cast<char>(x))};
}
inline Bytes bit_and(Bytes a, Bytes b) {
    return {_mm256_and_si256(a.v, b.v)};
}
// Bits of `a` where `mask` has them, of `b` elsewhere.
inline Bytes bit_select(Bytes mask, Bytes a, Bytes b) {
    return {_mm256_or_si256(_mm256_and_si256(mask.v, a.v), _mm256_andnot_si256(mask.v, b.v))};
}
inline Bytes bit_or(Bytes a, Bytes b) {
    return {_mm256_or_si256(a.v, b.v)};
}
inline Bytes bit_xor(Bytes a, Bytes b) {
    return {_mm256_xor_si256(a.v, b.v)};
}
// Shifts cross byte borders; the caller masks.
template <int kLeft>
inline Bytes shift(Bytes a) {
    if constexpr (kLeft > 0) return {_mm256_slli_epi16(a.v, kLeft)};
    if constexpr (kLeft < 0) return {_mm256_srli_epi16(a.v, -kLeft)};
    return a;
}
// The same for a count known at run time.
inline Bytes shift_right(Bytes a, int count) {
    return {_mm256_srl_epi16(a.v, _mm_cvtsi32_si128(count))};
}
inline Bytes load_table(const void* p) {
    return {_mm256_broadcastsi128_si256(_mm_loadu_si128(static_cast<const __m128i*>(p)))};
}
inline Bytes lookup(Bytes table, Bytes index) {
    return {_mm256_shuffle_epi8(table.v, index.v)};
}
inline Bytes broadcast_quad(const int8_t* p) {
    int32_t quad;
    std::memcpy(&quad, p, sizeof quad);
    return {_mm256_set1_epi32(quad)};
}
inline I32 broadcast_i32(int32_t x) {
    return {_mm256_set1_epi32(x)};
}
inline I32 add(I32 a, I32 b) {
    return {_mm256_add_epi32(a.v, b.v)};
}
inline I32 times16(I32 a) {
    return {_mm256_slli_epi32(a.v, 4)};
}
inline F32 to_float(I32 a) {
    return {_mm256_cvtepi32_ps(a.v)};
}
inline F32 load_i8(const void* p) {
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p))))};
}
inline F32 load_u8(const void* p) {
    return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p))))};
}
inline F32 load_low_nibbles(const void* p) {
    const __m256i wide = _mm256_cvtepu8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p)));
    return {_mm256_cvtepi32_ps(_mm256_and_si256(wide, _mm256_set1_epi32(15)))};
}
inline F32 load_high_nibbles(const void* p) {
    const __m256i wide = _mm256_cvtepu8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p)));
    return {_mm256_cvtepi32_ps(_mm256_srli_epi32(wide, 4))};
}

#else

typedef uint8_t Byte32 __attribute__((vector_size(32)));
typedef int16_t Short16 __attribute__((vector_size(32)));
typedef int32_t Int8 __attribute__((vector_size(32)));

struct Bytes {
    Byte32 v;
};
struct I32 {
    Int8 v;
};
inline Bytes load_bytes(const void* p) {
    Bytes a;
    std::memcpy(&a.v, p, sizeof a.v);
    return a;
}
inline void store_bytes(void* p, Bytes a) {
    std::memcpy(p, &a.v, sizeof a.v);
}
inline Bytes set_bytes(uint8_t x) {
    return {Byte32{} + x};
}
inline Bytes bit_and(Bytes a, Bytes b) {
    return {a.v & b.v};
}
inline Bytes bit_select(Bytes mask, Bytes a, Bytes b) {
    return {(mask.v & a.v) | (~mask.v & b.v)};
}
inline Bytes bit_or(Bytes a, Bytes b) {
    return {a.v | b.v};
}
inline Bytes bit_xor(Bytes a, Bytes b) {
    return {a.v ^ b.v};
}
template <int kLeft>
inline Bytes shift(Bytes a) {
    if constexpr (kLeft > 0) return {a.v << kLeft};
    if constexpr (kLeft < 0) return {a.v >> -kLeft};
    return a;
}
inline Bytes shift_right(Bytes a, int count) {
    return {a.v >> count};
}
inline Bytes load_table(const void* p) {
    Bytes a{};
    std::memcpy(&a.v, p, 16);
    return a;
}
inline Bytes lookup(Bytes table, Bytes index) {
    for (int i = 0; i < 32; ++i) index.v[i] = table.v[index.v[i]];
    return index;
}
inline Bytes broadcast_quad(const int8_t* p) {
    int32_t quad;
    std::memcpy(&quad, p, sizeof quad);
    return {reinterpret_cast<Byte32>(Int8{} + quad)};
}
inline I32 broadcast_i32(int32_t x) {
    return {Int8{} + x};
}
inline I32 add(I32 a, I32 b) {
    return {a.v + b.v};
}
inline I32 times16(I32 a) {
    return {a.v << 4};
}
inline F32 to_float(I32 a) {
    return {__builtin_convertvector(a.v, Float8)};
}
inline F32 load_i8(const void* p) {
    F32 r;
    for (int i = 0; i < 8; ++i) r.v[i] = static_cast<float>(static_cast<const int8_t*>(p)[i]);
    return r;
}
inline F32 load_u8(const void* p) {
    F32 r;
    for (int i = 0; i < 8; ++i) r.v[i] = static_cast<float>(static_cast<const uint8_t*>(p)[i]);
    return r;
}
inline F32 load_low_nibbles(const void* p) {
    F32 r;
    for (int i = 0; i < 8; ++i) r.v[i] = static_cast<float>(static_cast<const uint8_t*>(p)[i] & 15);
    return r;
}
inline F32 load_high_nibbles(const void* p) {
    F32 r;
    for (int i = 0; i < 8; ++i) r.v[i] = static_cast<float>(static_cast<const uint8_t*>(p)[i] >> 4);
    return r;
}

#endif

// Exact dot products of kSteps vectors of codes with quads of activations (|a| <= 127), lane by lane: total() is
// `initial` plus the sum over all steps. kBits bounds the codes: 4, 5, 6: unsigned; 8: signed, at least -128, or with
// kUnsigned8 those plus 128.
#if LPX_DOT_ZMM || LPX_DOT_YMM

inline constexpr bool kUnsigned8 = true;  // the instruction takes unsigned times signed bytes
// Whether a Dot occupies one register.
template <int kBits>
inline constexpr bool kSmallDot = true;

template <int kBits, int kSteps>
struct Dot {
    I32 sum;

    LPX_INLINE void begin(I32 initial) { sum = initial; }
    LPX_INLINE void add(int /*step*/, Bytes codes, Bytes quad) {
#if LPX_DOT_ZMM
        sum.v = _mm512_dpbusd_epi32(sum.v, codes.v, quad.v);
#else
        sum.v = _mm256_dpbusd_avx_epi32(sum.v, codes.v, quad.v);
#endif
    }
    LPX_INLINE I32 total(I32 /*initial*/) const { return sum; }
};

#elif defined(__AVX2__)

inline constexpr bool kUnsigned8 = false;
template <int kBits>
inline constexpr bool kSmallDot = kBits <= 4 || kBits == 8;

template <int kBits, int kSteps>
struct Dot {
    // Pair sums that 16 bits hold: kLimit * 2 * (2^kBits - 1) * 127 <= 32767, and 2 * 128 * 127 for signed 8 bits.
    static constexpr int kLimit = kBits <= 4 ? 8 : kBits == 5 ? 4 : kBits == 6 ? 2 : 1;
    __m256i narrow, wide;

    LPX_INLINE void begin(I32 /*initial*/) {}
    LPX_INLINE void add(int step, Bytes codes, Bytes quad) {
        const __m256i pairs = kBits == 8
                                  ? _mm256_maddubs_epi16(_mm256_abs_epi8(codes.v), _mm256_sign_epi8(quad.v, codes.v))
                                  : _mm256_maddubs_epi16(codes.v, quad.v);
        narrow = step % kLimit == 0 ? pairs : _mm256_add_epi16(narrow, pairs);
        asm("" : "+x"(narrow));  // else the compiler adds in another order that needs more registers
        if (step % kLimit == kLimit - 1 || step == kSteps - 1) {
            const __m256i quads = _mm256_madd_epi16(narrow, _mm256_set1_epi16(1));
            wide = step < kLimit ? quads : _mm256_add_epi32(wide, quads);
        }
    }
    LPX_INLINE I32 total(I32 initial) const { return {_mm256_add_epi32(wide, initial.v)}; }
};

#else

inline constexpr bool kUnsigned8 = false;
template <int kBits>
inline constexpr bool kSmallDot = false;

template <int kBits, int kSteps>
struct Dot {
    I32 sum;

    LPX_INLINE void begin(I32 initial) { sum = initial; }
    LPX_INLINE void add(int /*step*/, Bytes codes, Bytes quad) {
        // Sums of two products fit 16 bits: 2 * 128 * 127 at most.
        const Short16 w = reinterpret_cast<Short16>(codes.v), a = reinterpret_cast<Short16>(quad.v);
        const Short16 even = kBits == 8 ? (w << 8) >> 8 : w & 0xff;
        const Short16 pairs = even * ((a << 8) >> 8) + (w >> 8) * (a >> 8);
        const Int8 wide = reinterpret_cast<Int8>(pairs);
        sum.v += ((wide << 16) >> 16) + (wide >> 16);
    }
    LPX_INLINE I32 total(I32 /*initial*/) const { return sum; }
};

#endif

}  // namespace lpx::LPX_ISA_NS
