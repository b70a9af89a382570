// Rows of a tile in runs that fit the registers.
//
// Included only by src/kernels/isa/*.cpp, under the same rules as simd.h.
#pragma once

#include "kv_layout.h"
#include "simd.h"

namespace lpx::LPX_ISA_NS {

inline constexpr int kBlockVectors = kKvBlock / kLanes;  // of the tokens of a block

// Calls f with the rows in runs of at most 6: (first row, run length as a compile-time constant).
template <int N>
struct Rows {
    static constexpr int value = N;
};
template <class F>
inline void for_row_runs(int rows, F f) {
    int r = 0;
    for (; rows - r >= 6; r += 6) f(r, Rows<6>());
    switch (rows - r) {
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
        case 1:
            f(r, Rows<1>());
            break;
        default:
            break;
    }
}

}  // namespace lpx::LPX_ISA_NS
