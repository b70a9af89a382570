// Attention over the blocks of the KV cache; see kernels/attention.h for layouts and the order of operations.

#include "kernels/attention.h"

#include "kernels/kernels.h"
#include "kernels/simd.h"
#include "kernels/simd_math.h"

namespace lpx::LPX_ISA_NS {

namespace {

inline constexpr int kBlockVectors = kKvBlock / kLanes;

void store_kv(const KvWrite& w) {
    const F32 lowest = set1(-65504.0f), highest = set1(65504.0f);
    const int64_t padded = padded_head_dim(w.head_dim);
    uint16_t* const keys = w.block + w.slot;
    uint16_t* const values = w.block + w.head_dim * kKvBlock + w.slot * padded;
    for (int64_t i = 0; i < w.head_dim; i += kLanes) {
        const int64_t n = w.head_dim - i < kLanes ? w.head_dim - i : kLanes;
        float key[kLanes] = {}, value[kLanes] = {};
        std::memcpy(key, w.key + i, n * sizeof(float));
        std::memcpy(value, w.value + i, n * sizeof(float));
        // max first, with the constant second: a NaN becomes the constant.
        uint16_t half[kLanes];
        store_f16(half, min(max(load(key), lowest), highest));
        for (int64_t j = 0; j < n; ++j) keys[(i + j) * kKvBlock] = half[j];
        store_f16(half, min(max(load(value), lowest), highest));
        std::memcpy(values + i, half, n * sizeof(uint16_t));
    }
}

// scores[r][t] = sum_d query[r][d] * keys[d][t] for R rows and V vectors of tokens, d ascending. Fetches the keys of
// the next block meanwhile.
template <int R, int V>
inline void score(const float* query, int64_t stride, const uint16_t* keys, const uint16_t* next, int64_t head_dim,
                  float* scores) {
    F32 acc[R][V];
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < V; ++v) acc[r][v] = zero();
    for (int64_t d = 0; d < head_dim; ++d) {
        prefetch(next + d * kKvBlock);
        F32 key[V];
        for (int v = 0; v < V; ++v) key[v] = load_f16(keys + d * kKvBlock + v * kLanes);
        for (int r = 0; r < R; ++r) {
            const F32 q = set1(query[r * stride + d]);
            for (int v = 0; v < V; ++v) acc[r][v] = fma(q, key[v], acc[r][v]);
        }
    }
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < V; ++v) store(scores + r * kKvBlock + v * kLanes, acc[r][v]);
}

template <int R>
void score_block(const float* query, int64_t stride, const uint16_t* keys, const uint16_t* next, int64_t head_dim,
                 float* scores) {
    // Up to 12 accumulators, so that the fused multiply-adds hide their latency in the registers there are.
    constexpr int kWidth = R <= 3 && kBlockVectors >= 4 ? 4 : 2;
    for (int v = 0; v < kBlockVectors; v += kWidth)
        score<R, kWidth>(query, stride, keys + v * kLanes, next + v * kLanes, head_dim, scores + v * kLanes);
}

// weighted[r][d] = weighted[r][d] * factor[r] + sum_t weights[r][t] * values[t][d], t ascending, for V vectors of d.
// Fetches the values of the next block meanwhile.
template <int R, int V>
inline void accumulate(float* weighted, int64_t stride, const float* factor, const float* weights, int tokens,
                       const uint16_t* values, const uint16_t* next) {
    F32 acc[R][V];
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < V; ++v) acc[r][v] = mul(load(weighted + r * stride + v * kLanes), set1(factor[r]));
    for (int t = 0; t < tokens; ++t) {
        prefetch(next + t * stride);
        F32 value[V];
        for (int v = 0; v < V; ++v) value[v] = load_f16(values + t * stride + v * kLanes);
        for (int r = 0; r < R; ++r) {
            const F32 w = set1(weights[r * kKvBlock + t]);
            for (int v = 0; v < V; ++v) acc[r][v] = fma(w, value[v], acc[r][v]);
        }
    }
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < V; ++v) store(weighted + r * stride + v * kLanes, acc[r][v]);
}

template <int R>
void accumulate_block(float* weighted, int64_t padded, const float* factor, const float* weights, int tokens,
                      const uint16_t* values, const uint16_t* next) {
    int64_t d = 0;
    if constexpr (R <= 3)
        for (; d + 4 * kLanes <= padded; d += 4 * kLanes)
            accumulate<R, 4>(weighted + d, padded, factor, weights, tokens, values + d, next + d);
    for (; d + 2 * kLanes <= padded; d += 2 * kLanes)
        accumulate<R, 2>(weighted + d, padded, factor, weights, tokens, values + d, next + d);
    for (; d < padded; d += kLanes)
        accumulate<R, 1>(weighted + d, padded, factor, weights, tokens, values + d, next + d);
}

// Calls f with the rows in runs of at most 6: (first row, run length as a compile-time constant).
template <int N>
struct Rows {
    static constexpr int value = N;
};
template <class F>
inline void for_row_runs(int rows, F f) {
    int r = 0;
    for (; rows - r >= 6; r += 6) f(r, Rows<6>());
    switch (rows - r) {
        case 5:
            f(r, Rows<5>());
            break;
        case 4:
            f(r, Rows<4>());
            break;
        case 3:
            f(r, Rows<3>());
            break;
        case 2:
            f(r, Rows<2>());
            break;
        case 1:
            f(r, Rows<1>());
            break;
        default:
            break;
    }
}

