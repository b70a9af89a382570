// Scores and weighted sums of a block whose keys or values are codes of 8 or 4 bits.
//
// Codes are widened to 16 bits and multiplied, in pairs, by 16-bit codes of the queries and of the softmax weights: the
// sums over a group of dimensions, or over the tokens of a block, are exact, whatever the rows beside.
//
// Included only by src/kernels/isa/attention.cpp, under the same rules as simd.h.
#pragma once

#include "attention.h"
#include "kv_codes.h"
#include "row_runs.h"

namespace lpx::LPX_ISA_NS {

inline constexpr int kMostCodeRows = 6;  // of a run

inline const uint16_t* halves_at(const std::byte* block, int64_t offset) {
    return reinterpret_cast<const uint16_t*>(block + offset);
}

// Scales of keys, by group and token of a block: beside the codes, or held by the codes of values.
struct KeptScales {
    static constexpr bool kBeside = true;
    const uint16_t* halves;
    F32 at(int64_t i) const { return load_f16(halves + i); }
};
struct HeldKeyScales {
    static constexpr bool kBeside = false;
    const uint32_t* words;
    F32 at(int64_t i) const { return load_low_f16(words + i); }
};

// Adds the products with one group of dimensions to scores[r][t], for R rows and V vectors of tokens; the first group
// starts the scores. Fetches a part of the next block meanwhile.
template <int kBits, int R, int V, class Scales>
inline void score_group(const int16_t* query, int64_t stride, const float* query_scales, const float* query_sums,
                        int64_t groups, const std::byte* keys, const std::byte* next, int count, Scales scales,
                        int64_t scales_at, const uint16_t* minima, bool first, float* scores) {
    constexpr int kDims = kBits == 8 ? 2 : 4;  // in a row of codes, of 2 kKvBlock bytes
    I32 acc[R][V];
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < V; ++v) acc[r][v] = broadcast_i32(0);
    for (int d = 0; d < count; d += kDims) {
        prefetch_stream(next);
        for (int part = 0; part < kDims / 2; ++part) {
            Pairs key[V];
            for (int v = 0; v < V; ++v) {
                const std::byte* const p = keys + v * 2 * kLanes;
                key[v] = kBits == 8  ? widen_signed(p)
                         : part == 0 ? low_nibbles(widen_unsigned(p))
                                     : high_nibbles(widen_unsigned(p));
            }
            for (int r = 0; r < R; ++r) {
                const Pairs q = broadcast_pair(query + r * stride + d + 2 * part);
                for (int v = 0; v < V; ++v) acc[r][v] = multiply_add(acc[r][v], key[v], q);
            }
        }
        keys += 2 * kKvBlock;
        next += 2 * kKvBlock;
    }
    for (int v = 0; v < V; ++v) {
        const F32 scale = scales.at(scales_at + v * kLanes);
        for (int r = 0; r < R; ++r) {
            float* const score = scores + r * kKvBlock + v * kLanes;
            F32 sum = first ? zero() : load(score);
            sum = fma(mul(to_float(acc[r][v]), set1(query_scales[r * groups])), scale, sum);
            if constexpr (kBits == 4) sum = fma(set1(query_sums[r * groups]), load_f16(minima + v * kLanes), sum);
            store(score, sum);
        }
    }
}

template <int kBits, class Scales>
void score_codes(const AttentionTask& task, Scales scales, const std::byte* block, const std::byte* next,
                 float* scores) {
    const KvLayout& layout = *task.layout;
    for_row_runs<kMostCodeRows>(task.rows, [&](int r, auto n) {
        constexpr int R = decltype(n)::value;
        constexpr int kWidth = R <= 3 && kBlockVectors >= 4 ? 4 : 2;
        for (int64_t g = 0; g < layout.groups; ++g) {
            const int64_t first = g * kKvGroup, rest = layout.padded - first;
            const int64_t codes = first * kKvBlock * kBits / 8;
            if constexpr (Scales::kBeside) prefetch_stream(next + layout.key_scales + g * kKvBlock * 2);
            for (int v = 0; v < kBlockVectors; v += kWidth)
                score_group<kBits, R, kWidth>(
                    task.coded.codes + r * layout.padded + first, layout.padded,
                    task.coded.scales + r * layout.groups + g, task.coded.sums + r * layout.groups + g, layout.groups,
                    block + codes + v * 2 * kLanes, next + codes + v * 2 * kLanes,
                    static_cast<int>(rest < kKvGroup ? rest : kKvGroup), scales, g * kKvBlock + v * kLanes,
                    halves_at(block, layout.key_minima) + g * kKvBlock + v * kLanes, g == 0,
                    scores + r * kKvBlock + v * kLanes);
        }
    });
}

// Softmax weights of a run of rows as codes, for one group of dimensions.
template <int R>
struct WeightCodes {
    int16_t codes[R][kKvBlock];
    float scale[R], offset[R];
};

