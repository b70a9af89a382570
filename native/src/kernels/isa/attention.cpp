// Attention over the blocks of the KV cache; see kernels/attention.h for the order of operations.

#include "kernels/attention.h"

#include "kernels/attend_codes.h"
#include "kernels/attend_floats.h"
#include "kernels/kernels.h"
#include "kernels/simd_math.h"

namespace lpx::LPX_ISA_NS {

namespace {

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

void score_block(const AttentionTask& task, const std::byte* block, const std::byte* next, float* scores) {
    switch (task.layout->types.key) {
        case KvType::F16:
            return score_floats<Float16>(task, block, next, scores);
        case KvType::BF16:
            return score_floats<Bfloat16>(task, block, next, scores);
        case KvType::Q8:
            return score_codes<8>(task, block, next, scores);
        case KvType::Q4:
            return score_codes<4>(task, block, next, scores);
    }
}

void accumulate_block(const AttentionTask& task, const std::byte* block, const std::byte* next, int tokens,
                      const float* factor, const float* weights) {
    switch (task.layout->types.value) {
        case KvType::F16:
            return accumulate_floats<Float16>(task, block, next, tokens, factor, weights);
        case KvType::BF16:
            return accumulate_floats<Bfloat16>(task, block, next, tokens, factor, weights);
        case KvType::Q8:
            return accumulate_codes<8>(task, block, next, tokens, factor, weights);
        case KvType::Q4:
            return accumulate_codes<4>(task, block, next, tokens, factor, weights);
    }
}

void attend(const AttentionTask& task) {
    float* const scores = task.scratch;
    float* const factor = task.scratch + task.rows * kKvBlock;
    for (int r = 0; r < task.rows; ++r) {
        task.max[r] = kNoScore;
        task.sum[r] = 0.0f;
    }
    for (int64_t i = 0; i < task.rows * task.layout->padded; i += kLanes) store(task.weighted + i, zero());

    // Positions that some row of the tile sees.
    const int64_t last = task.first_position + (task.rows - 1) / task.group;
    const int64_t end = last + 1 < task.end ? last + 1 : task.end;
    int64_t begin = task.begin;
    if (task.window > 0 && task.first_position - task.window + 1 > begin)
        begin = (task.first_position - task.window + 1) / kKvBlock * kKvBlock;

    for (int64_t start = begin; start < end; start += kKvBlock) {
        const std::byte* const block = task.cache + task.block_table[start / kKvBlock] * task.block_pitch;
        const int64_t after = start + kKvBlock < end ? start + kKvBlock : start;
        const std::byte* const next = task.cache + task.block_table[after / kKvBlock] * task.block_pitch;
        const int tokens = static_cast<int>(end - start < kKvBlock ? end - start : kKvBlock);
        score_block(task, block, next, scores);
        for (int r = 0; r < task.rows; ++r) {
            const int64_t position = task.first_position + r / task.group;
            int64_t low = task.window > 0 ? position - task.window + 1 - start : 0;
            int64_t high = (position + 1 < end ? position + 1 : end) - start;
            low = low < 0 ? 0 : low;
            high = high > kKvBlock ? kKvBlock : high;
            factor[r] = weigh(scores + r * kKvBlock, static_cast<int>(low < kKvBlock ? low : kKvBlock),
                              static_cast<int>(high), task.softcap, task.max[r], task.sum[r]);
        }
        accumulate_block(task, block, next, tokens, factor, scores);
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
    table.attend = attend;
    table.merge_split = merge_split;
}

}  // namespace lpx::LPX_ISA_NS
