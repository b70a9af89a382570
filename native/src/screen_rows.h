// Rows of activations prepared for the screen of a split matrix (kernels/screen.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "aligned_buffer.h"
#include "kernels/kernels.h"

namespace lpx {

class ScreenRows {
  public:
    // `cols` is padded to whole blocks.
    ScreenRows(int64_t cols, int64_t rows);
    // Takes row `row` of `a`, whose q8 has to stay where it is. Different threads may prepare different rows.
    void prepare(const Activations& a, int64_t row);
    const ScreenRow* data() const { return rows_.data(); }
    static size_t bytes_for(int64_t cols, int64_t rows);

  private:
    int64_t cols_;
    std::vector<ScreenRow> rows_;
    AlignedBuffer<float> scale_, offset_;  // [rows][blocks]
    std::vector<RefinedQuad> refined_;     // [rows][refined quads]
};

}  // namespace lpx
