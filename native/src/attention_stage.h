// Attention of one layer over all sequences of a step: cut into tasks that threads take one after the other.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "aligned_buffer.h"
#include "decoder_config.h"
#include "kernels/kernels.h"
#include "kv_cache.h"
#include "step_input.h"

namespace lpx {

struct LayerWeights;

// cos and sin of the rows of a step, times the attention factor; one table per rotary config.
class RotaryRows {
  public:
    RotaryRows(const DecoderConfig& config, int64_t max_rows);
    // In double precision from the position alone, so that a row does not depend on its step (I1).
    void fill(int64_t row, int64_t position);
    int64_t half(int64_t rotary) const { return tables_[rotary].half; }
    const float* cos(int64_t rotary, int64_t row) const { return at(rotary, row); }
    const float* sin(int64_t rotary, int64_t row) const { return at(rotary, row) + tables_[rotary].half; }
    // [head_dim]: what a dimension is multiplied by at every position where it is hardly rotated, else 0.
    const std::vector<float>& steady(int64_t rotary) const { return tables_[rotary].steady; }
    static size_t bytes_for(const DecoderConfig& config, int64_t max_rows);

  private:
    struct Table {
        int64_t half;
        AlignedBuffer<float> values;  // [rows][cos | sin]
        std::vector<float> steady;
    };
    const float* at(int64_t rotary, int64_t row) const {
        return tables_[rotary].values.data() + row * 2 * tables_[rotary].half;
    }
    const std::vector<RotaryConfig>& configs_;
    std::vector<Table> tables_;
};

class AttentionStage {
  public:
    // Queries, keys and values as the matrices made them, and where the result goes; [rows][stride].
    struct Rows {
        const float* query;
        const float* key;
        const float* value;
        float* out;
        int64_t query_stride, kv_stride, out_stride;
    };

    AttentionStage(const DecoderConfig& config, const KernelTable& kernels, const KvCache& cache,
                   const RotaryRows& rotary, int threads, int64_t max_rows);

    // Plans the tasks of a step; not from several threads.
    void begin_step(const StepInput& input);
    // Whether store_rows and a barrier have to come before attend: some sequence has rows that read what a task of
    // another tile would write.
    bool stores_first() const { return stores_first_; }
    // Writes keys and values of this thread's share of the rows that stores_first is about.
    void store_rows(int64_t layer, const LayerWeights& weights, const Rows& rows, int thread);
    // Takes tasks until none is left.
    void attend(int64_t layer, const LayerWeights& weights, const Rows& rows, int thread);

    static size_t bytes_for(const DecoderConfig& config, int threads);

  private:
    // Neighbouring rows of one sequence.
    struct Tile {
        int64_t sequence;
        int64_t row;  // first
        int64_t tokens;
        int64_t position;  // of the first row
        bool stores;       // its tasks write its keys and values; else store_rows did
    };
    struct Task {
        int64_t tile, kv_head;
        int64_t split_begin, split_end;
        // With parallel splits: a unit is all splits of one (tile, KV head); their results lie side by side in
        // partials_, from unit_first on, this one's at `part`.
        int64_t unit = 0, unit_first = 0, unit_parts = 0, part = 0;
    };
    using Upcoming = std::array<const std::byte*, 2>;  // blocks, in the order of use
    // Tasks of all layers with the same window.
    struct Plan {
        int64_t window;
        bool parallel_splits;
        std::vector<Task> tasks;
    };
    struct Scratch {
        AlignedBuffer<float> query, scores, max, sum, weighted, total_max, total_sum, total_weighted;
        AlignedBuffer<float> keys;  // of the tokens of a tile
        std::vector<KvWrite> writes;
        AlignedBuffer<int16_t> query_codes;
        AlignedBuffer<float> query_scales, query_sums;
    };

    void plan(Plan& plan);
    // The position after the last that the rows of a task see.
    int64_t end_of(const Task& task) const {
        return std::min(tiles_[task.tile].position + tiles_[task.tile].tokens, task.split_end * kSplitTokens);
    }
    // What is to be kept of a token; its key is made in `key`.
    KvWrite make_write(int64_t layer, const LayerWeights& weights, const Rows& rows, int64_t row, int64_t position,
                       int64_t kv_head, const int32_t* block_table, float* key) const;
    void take_steady_bias(int64_t layer, const LayerWeights& weights, int64_t kv_head, float* key) const;
    Upcoming first_blocks(int64_t layer, const Plan& plan, const Task& task) const;
    // `upcoming` are the blocks that the thread needs after this task.
    void run(int64_t layer, const LayerWeights& weights, const Rows& rows, const Plan& plan, const Task& task,
             const Upcoming& upcoming, Scratch& scratch);
    void finish(const Rows& rows, const Tile& tile, int64_t kv_head, const float* sum, const float* weighted) const;
    const int32_t* block_table(int64_t sequence) const {
        return input_->block_ids.data() + input_->table_begin[sequence];
    }

    const DecoderConfig& config_;
    const KernelTable& kernels_;
    const KvCache& cache_;
    const RotaryRows& rotary_;
    int threads_;
    int64_t padded_, tile_rows_;
    std::vector<size_t> plan_of_layer_;
    std::vector<Plan> plans_;
    std::vector<Tile> tiles_;
    std::vector<Scratch> scratch_;   // per thread
    AlignedBuffer<float> partials_;  // [part][max | sum | weighted]
    std::unique_ptr<std::atomic<int>[]> unit_done_;
    std::unique_ptr<std::atomic<int64_t>[]> next_task_;  // per layer
    const StepInput* input_ = nullptr;
    bool stores_first_ = false;
};

}  // namespace lpx
