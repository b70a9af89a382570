// Scores and weighted sums of a block whose keys or values are floats of 16 bits.
//
// Included only by src/kernels/isa/attention.cpp, under the same rules as simd.h.
#pragma once

#include "attention.h"
#include "row_runs.h"

namespace lpx::LPX_ISA_NS {

// Types of what is walked. Blocks of the cache are walked by one run of rows; further runs would widen the same numbers
// again, so for several runs a block is widened first.
struct Float16 {
    using Value = uint16_t;
    static constexpr bool kFetches = true;  // the next block, meanwhile
    static F32 load(const uint16_t* p) { return load_f16(p); }
};
struct Bfloat16 {
    using Value = uint16_t;
    static constexpr bool kFetches = true;
    static F32 load(const uint16_t* p) { return load_bf16(p); }
};
struct Widened {
    using Value = float;
    static constexpr bool kFetches = false;
    static F32 load(const float* p) { return LPX_ISA_NS::load(p); }
};

// Rows of a run: as many as have their accumulators in registers.
#if defined(__AVX512F__)
inline constexpr int kMostFloatRows = 12;
#else
inline constexpr int kMostFloatRows = 6;
#endif

// scores[r][t] = sum_d query[r][d] * keys[d][t] for R rows and V vectors of tokens, d ascending. Fetches the keys of
// the next block meanwhile.
template <class T, int R, int V>
inline void score(const float* query, int64_t stride, const typename T::Value* keys, const typename T::Value* next,
                  int64_t head_dim, float* scores) {
    F32 acc[R][V];
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < V; ++v) acc[r][v] = zero();
    for (int64_t d = 0; d < head_dim; ++d) {
        if constexpr (T::kFetches) prefetch_stream(next + d * kKvBlock);
        F32 key[V];
        for (int v = 0; v < V; ++v) key[v] = T::load(keys + d * kKvBlock + v * kLanes);
        for (int r = 0; r < R; ++r) {
            const F32 q = set1(query[r * stride + d]);
            for (int v = 0; v < V; ++v) acc[r][v] = fma(q, key[v], acc[r][v]);
        }
    }
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < V; ++v) store(scores + r * kKvBlock + v * kLanes, acc[r][v]);
}

template <class T, int R>
void score_run(const float* query, int64_t stride, const typename T::Value* keys, const typename T::Value* next,
               int64_t head_dim, float* scores) {
    // With few rows more vectors, so that there are enough accumulators to hide the latency of the multiply-adds.
    constexpr int kWidth = R <= 3 && kBlockVectors >= 4 ? 4 : 2;
    for (int v = 0; v < kBlockVectors; v += kWidth)
        score<T, R, kWidth>(query, stride, keys + v * kLanes, next + v * kLanes, head_dim, scores + v * kLanes);
}

// weighted[r][d] = weighted[r][d] * factor[r] + sum_t weights[r][t] * values[t][d], t ascending, for V vectors of d.
// Fetches the values of the next block meanwhile.
template <class T, int R, int V>
inline void accumulate(float* weighted, int64_t stride, const float* factor, const float* weights, int tokens,
                       const typename T::Value* values, const typename T::Value* next) {
    F32 acc[R][V];
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < V; ++v) acc[r][v] = mul(load(weighted + r * stride + v * kLanes), set1(factor[r]));
    for (int t = 0; t < tokens; ++t) {
        if constexpr (T::kFetches)
            for (int i = 0; i < V * kLanes; i += 32) prefetch_stream(next + t * stride + i);
        F32 value[V];
        for (int v = 0; v < V; ++v) value[v] = T::load(values + t * stride + v * kLanes);
        for (int r = 0; r < R; ++r) {
            const F32 w = set1(weights[r * kKvBlock + t]);
            for (int v = 0; v < V; ++v) acc[r][v] = fma(w, value[v], acc[r][v]);
        }
    }
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < V; ++v) store(weighted + r * stride + v * kLanes, acc[r][v]);
}

template <class T, int R>
void accumulate_run(float* weighted, int64_t padded, const float* factor, const float* weights, int tokens,
                    const typename T::Value* values, const typename T::Value* next) {
    int64_t d = 0;
    if constexpr (R <= 3)
        for (; d + 4 * kLanes <= padded; d += 4 * kLanes)
            accumulate<T, R, 4>(weighted + d, padded, factor, weights, tokens, values + d, next + d);
    for (; d + 2 * kLanes <= padded; d += 2 * kLanes)
        accumulate<T, R, 2>(weighted + d, padded, factor, weights, tokens, values + d, next + d);
    for (; d < padded; d += kLanes)
        accumulate<T, R, 1>(weighted + d, padded, factor, weights, tokens, values + d, next + d);
}

// `count` (a multiple of kKvBlock) neighbours as floats; fetches as many from `next` on meanwhile.
template <class T>
inline void widen(const uint16_t* from, const uint16_t* next, int64_t count, float* to) {
    for (int64_t i = 0; i < count; i += kKvBlock) {
        prefetch_stream(next + i);
        for (int64_t v = 0; v < kKvBlock; v += kLanes) store(to + i + v, T::load(from + i + v));
    }
}

template <class T>
void score_floats(const AttentionTask& task, const std::byte* block, const std::byte* next, float* scores) {
    const int64_t padded = task.layout->padded, head_dim = task.layout->head_dim;
    const auto* const keys = reinterpret_cast<const uint16_t*>(block);
    const auto* const next_keys = reinterpret_cast<const uint16_t*>(next);
    const auto score_all = [&]<class U>(U, const typename U::Value* from, const typename U::Value* then) {
        for_row_runs<kMostFloatRows>(task.rows, [&](int r, auto n) {
            score_run<U, decltype(n)::value>(task.query + r * padded, padded, from, then, head_dim,
                                             scores + r * kKvBlock);
        });
    };
    if (task.rows <= kMostFloatRows) return score_all(T(), keys, next_keys);
    alignas(64) float widened[kMaxHeadDim * kKvBlock];
    widen<T>(keys, next_keys, head_dim * kKvBlock, widened);
    score_all(Widened(), widened, widened);
}

template <class T>
void accumulate_floats(const AttentionTask& task, const std::byte* block, const std::byte* next, int tokens,
                       const float* factor, const float* weights) {
    const int64_t padded = task.layout->padded;
    const auto* const values = reinterpret_cast<const uint16_t*>(block + task.layout->values);
    const auto* const next_values = reinterpret_cast<const uint16_t*>(next + task.layout->values);
    const auto accumulate_all = [&]<class U>(U, const typename U::Value* from, const typename U::Value* then) {
        for_row_runs<kMostFloatRows>(task.rows, [&](int r, auto n) {
            accumulate_run<U, decltype(n)::value>(task.weighted + r * padded, padded, factor + r,
                                                  weights + r * kKvBlock, tokens, from, then);
        });
    };
    if (task.rows <= kMostFloatRows) return accumulate_all(T(), values, next_values);
    alignas(64) float widened[kMaxHeadDim * kKvBlock];
    widen<T>(values, next_values, kKvBlock * padded, widened);
    accumulate_all(Widened(), widened, widened);
}

}  // namespace lpx::LPX_ISA_NS
