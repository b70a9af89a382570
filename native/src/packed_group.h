// One row of one block inside a packed group, written and read in scalar code.
#pragma once

#include "packed_layout.h"

namespace lpx {

// `group` points at a group of the format, `low` at its low nibbles where they lie apart; `row` is 0..15 within it,
// `block` counts 32 columns.
void write_block(PackedFormat format, std::byte* group, std::byte* low, int row, int64_t block,
                 const WeightBlock& value);
void read_packed_block(PackedFormat format, const std::byte* group, const std::byte* low, int row, int64_t block,
                       WeightBlock& value);

// A row of Q8_0 as w[k] = scale * code. What the screen of the head leaves out of a product with x is
//   the low nibbles: at most `residual` * |x|, residual = norm of scale * (low nibble - 7.5)
//   roundings: each of them at most 2^-24 * `term` * |x|
struct SplitNorms {
    double residual = 0.0, term = 0.0;  // squared until written

    void add(const WeightBlock& block);
};
// The square roots, rounded up.
void write_split_norms(std::byte* group, int row, const SplitNorms& norms);

// `count` <= 32 finite values to signed 8-bit codes with one f16 scale (layout Q8_0).
void quantize_block_q8(const float* x, int count, WeightBlock& out);
// ... to 4-bit codes with f16 scale and minimum (layout Q4_1), searching for the smallest squared error.
void quantize_block_q4(const float* x, int count, WeightBlock& out);

}  // namespace lpx
