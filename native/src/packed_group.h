// One row of one block inside a packed group, written and read in scalar code.
#pragma once

#include "packed_layout.h"

namespace lpx {

// `group` points at a group of the format; `row` is 0..15 within it, `block` counts 32 columns.
void write_block(PackedFormat format, std::byte* group, int row, int64_t block, const WeightBlock& value);
void read_packed_block(PackedFormat format, const std::byte* group, int row, int64_t block, WeightBlock& value);

// `count` <= 32 finite values to signed 8-bit codes with one f16 scale (layout Q8_0).
void quantize_block_q8(const float* x, int count, WeightBlock& out);
// ... to 4-bit codes with f16 scale and minimum (layout Q4_1), searching for the smallest squared error.
void quantize_block_q4(const float* x, int count, WeightBlock& out);

}  // namespace lpx
