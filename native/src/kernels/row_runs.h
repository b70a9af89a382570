// Rows of a tile in runs that fit the registers.
//
// Included only by src/kernels/isa/*.cpp, under the same rules as simd.h.
#pragma once

#include "kv_layout.h"
#include "simd.h"

namespace lpx::LPX_ISA_NS {

inline constexpr int kBlockVectors = kKvBlock / kLanes;  // of the tokens of a block

template <int N>
struct Rows {
    static constexpr int value = N;
};
template <int kMost, class F>
inline void call_with_rows(int count, int first, F f) {
    if constexpr (kMost > 1)
        if (count < kMost) return call_with_rows<kMost - 1>(count, first, f);
    f(first, Rows<kMost>());
}

// Calls f with the rows in the fewest runs of at most kMost, as even as can be: (first row, run length as a
// compile-time constant).
template <int kMost, class F>
inline void for_row_runs(int rows, F f) {
    int runs = (rows + kMost - 1) / kMost;
    for (int r = 0; runs > 0; --runs) {
        const int count = (rows - r + runs - 1) / runs;
        call_with_rows<kMost>(count, r, f);
        r += count;
    }
}

}  // namespace lpx::LPX_ISA_NS