// weighted[r][d] = weighted[r][d] * factor[r] + sum_t weights[r][t] * values[t][d] for R rows and the dimensions of V
// loads of codes. Fetches a part of the next block meanwhile.
template <int kBits, int R, int V>
inline void accumulate_group(float* weighted, int64_t stride, const float* factor, const WeightCodes<R>& weights,
                             int tokens, const std::byte* values, int64_t pitch, const std::byte* next, int64_t dims) {
    constexpr int kHalves = kBits == 8 ? 1 : 2;
    I32 acc[R][V * kHalves];
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < V * kHalves; ++v) acc[r][v] = broadcast_i32(0);
    for (int t = 0; t < tokens; t += 2) {
        prefetch_stream(next);
        Pairs value[V * kHalves];
        for (int v = 0; v < V; ++v) {
            const std::byte* const p = values + v * 2 * kLanes;
            if constexpr (kBits == 8) {
                value[v] = widen_signed(p);
            } else {
                value[v] = low_nibbles(widen_unsigned(p));
                value[V + v] = high_nibbles(widen_unsigned(p));
            }
        }
        for (int r = 0; r < R; ++r) {
            const Pairs weight = broadcast_pair(weights.codes[r] + t);
            for (int v = 0; v < V * kHalves; ++v) acc[r][v] = multiply_add(acc[r][v], value[v], weight);
        }
        values += pitch;
        next += pitch;
    }
    for (int v = 0; v < V * kHalves; ++v) {
        const int64_t d = v / V * (kKvGroup / 2) + v % V * kLanes;
        if (d >= dims) continue;  // the high halves of a short group hold nothing
        for (int r = 0; r < R; ++r) {
            float* const p = weighted + r * stride + d;
            F32 sum = fma(to_float(acc[r][v]), set1(weights.scale[r]), mul(load(p), set1(factor[r])));
            if constexpr (kBits == 4) sum = add(sum, set1(weights.offset[r]));
            store(p, sum);
        }
    }
}

template <int kBits>
void accumulate_codes(const AttentionTask& task, const HeldScales& held, const std::byte* block, const std::byte* next,
                      const std::byte* second, int tokens, const float* factor, const float* weights) {
    const KvLayout& layout = *task.layout;
    // Bytes of a pair of tokens, of a group, and of the part of it that starts with another dimension.
    constexpr int kGroupBytes = kKvGroup * 2 * kBits / 8;
    const int64_t pitch = layout.groups * kGroupBytes;
    // Values that hold the scales of keys are the first of a block to be read, so they are fetched a block earlier.
    const std::byte* const ahead = (layout.holds_key_scales ? second : next) + layout.values;
    for_row_runs<kMostCodeRows>(task.rows, [&](int r, auto n) {
        constexpr int R = decltype(n)::value;
        for (int64_t g = 0; g < layout.groups; ++g) {
            WeightCodes<R> coded;
            if constexpr (kBits == 4) prefetch_stream(next + layout.value_scales + g * kKvBlock * 2);
            const TokenFactors scales = kBits == 8 ? TokenFactors(held.of[g])
                                                   : TokenFactors(halves_at(block, layout.value_scales) + g * kKvBlock);
            for (int i = 0; i < R; ++i)
                coded.scale[i] = code_weights(weights + (r + i) * kKvBlock, scales, coded.codes[i]);
            if constexpr (kBits == 4) {
                const TokenFactors minima(halves_at(block, layout.value_minima) + g * kKvBlock);
                for (int i = 0; i < R; ++i) coded.offset[i] = weigh_minima(weights + (r + i) * kKvBlock, minima);
            }
            const int64_t first = g * kKvGroup, rest = layout.padded - first;
            const int64_t dims = rest < kKvGroup ? rest : kKvGroup;
            const auto accumulate = [&]<int V>(int64_t d) {
                accumulate_group<kBits, R, V>(task.weighted + r * layout.padded + first + d, layout.padded, factor + r,
                                              coded, tokens, block + layout.values + g * kGroupBytes + 2 * d, pitch,
                                              ahead + g * kGroupBytes + 2 * d, dims - d);
            };
            // Bytes of codes hold two tokens of so many dimensions.
            const int64_t loaded = kBits == 8 ? dims : kKvGroup / 2;
            constexpr int kWidth = kBits == 8 ? (R <= 3 ? 4 : 2) : (R <= 3 ? 2 : 1);
            int64_t d = 0;
            if constexpr (kWidth == 4)
                for (; d + 4 * kLanes <= loaded; d += 4 * kLanes) accumulate.template operator()<4>(d);
            if constexpr (kWidth >= 2)
                for (; d + 2 * kLanes <= loaded; d += 2 * kLanes) accumulate.template operator()<2>(d);
            for (; d < loaded; d += kLanes) accumulate.template operator()<1>(d);
        }
    });
}

}  // namespace lpx::LPX_ISA_NS
