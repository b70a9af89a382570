// The most that memory and arithmetic units give: plain reading, and multiply-adds that wait for nothing.

#include "kernels/kernels.h"
#include "kernels/simd_int.h"

namespace lpx::LPX_ISA_NS {

namespace {

// The compiler has to take `a` for used and for changed: nothing is computed ahead or left out.
template <class Vector>
LPX_INLINE void opaque(Vector& a) {
#if defined(__AVX512F__)
    asm volatile("" : "+v"(a.v));
#elif defined(__AVX2__)
    asm volatile("" : "+x"(a.v));
#else
    asm volatile("" : "+m"(a.v));
#endif
}

template <int kStreams, bool kFetch>
void read(const std::byte* data, int64_t stream_bytes) {
    constexpr int kSums = 4;
    Bytes sum[kSums];
    for (int i = 0; i < kSums; ++i) sum[i] = set_bytes(0);
    for (int64_t at = 0; at < stream_bytes; at += kReadStep)
        for (int s = 0; s < kStreams; ++s) {
            const std::byte* const p = data + s * stream_bytes + at;
            if constexpr (kFetch)
                for (int64_t i = 0; i < kReadStep; i += 64) prefetch_stream(p + kFetchAhead + i);
#pragma GCC unroll 8
            for (int i = 0; i < kReadStep / kPartBytes; ++i)
                sum[i % kSums] = bit_xor(sum[i % kSums], load_bytes(p + i * kPartBytes));
        }
    for (int i = 0; i < kSums; ++i) opaque(sum[i]);
}

template <int kStreams>
void read(const std::byte* data, int64_t stream_bytes, bool fetched) {
    if (fetched) return read<kStreams, true>(data, stream_bytes);
    read<kStreams, false>(data, stream_bytes);
}

void read_streams(const std::byte* data, int streams, int64_t stream_bytes, bool fetched) {
    switch (streams) {
        case 1:
            return read<1>(data, stream_bytes, fetched);
        case 2:
            return read<2>(data, stream_bytes, fetched);
        case 4:
            return read<4>(data, stream_bytes, fetched);
        default:
            return read<8>(data, stream_bytes, fetched);
    }
}

// Chains: enough to hide the latency of an instruction, as many as registers hold. Where a product does not depend on
// its chain, the chains need factors of their own.
#if LPX_DOT_ZMM || LPX_DOT_YMM
constexpr int kDotChains = 12, kDotFactors = 1;
#elif defined(__AVX2__)
constexpr int kDotChains = 4, kDotFactors = 4;
#else
constexpr int kDotChains = 2, kDotFactors = 2;
#endif
constexpr int kFloatChains = 12;

template <int kBits>
int64_t peak_dot(int64_t rounds) {
    constexpr int kSteps = 8;  // code vectors of a block
    Bytes codes = set_bytes(1), factors[kDotFactors];
    I32 sum[kDotChains];
    for (int i = 0; i < kDotFactors; ++i) factors[i] = set_bytes(static_cast<uint8_t>(1 + i));
    for (int i = 0; i < kDotFactors; ++i) opaque(factors[i]);
    for (int i = 0; i < kDotChains; ++i) sum[i] = broadcast_i32(i);
    for (int64_t round = 0; round < rounds; ++round) {
        Dot<kBits, kSteps> dot[kDotChains];
#pragma GCC unroll 12
        for (int i = 0; i < kDotChains; ++i) dot[i].begin(sum[i]);
#pragma GCC unroll 8
        for (int step = 0; step < kSteps; ++step) {
            opaque(codes);
#pragma GCC unroll 12
            for (int i = 0; i < kDotChains; ++i) dot[i].add(step, codes, factors[i % kDotFactors]);
        }
#pragma GCC unroll 12
        for (int i = 0; i < kDotChains; ++i) sum[i] = dot[i].total(sum[i]);
    }
    for (int i = 0; i < kDotChains; ++i) opaque(sum[i]);
    return rounds * kDotChains * kSteps * kPartBytes;
}

int64_t peak_f32(int64_t rounds) {
    F32 half = set1(0.5f), one = set1(1.0f), sum[kFloatChains];
    opaque(half);
    opaque(one);
    for (int i = 0; i < kFloatChains; ++i) sum[i] = set1(static_cast<float>(i));
    for (int64_t round = 0; round < rounds; ++round)
#pragma GCC unroll 12
        for (int i = 0; i < kFloatChains; ++i) sum[i] = fma(sum[i], half, one);
    for (int i = 0; i < kFloatChains; ++i) opaque(sum[i]);
    return rounds * kFloatChains * kLanes;
}

#if defined(__AVX512BF16__)
int64_t peak_bf16(int64_t rounds) {
    const __m512 ones = _mm512_set1_ps(1.0f);
    const __m512bh factor = _mm512_cvtne2ps_pbh(ones, ones);
    F32 sum[kFloatChains];
    for (int i = 0; i < kFloatChains; ++i) sum[i] = set1(static_cast<float>(i));
    for (int64_t round = 0; round < rounds; ++round)
#pragma GCC unroll 12
        for (int i = 0; i < kFloatChains; ++i) sum[i].v = _mm512_dpbf16_ps(sum[i].v, factor, factor);
    for (int i = 0; i < kFloatChains; ++i) opaque(sum[i]);
    return rounds * kFloatChains * 2 * kLanes;
}
#endif

}  // namespace

void fill_roofline(KernelTable& table) {
    table.read_streams = read_streams;
    table.peak_int8_4bit = peak_dot<4>;
    table.peak_int8 = peak_dot<8>;
    table.peak_f32 = peak_f32;
#if defined(__AVX512BF16__)
    table.peak_bf16 = peak_bf16;
#endif
}

}  // namespace lpx::LPX_ISA_NS
