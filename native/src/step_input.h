// The rows of one step, flat: what lpx.runtime.step.StepBatch says about tokens and KV blocks.
#pragma once

#include <cstdint>
#include <span>

namespace lpx {

struct StepInput {
    std::span<const int32_t> token_ids;       // [rows], sequence after sequence
    std::span<const int32_t> row_begin;       // [sequences + 1] into token_ids
    std::span<const int32_t> start_position;  // [sequences]: position of a sequence's first row
    std::span<const int32_t> block_ids;       // block tables, sequence after sequence
    std::span<const int32_t> table_begin;     // [sequences + 1] into block_ids
    std::span<const int32_t> logit_rows;      // rows that need logits, ascending; a row may come twice
    // Rows [pool_begin[p], pool_end[p]), behind those of the pool before it, whose final hidden states (after the last
    // norm) are added to the hidden_size numbers from pool_sums + p * hidden_size on, row after row.
    std::span<const int32_t> pool_begin, pool_end;  // [pools]
    double* pool_sums = nullptr;

    int64_t rows() const { return std::ssize(token_ids); }
    int64_t sequences() const { return std::ssize(start_position); }
    int64_t pools() const { return std::ssize(pool_begin); }
};

// Takes the logits of each row of StepInput::logit_rows, on whatever thread; may change them.
class LogitSink {
  public:
    virtual ~LogitSink() = default;
    // `index` counts logit_rows. Must not throw.
    virtual void take(int64_t index, std::span<float> logits, int thread) noexcept = 0;
    // Whether nothing but the id of the largest logit is wanted of a row, the lowest of equal ones. Then take_largest
    // may be called in place of take.
    virtual bool wants_largest_alone(int64_t /*index*/) const noexcept { return false; }
    // The ids among which that is looked for, a bit each; empty: all.
    virtual std::span<const uint32_t> allowed(int64_t /*index*/) const noexcept { return {}; }
    virtual void take_largest(int64_t /*index*/, int32_t /*id*/) noexcept {}
};

}  // namespace lpx
