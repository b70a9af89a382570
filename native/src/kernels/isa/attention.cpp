// Attention over the blocks of the KV cache; see kernels/attention.h for the order of operations.

#include "kernels/attention.h"

#include "kernels/attend_codes.h"
#include "kernels/attend_floats.h"
#include "kernels/kernels.h"
#include "kernels/simd_math.h"

namespace lpx::LPX_ISA_NS {

namespace {

// Tokens of a block that a row sees: [low, high), empty when low >= high.
struct Seen {
    int low, high;
};

// Masks and caps the scores of a row; returns the largest that it sees.
inline float mask_scores(float* scores, Seen seen, float softcap) {
    if (softcap > 0.0f) {
        const F32 cap = set1(softcap);
        for (int v = 0; v < kBlockVectors; ++v) {
            float* const p = scores + v * kLanes;
            store(p, mul(cap, tanh(div(load(p), cap))));
        }
    }
    for (int t = 0; t < seen.low; ++t) scores[t] = kNoScore;
    for (int t = seen.high; t < kKvBlock; ++t) scores[t] = kNoScore;
    F32 best = load(scores);
    for (int v = 1; v < kBlockVectors; ++v) best = max(best, load(scores + v * kLanes));
    return max_lanes(best);
}

// Turns the scores of a block into weights exp(score - new maximum), exactly 0 where masked. factor[r] becomes what
// carries over to the new maximum what row r accumulated before. Rows are worked on side by side, for one alone would
// wait for itself.
template <class F>
void weigh(const AttentionTask& task, float* scores, float* factor, F seen_by) {
    for (int first = 0; first < task.rows; first += kLanes) {
        const int count = task.rows - first < kLanes ? task.rows - first : kLanes;
        float before[kLanes] = {}, after[kLanes] = {}, carry[kLanes];
        Seen seen[kLanes];
        for (int i = 0; i < count; ++i) {
            const int r = first + i;
            seen[i] = seen_by(r);
            before[i] = after[i] = task.max[r];
            if (seen[i].low >= seen[i].high) continue;
            const float highest = mask_scores(scores + r * kKvBlock, seen[i], task.softcap);
            if (highest > before[i]) after[i] = highest;
        }
        store(carry, exp(sub(load(before), load(after))));  // 0 at the first block, 1 where nothing is seen
        for (int i = 0; i < count; ++i) {
            const int r = first + i;
            float* const row = scores + r * kKvBlock;
            if (seen[i].low >= seen[i].high) {
                for (int v = 0; v < kBlockVectors; ++v) store(row + v * kLanes, zero());
                factor[r] = 1.0f;
                continue;
            }
            F32 total = zero();
            for (int v = 0; v < kBlockVectors; ++v) {
                float* const p = row + v * kLanes;
                const F32 weight = exp(sub(load(p), set1(after[i])));
                store(p, weight);
                total = add(total, weight);
            }
            task.max[r] = after[i];
            task.sum[r] = task.sum[r] * carry[i] + sum_lanes(total);
            factor[r] = carry[i];
        }
    }
}

void score_block(const AttentionTask& task, const HeldScales& held, const std::byte* block, const std::byte* next,
                 float* scores) {
    const KeptScales kept{halves_at(block, task.layout->key_scales)};
    switch (task.layout->types.key) {
        case KvType::F16:
            return score_floats<Float16>(task, block, next, scores);
        case KvType::BF16:
            return score_floats<Bfloat16>(task, block, next, scores);
        case KvType::Q8:
            if (task.layout->holds_key_scales)
                return score_codes<8>(task, HeldKeyScales{held.of[0]}, block, next, scores);
            return score_codes<8>(task, kept, block, next, scores);
        case KvType::Q4:
            return score_codes<4>(task, kept, block, next, scores);
    }
}

void accumulate_block(const AttentionTask& task, const HeldScales& held, const std::byte* block, const std::byte* next,
                      const std::byte* second, int tokens, const float* factor, const float* weights) {
    switch (task.layout->types.value) {
        case KvType::F16:
            return accumulate_floats<Float16>(task, block, next, tokens, factor, weights);
        case KvType::BF16:
            return accumulate_floats<Bfloat16>(task, block, next, tokens, factor, weights);
        case KvType::Q8:
            return accumulate_codes<8>(task, held, block, next, second, tokens, factor, weights);
        case KvType::Q4:
            return accumulate_codes<4>(task, held, block, next, second, tokens, factor, weights);
    }
}

void store_writes(const AttentionTask& task) {
    for (int i = 0; i < task.write_count; ++i) task.store_kv(task.writes[i]);
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

    const auto block_from = [&](int64_t start) {
        if (start < end) return task.cache + task.block_table[start / kKvBlock] * task.block_pitch;
        return task.upcoming[start >= end + kKvBlock ? 1 : 0];
    };

    // The lines of the first write's keys come with the scores of the block before.
    const int64_t write_block = task.write_position / kKvBlock * kKvBlock;
    if (task.write_count > 0 && write_block <= begin) store_writes(task);
    HeldScales held;
    for (int64_t start = begin; start < end; start += kKvBlock) {
        const int64_t after = start + kKvBlock;
        const std::byte *const block = block_from(start), *const next = block_from(after);
        const int tokens = static_cast<int>(end - start < kKvBlock ? end - start : kKvBlock);
        if (task.layout->holds_key_scales) unpack_scales(*task.layout, block, held);
        score_block(task, held, block, next, scores);
        weigh(task, scores, factor, [&](int r) {
            const int64_t position = task.first_position + r / task.group;
            const int64_t low = task.window > 0 ? position - task.window + 1 - start : 0;
            const int64_t high = (position + 1 < end ? position + 1 : end) - start;
            return Seen{static_cast<int>(low < 0          ? 0
                                         : low < kKvBlock ? low
                                                          : kKvBlock),
                        static_cast<int>(high < kKvBlock ? high : kKvBlock)};
        });
        if (task.write_count > 0 && write_block == after) store_writes(task);
        if (task.layout->holds_value_scales && !task.layout->holds_key_scales) unpack_scales(*task.layout, block, held);
        accumulate_block(task, held, block, next, block_from(after + kKvBlock), tokens, factor, scores);
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
