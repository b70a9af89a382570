// Codes of keys, values and queries; see kernels/kv_layout.h for where they lie.
//
// Included only by src/kernels/isa/*.cpp, under the same rules as simd.h.
#pragma once

#include "kv_layout.h"
#include "simd_math.h"
#include "simd_pairs.h"

namespace lpx::LPX_ISA_NS {

inline constexpr float kMostF16 = 65504.0f;
inline constexpr float kLargestCode = 32767.0f;  // of queries and of softmax weights
inline constexpr float kSmallestPeak = 1e-30f;   // a peak below counts as zero: its inverse stays finite

struct GroupScale {
    uint16_t scale, minimum;  // float16
    float step;               // the scale
};

// Scales that the codes of values hold, [groups][tokens of a block]: those of values in the high halves, and those of
// keys in the low ones.
struct HeldScales {
    uint32_t of[kMostKvGroups][kKvBlock];
};

inline void unpack_scales(const KvLayout& layout, const std::byte* block, HeldScales& held) {
    constexpr int kPairBytes = 2 * kKvGroup;
    const std::byte* codes = block + layout.values;
    for (int t = 0; t < kKvBlock; t += 2)
        for (int64_t g = 0; g < layout.groups; ++g, codes += kPairBytes) store_lowest_bits(codes, held.of[g] + t);
}

inline float round_f16(float x, uint16_t& half) {
    uint16_t halves[kLanes];
    store_f16(halves, set1(x));
    half = halves[0];
    float lane[kLanes];
    store(lane, load_f16(halves));
    return lane[0];
}

// Of kKvGroup values of magnitude at most kMostF16, those beyond the head repeating others. The 2^-25 rounds subnormal
// scales up, so that codes reach the peak.
template <int kBits>
inline GroupScale code_group(const float* x, int16_t* codes) {
    GroupScale result{};
    float lowest = 0.0f, highest = 127.0f, minimum = 0.0f, scale;
    if constexpr (kBits == 8) {
        F32 peak = zero();
        for (int i = 0; i < kKvGroup; i += kLanes) peak = max(peak, absolute(load(x + i)));
        scale = round_f16(max_lanes(peak) * (1.0f / 127) + 0x1p-25f, result.scale);
        lowest = -127.0f;
    } else {
        F32 most = load(x), least = load(x);
        for (int i = kLanes; i < kKvGroup; i += kLanes) {
            most = max(most, load(x + i));
            least = min(least, load(x + i));
        }
        const float bottom = -max_lanes(sub(zero(), least));
        minimum = round_f16(bottom, result.minimum);
        scale = round_f16((max_lanes(most) - bottom) * (1.0f / 15) + 0x1p-25f, result.scale);
        highest = 15.0f;
    }
    const F32 inverse = set1(scale > 0.0f ? 1.0f / scale : 0.0f);
    for (int i = 0; i < kKvGroup; i += kLanes) {
        const F32 code = mul(sub(load(x + i), set1(minimum)), inverse);
        store_rounded(codes + i, min(max(code, set1(lowest)), set1(highest)));
    }
    result.step = scale;
    return result;
}

// Codes of 8 bits whose lowest bits, from dimension `first` on, are those of `bits`: the nearest ones that have them.
inline void code_with_bits(const float* x, float step, uint32_t bits, int first, int16_t* codes) {
    float lowest[kKvGroup];
    int16_t halves[kKvGroup];
    for (int i = first; i < kKvGroup; ++i) lowest[i] = static_cast<float>(bits >> i & 1);
    const F32 inverse = set1(step > 0.0f ? 1.0f / step : 0.0f);
    for (int i = first; i < kKvGroup; i += kLanes) {
        const F32 bit = load(lowest + i);
        const F32 half = mul(sub(mul(load(x + i), inverse), bit), set1(0.5f));
        store_rounded(halves + i, min(max(half, sub(set1(-63.0f), bit)), set1(63.0f)));
    }
    for (int i = first; i < kKvGroup; ++i) codes[i] = static_cast<int16_t>(2 * halves[i] + (bits >> i & 1));
}

// 16-bit codes of a group of a query: with twice the bits of the keys its own error does not count. `scale` becomes NaN
// when a value is NaN or infinite; `sum` is that of the codes times the scale.
inline void code_query(const float* x, int16_t* codes, int count, float& scale, float& sum) {
    F32 peak = zero(), not_finite = zero();
    for (int i = 0; i < count; i += kLanes) {
        const F32 value = load(x + i);
        peak = max(absolute(value), peak);
        not_finite = add(not_finite, sub(value, value));  // 0 or NaN
    }
    const float highest = max_lanes(peak), fault = sum_lanes(not_finite);
    const F32 inverse = set1(highest > kSmallestPeak && fault == 0.0f ? kLargestCode / highest : 0.0f);
    int32_t total = 0;
    for (int i = 0; i < count; i += kLanes)
        store_rounded(codes + i, min(max(mul(load(x + i), inverse), set1(-kLargestCode)), set1(kLargestCode)));
    for (int i = 0; i < count; ++i) total += codes[i];
    scale = highest > kSmallestPeak || fault != 0.0f ? highest * (1.0f / kLargestCode) + fault : 0.0f;
    sum = static_cast<float>(total) * scale;
}

// The scales, or minima, of one group of dimensions for the tokens of a block.
struct TokenFactors {
    static constexpr int kVectors = kKvBlock / kLanes;
    F32 of[kVectors];

    explicit TokenFactors(const uint16_t* halves) {
        for (int v = 0; v < kVectors; ++v) of[v] = load_f16(halves + v * kLanes);
    }
    explicit TokenFactors(const uint32_t* held) {
        for (int v = 0; v < kVectors; ++v) of[v] = load_high_f16(held + v * kLanes);
    }
};

// 16-bit codes of the weights of a block's tokens times the tokens' scales, relative to the largest; exactly 0 where
// the weight is. Returns their scale.
inline float code_weights(const float* weights, const TokenFactors& scales, int16_t* codes) {
    F32 scaled[TokenFactors::kVectors];
    F32 peak = zero();
    for (int v = 0; v < TokenFactors::kVectors; ++v) {
        scaled[v] = mul(load(weights + v * kLanes), scales.of[v]);
        peak = max(scaled[v], peak);
    }
    const float highest = max_lanes(peak);
    const F32 inverse = set1(highest > kSmallestPeak ? kLargestCode / highest : 0.0f);
    for (int v = 0; v < TokenFactors::kVectors; v += 2)
        store_rounded(codes + v * kLanes, mul(scaled[v], inverse), mul(scaled[v + 1], inverse));
    return highest * (1.0f / kLargestCode);
}

// The sum of the weights times the tokens' minima.
inline float weigh_minima(const float* weights, const TokenFactors& minima) {
    F32 total = zero();
    for (int v = 0; v < TokenFactors::kVectors; ++v) total = fma(load(weights + v * kLanes), minima.of[v], total);
    return sum_lanes(total);
}

}  // namespace lpx::LPX_ISA_NS