// Turns the scores of tokens [low, high) of a block into weights exp(score - new maximum), all others into 0.
// Returns the factor that carries what was accumulated before over to the new maximum.
float weigh(float* scores, int low, int high, float softcap, float& highest, float& sum) {
    if (low >= high) {
        for (int v = 0; v < kBlockVectors; ++v) store(scores + v * kLanes, zero());
        return 1.0f;
    }
    if (softcap > 0.0f) {
        const F32 cap = set1(softcap);
        for (int v = 0; v < kBlockVectors; ++v) {
            float* const p = scores + v * kLanes;
            store(p, mul(cap, tanh(div(load(p), cap))));
        }
    }
    for (int t = 0; t < low; ++t) scores[t] = kNoScore;
    for (int t = high; t < kKvBlock; ++t) scores[t] = kNoScore;
    F32 best = load(scores);
    for (int v = 1; v < kBlockVectors; ++v) best = max(best, load(scores + v * kLanes));
    const float block_max = max_lanes(best);
    const float new_max = block_max > highest ? block_max : highest;
    float lane[kLanes];
    store(lane, exp(set1(highest - new_max)));  // 0 at the first block
    const float factor = lane[0];
    F32 total = zero();
    for (int v = 0; v < kBlockVectors; ++v) {
        float* const p = scores + v * kLanes;
        const F32 weight = exp(sub(load(p), set1(new_max)));  // exactly 0 where masked
        store(p, weight);
        total = add(total, weight);
    }
    highest = new_max;
    sum = sum * factor + sum_lanes(total);
    return factor;
}

void attend(const AttentionTask& task) {
    const int64_t padded = padded_head_dim(task.head_dim);
    float* const scores = task.scratch;
    float* const factor = task.scratch + task.rows * kKvBlock;
    for (int r = 0; r < task.rows; ++r) {
        task.max[r] = kNoScore;
        task.sum[r] = 0.0f;
    }
    for (int64_t i = 0; i < task.rows * padded; i += kLanes) store(task.weighted + i, zero());

    // Positions that some row of the tile sees.
    const int64_t last = task.first_position + (task.rows - 1) / task.group;
    const int64_t end = last + 1 < task.end ? last + 1 : task.end;
    int64_t begin = task.begin;
    if (task.window > 0 && task.first_position - task.window + 1 > begin)
        begin = (task.first_position - task.window + 1) / kKvBlock * kKvBlock;

    for (int64_t start = begin; start < end; start += kKvBlock) {
        const uint16_t* const keys = task.cache + task.block_table[start / kKvBlock] * task.block_pitch;
        const uint16_t* const values = keys + task.head_dim * kKvBlock;
        const int64_t after = start + kKvBlock < end ? start + kKvBlock : start;
        const uint16_t* const next = task.cache + task.block_table[after / kKvBlock] * task.block_pitch;
        const int tokens = static_cast<int>(end - start < kKvBlock ? end - start : kKvBlock);
        for_row_runs(task.rows, [&](int r, auto n) {
            score_block<decltype(n)::value>(task.query + r * padded, padded, keys, next, task.head_dim,
                                            scores + r * kKvBlock);
        });
        for (int r = 0; r < task.rows; ++r) {
            const int64_t position = task.first_position + r / task.group;
            int64_t low = task.window > 0 ? position - task.window + 1 - start : 0;
            int64_t high = (position + 1 < end ? position + 1 : end) - start;
            low = low < 0 ? 0 : low;
            high = high > kKvBlock ? kKvBlock : high;
            factor[r] = weigh(scores + r * kKvBlock, static_cast<int>(low < kKvBlock ? low : kKvBlock),
                              static_cast<int>(high), task.softcap, task.max[r], task.sum[r]);
        }
        for_row_runs(task.rows, [&](int r, auto n) {
            accumulate_block<decltype(n)::value>(task.weighted + r * padded, padded, factor + r, scores + r * kKvBlock,
                                                 tokens, values, next + task.head_dim * kKvBlock);
        });
    }
}

void merge_split(const MergeTask& task) {
    for (int r = 0; r < task.rows; ++r) {
        float* const total = task.total_weighted + r * task.head_dim;
        const float* const part = task.weighted + r * task.head_dim;
        if (task.first) {
            task.total_max[r] = task.max[r];
            task.total_sum[r] = task.sum[r];
            for (int64_t d = 0; d < task.head_dim; d += kLanes) store(total + d, load(part + d));
            continue;
        }
        if (task.sum[r] == 0.0f) continue;  // the row saw nothing of this split
        const float new_max = task.max[r] > task.total_max[r] ? task.max[r] : task.total_max[r];
        float a[kLanes], b[kLanes];
        store(a, exp(set1(task.total_max[r] - new_max)));
        store(b, exp(set1(task.max[r] - new_max)));
        task.total_max[r] = new_max;
        task.total_sum[r] = task.total_sum[r] * a[0] + task.sum[r] * b[0];
        for (int64_t d = 0; d < task.head_dim; d += kLanes)
            store(total + d, add(mul(load(total + d), set1(a[0])), mul(load(part + d), set1(b[0]))));
    }
}

}  // namespace

void fill_attention(KernelTable& table) {
    table.store_kv = store_kv;
    table.attend = attend;
    table.merge_split = merge_split;
}

}  // namespace lpx::LPX_ISA_NS
