#include "attention_stage.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "decoder_weights.h"

namespace lpx {

namespace {

// Splits of one (tile, KV head) are spread over threads only while there are few of those: enough work otherwise.
constexpr int64_t kUnitsPerThread = 4;
constexpr int64_t kPartialFloats = int64_t{1} << 21;
// A pair of dimensions that turns by less than this a token (in radians) stays near where it was for thousands.
constexpr double kSteadyFrequency = 1.0 / 16384;

int64_t most_tile_rows(const DecoderConfig& config) {
    return std::max<int64_t>(kMaxTileRows, config.group());
}

}  // namespace

RotaryRows::RotaryRows(const DecoderConfig& config, int64_t max_rows) : configs_(config.rotaries) {
    for (const RotaryConfig& rotary : configs_) {
        const auto half = std::ssize(rotary.inv_freq);
        std::vector<float> steady(config.head_dim, 1.0f);
        for (int64_t j = 0; j < half; ++j) {
            const bool slow = rotary.inv_freq[j] <= kSteadyFrequency;
            steady[j] = steady[half + j] = slow ? static_cast<float>(rotary.attention_factor) : 0.0f;
        }
        tables_.push_back({half, AlignedBuffer<float>(max_rows * 2 * half), std::move(steady)});
    }
}

void RotaryRows::fill(int64_t row, int64_t position) {
    for (size_t i = 0; i < tables_.size(); ++i) {
        const RotaryConfig& rotary = configs_[i];
        const int64_t half = tables_[i].half;
        float* const cos = tables_[i].values.data() + row * 2 * half;
        for (int64_t j = 0; j < half; ++j) {
            const double angle = static_cast<double>(position) * rotary.inv_freq[j];
            cos[j] = static_cast<float>(std::cos(angle) * rotary.attention_factor);
            cos[half + j] = static_cast<float>(std::sin(angle) * rotary.attention_factor);
        }
    }
}

size_t RotaryRows::bytes_for(const DecoderConfig& config, int64_t max_rows) {
    size_t values = 0;
    for (const RotaryConfig& rotary : config.rotaries)
        values += rotary.inv_freq.size() * 2 * max_rows + config.head_dim;
    return values * sizeof(float);
}

AttentionStage::AttentionStage(const DecoderConfig& config, const KernelTable& kernels, const KvCache& cache,
                               const RotaryRows& rotary, int threads, int64_t max_rows)
    : config_(config),
      kernels_(kernels),
      cache_(cache),
      rotary_(rotary),
      threads_(threads),
      padded_(padded_head_dim(config.head_dim)),
      tile_rows_(most_tile_rows(config)),
      scratch_(threads),
      partials_(kPartialFloats),
      unit_done_(new std::atomic<int>[kUnitsPerThread * threads]()),
      next_task_(new std::atomic<int64_t>[config.layers.size()]()) {
    for (const LayerConfig& layer : config.layers) {
        const auto same = std::find_if(plans_.begin(), plans_.end(), [&](auto& p) { return p.window == layer.window; });
        plan_of_layer_.push_back(same - plans_.begin());
        if (same == plans_.end()) plans_.push_back({layer.window, false, {}});
    }
    for (Scratch& s : scratch_) {
        for (auto* rows_of_heads : {&s.query, &s.weighted, &s.total_weighted, &s.keys})
            *rows_of_heads = AlignedBuffer<float>(tile_rows_ * padded_);
        for (auto* rows_of_one : {&s.max, &s.sum, &s.total_max, &s.total_sum})
            *rows_of_one = AlignedBuffer<float>(tile_rows_);
        s.scores = AlignedBuffer<float>(tile_rows_ * (kKvBlock + 1));
        s.writes.resize(tile_rows_);
        s.query_codes = AlignedBuffer<int16_t>(tile_rows_ * padded_);
        for (auto* groups : {&s.query_scales, &s.query_sums})
            *groups = AlignedBuffer<float>(tile_rows_ * cache.layout().groups);
    }
    tiles_.reserve(max_rows);
}

size_t AttentionStage::bytes_for(const DecoderConfig& config, int threads) {
    const int64_t rows = most_tile_rows(config), padded = padded_head_dim(config.head_dim);
    const int64_t groups = (padded + kKvGroup - 1) / kKvGroup;
    const int64_t floats = rows * (4 * padded + kKvBlock + 5 + 2 * groups);
    return sizeof(float) * (kPartialFloats + threads * floats) +
           threads * rows * (sizeof(int16_t) * padded + sizeof(KvWrite));
}

void AttentionStage::begin_step(const StepInput& input) {
    input_ = &input;
    tiles_.clear();
    stores_first_ = false;
    const int64_t tile_tokens = std::max<int64_t>(1, kMaxTileRows / config_.group());
    for (int64_t s = 0; s < input.sequences(); ++s) {
        const int64_t first = input.row_begin[s], end = input.row_begin[s + 1];
        const bool single = end - first <= tile_tokens;
        stores_first_ |= !single;
        for (int64_t row = first; row < end; row += tile_tokens)
            tiles_.push_back({.sequence = s,
                              .row = row,
                              .tokens = std::min(tile_tokens, end - row),
                              .position = input.start_position[s] + row - first,
                              .stores = single});
    }
    for (Plan& p : plans_) plan(p);
    for (size_t layer = 0; layer < config_.layers.size(); ++layer)
        next_task_[layer].store(0, std::memory_order_relaxed);
}

void AttentionStage::plan(Plan& plan) {
    const auto splits = [&](const Tile& tile) {
        const int64_t lowest = plan.window > 0 ? std::max<int64_t>(0, tile.position - plan.window + 1) : 0;
        return std::pair(lowest / kSplitTokens, (tile.position + tile.tokens - 1) / kSplitTokens + 1);
    };
    const int64_t units = std::ssize(tiles_) * config_.num_kv_heads;
    plan.tasks.clear();
    plan.parallel_splits = units <= kUnitsPerThread * threads_;
    if (plan.parallel_splits) {
        int64_t parts = 0;
        for (const Tile& tile : tiles_) {
            const auto [begin, end] = splits(tile);
            parts += (end - begin) * config_.num_kv_heads;
        }
        plan.parallel_splits = parts > units && parts * tile_rows_ * (padded_ + 2) <= kPartialFloats;
    }
    int64_t unit_first = 0;
    // The last tiles see the longest context: they go first, so that no thread is left with one at the end.
    for (int64_t t = std::ssize(tiles_) - 1; t >= 0; --t) {
        const auto [begin, end] = splits(tiles_[t]);
        for (int64_t head = 0; head < config_.num_kv_heads; ++head) {
            if (!plan.parallel_splits) {
                plan.tasks.push_back({.tile = t, .kv_head = head, .split_begin = begin, .split_end = end});
                continue;
            }
            for (int64_t split = begin; split < end; ++split)
                plan.tasks.push_back({.tile = t,
                                      .kv_head = head,
                                      .split_begin = split,
                                      .split_end = split + 1,
                                      .unit = t * config_.num_kv_heads + head,
                                      .unit_first = unit_first,
                                      .unit_parts = end - begin,
                                      .part = unit_first + split - begin});
            unit_first += end - begin;
        }
    }
}

KvWrite AttentionStage::make_write(int64_t layer, const LayerWeights& weights, const Rows& rows, int64_t row,
                                   int64_t position, int64_t kv_head, const int32_t* block_table, float* key) const {
    const float* const raw = rows.key + row * rows.kv_stride + kv_head * config_.head_dim;
    if (weights.k_norm.empty())
        std::memcpy(key, raw, config_.head_dim * sizeof(float));
    else
        kernels_.rms_norm(raw, weights.k_norm.data(), config_.norm_eps, config_.head_dim, key);
    const int64_t rotary = config_.layers[layer].rotary;
    kernels_.rotate(key, rotary_.cos(rotary, row), rotary_.sin(rotary, row), rotary_.half(rotary));
    if (has_codes(cache_.layout().types.key)) take_steady_bias(layer, weights, kv_head, key);
    return {.key = key,
            .value = rows.value + row * rows.kv_stride + kv_head * config_.head_dim,
            .layout = &cache_.layout(),
            .block = cache_.at(layer, kv_head) + block_table[position / kKvBlock] * cache_.block_pitch(),
            .slot = static_cast<int>(position % kKvBlock)};
}

// Takes from a key what its bias adds in dimensions that are hardly rotated: the same for all tokens, so every score of
// a query changes alike and softmax does not see it, unless scores are capped. Qwen2's biases are up to a hundred times
// the rest of a key, and codes would resolve little else.
void AttentionStage::take_steady_bias(int64_t layer, const LayerWeights& weights, int64_t kv_head, float* key) const {
    if (weights.k_bias.empty() || !weights.k_norm.empty() || config_.attention_softcap > 0.0f) return;
    const float* const bias = weights.k_bias.data() + kv_head * config_.head_dim;
    const std::vector<float>& steady = rotary_.steady(config_.layers[layer].rotary);
    for (int64_t d = 0; d < config_.head_dim; ++d) key[d] -= steady[d] * bias[d];
}

void AttentionStage::store_rows(int64_t layer, const LayerWeights& weights, const Rows& rows, int thread) {
    // Whole tiles, in turns: the rows of a tile are neighbours in the blocks.
    int64_t turn = 0;
    for (const Tile& tile : tiles_) {
        if (tile.stores || turn++ % threads_ != thread) continue;
        for (int64_t i = 0; i < tile.tokens; ++i)
            for (int64_t head = 0; head < config_.num_kv_heads; ++head)
                kernels_.store_kv(make_write(layer, weights, rows, tile.row + i, tile.position + i, head,
                                             block_table(tile.sequence), scratch_[thread].keys.data()));
    }
}

void AttentionStage::attend(int64_t layer, const LayerWeights& weights, const Rows& rows, int thread) {
    const Plan& plan = plans_[plan_of_layer_[layer]];
    for (;;) {
        const int64_t i = next_task_[layer].fetch_add(1, std::memory_order_relaxed);
        if (i >= std::ssize(plan.tasks)) return;
        // The other threads are likely to take the tasks between.
        const Task& later = plan.tasks[i + threads_ < std::ssize(plan.tasks) ? i + threads_ : i];
        run(layer, weights, rows, plan, plan.tasks[i], first_blocks(layer, plan, later), scratch_[thread]);
    }
}

// The second is the first again where the task reads one block only.
AttentionStage::Upcoming AttentionStage::first_blocks(int64_t layer, const Plan& plan, const Task& task) const {
    const Tile& tile = tiles_[task.tile];
    int64_t begin = task.split_begin * kSplitTokens;
    if (plan.window > 0) begin = std::max(begin, tile.position - plan.window + 1);
    const int64_t first = begin / kKvBlock, last = (end_of(task) - 1) / kKvBlock;
    const auto block = [&](int64_t index) {
        return cache_.at(layer, task.kv_head) + block_table(tile.sequence)[index] * cache_.block_pitch();
    };
    return {block(first), block(std::min(first + 1, last))};
}

void AttentionStage::run(int64_t layer, const LayerWeights& weights, const Rows& rows, const Plan& plan,
                         const Task& task, const Upcoming& upcoming, Scratch& s) {
    const Tile& tile = tiles_[task.tile];
    const int64_t group = config_.group(), head_dim = config_.head_dim;
    const int64_t rotary = config_.layers[layer].rotary;
    const int32_t* const table = block_table(tile.sequence);

    for (int64_t i = 0; i < tile.tokens; ++i) {
        const int64_t row = tile.row + i;
        for (int64_t g = 0; g < group; ++g) {
            const float* const query = rows.query + row * rows.query_stride + (task.kv_head * group + g) * head_dim;
            float* const prepared = s.query.data() + (i * group + g) * padded_;
            if (weights.q_norm.empty())
                std::memcpy(prepared, query, head_dim * sizeof(float));
            else
                kernels_.rms_norm(query, weights.q_norm.data(), config_.norm_eps, head_dim, prepared);
            kernels_.rotate(prepared, rotary_.cos(rotary, row), rotary_.sin(rotary, row), rotary_.half(rotary));
            kernels_.scale(prepared, config_.attention_scale, head_dim);
        }
        const int64_t position = tile.position + i;
        if (tile.stores && position >= task.split_begin * kSplitTokens && position < task.split_end * kSplitTokens)
            s.writes[i] =
                make_write(layer, weights, rows, row, position, task.kv_head, table, s.keys.data() + i * padded_);
    }

    const int tile_rows = static_cast<int>(tile.tokens * group);
    const int64_t task_end = end_of(task);
    AttentionTask attention{
        .query = s.query.data(),
        .rows = tile_rows,
        .group = static_cast<int>(group),
        .first_position = tile.position,
        .begin = 0,
        .end = 0,
        .window = plan.window,
        .layout = &cache_.layout(),
        .softcap = config_.attention_softcap,
        .cache = cache_.at(layer, task.kv_head),
        .block_pitch = cache_.block_pitch(),
        .block_table = table,
        .upcoming = {},
        .store_kv = kernels_.store_kv,
        .writes = nullptr,
        .write_count = 0,
        .write_position = 0,
        .max = nullptr,
        .sum = nullptr,
        .weighted = nullptr,
        .scratch = s.scores.data(),
        .coded = {.codes = s.query_codes.data(), .scales = s.query_scales.data(), .sums = s.query_sums.data()}};
    if (has_codes(cache_.layout().types.key)) kernels_.code_queries(attention);
    const auto attend_split = [&](int64_t split) {
        attention.begin = split * kSplitTokens;
        attention.end = attention.begin + kSplitTokens;
        if (tile.stores) {
            const int64_t first = std::max(tile.position, attention.begin);
            const int64_t end = std::min(tile.position + tile.tokens, attention.end);
            attention.writes = s.writes.data() + (first - tile.position);
            attention.write_count = static_cast<int>(std::max<int64_t>(0, end - first));
            attention.write_position = first;
        }
        auto others = upcoming.begin();
        for (int64_t after = attention.end; const std::byte*& block : attention.upcoming) {
            const bool own = after < task_end;
            block = own ? attention.cache + table[after / kKvBlock] * attention.block_pitch : *others++;
            after += kKvBlock;
        }
        kernels_.attend(attention);
    };
    const auto merge = [&](bool first, const float* max, const float* sum, const float* weighted) {
        kernels_.merge_split({.rows = tile_rows,
                              .head_dim = padded_,
                              .first = first,
                              .max = max,
                              .sum = sum,
                              .weighted = weighted,
                              .total_max = s.total_max.data(),
                              .total_sum = s.total_sum.data(),
                              .total_weighted = s.total_weighted.data()});
    };

    if (!plan.parallel_splits) {
        for (int64_t split = task.split_begin; split < task.split_end; ++split) {
            const bool first = split == task.split_begin;  // straight into the totals
            attention.max = first ? s.total_max.data() : s.max.data();
            attention.sum = first ? s.total_sum.data() : s.sum.data();
            attention.weighted = first ? s.total_weighted.data() : s.weighted.data();
            attend_split(split);
            if (!first) merge(false, s.max.data(), s.sum.data(), s.weighted.data());
        }
        finish(rows, tile, task.kv_head, s.total_sum.data(), s.total_weighted.data());
        return;
    }

    const int64_t part_floats = tile_rows_ * (padded_ + 2);
    const auto part_at = [&](int64_t part) { return partials_.data() + part * part_floats; };
    float* const own = part_at(task.part);
    attention.max = own;
    attention.sum = own + tile_rows_;
    attention.weighted = own + 2 * tile_rows_;
    attend_split(task.split_begin);
    // Whoever comes last merges, in order.
    std::atomic<int>& done = unit_done_[task.unit];
    if (done.fetch_add(1, std::memory_order_acq_rel) + 1 < task.unit_parts) return;
    done.store(0, std::memory_order_relaxed);
    for (int64_t i = 0; i < task.unit_parts; ++i) {
        const float* const part = part_at(task.unit_first + i);
        merge(i == 0, part, part + tile_rows_, part + 2 * tile_rows_);
    }
    finish(rows, tile, task.kv_head, s.total_sum.data(), s.total_weighted.data());
}

void AttentionStage::finish(const Rows& rows, const Tile& tile, int64_t kv_head, const float* sum,
                            const float* weighted) const {
    const int64_t group = config_.group();
    for (int64_t i = 0; i < tile.tokens; ++i)
        for (int64_t g = 0; g < group; ++g) {
            const int64_t r = i * group + g;
            float* const out = rows.out + (tile.row + i) * rows.out_stride + (kv_head * group + g) * config_.head_dim;
            std::memcpy(out, weighted + r * padded_, config_.head_dim * sizeof(float));
            kernels_.scale(out, 1.0f / sum[r], config_.head_dim);
        }
}

}  // namespace lpx
