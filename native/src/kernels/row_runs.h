// Rows of a tile in runs that fit the registers.
//
// Included only by src/kernels/isa/*.cpp, under the same rules as simd.h.
#pragma once

#include "kv_layout.h"
#include "simd.h"

namespace lpx::LPX_ISA_NS {

inline constexpr int kBlockVectors = kKvBlock / kLanes;  // of the tokens of a block

inline constexpr int kMostRows = 6;  // of a run

// Calls f with the rows in the fewest runs of at most kMostRows, as even as can be: (first row, run length as a
// compile-time constant).
template <int N>
struct Rows {
    static constexpr int value = N;
};
template <class F>
inline void for_row_runs(int rows, F f) {
    int runs = (rows + kMostRows - 1) / kMostRows;
    for (int r = 0; runs > 0; --runs) {
        const int count = (rows - r + runs - 1) / runs;
        switch (count) {
            case 6:
                f(r, Rows<6>());
                break;
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
            default:
                f(r, Rows<1>());
                break;
        }
        r += count;
    }
}

}  // namespace lpx::LPX_ISA_NS
