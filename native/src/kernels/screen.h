// Upper bounds of the logits from the high nibbles of a split matrix: what screen() and refine() of a kernel set take.
//
// A code is 16 h + l - 128, h and l its nibbles. A product with a row x of activations is screened as the sum of
// scale * (16 h - 120.5) * x, which is exact up to the sum of scale * (l - 7.5) * x. Where x is largest, the low
// nibbles are read too; the rest is bounded by Cauchy and Schwarz, from norms that the matrix holds (SplitNorms) and
// norms of x.
#pragma once

#include <cstdint>

namespace lpx {

class PackedMatrix;
struct RefinedQuad;

inline constexpr int kMostScreenRows = 8;  // as many as are usually verified together when tokens are drafted

// Octets whose low nibbles screen() reads, and those that refine() has read in the end.
inline constexpr int kScreenOctets = 8, kRefineOctets = 32;

// Eight columns of a row of activations: two quads that share a vector of low nibbles.
struct ScreenOctet {
    int8_t q8[8];
    int32_t block;   // of 32 columns
    int32_t vector;  // of the four in the plane of the block
    float scale;     // of the activations of the block
    float offset;    // -7.5 * sum of q8
};

// One row of activations.
struct ScreenRow {
    const int8_t* q8;
    const float* scale;          // [blocks], times 16
    const float* offset;         // [blocks]: -120.5 * sum of the activations of a block
    const RefinedQuad* refined;  // [refined quads], the scale times 16
    // The activations of octets by falling norm; twice for an octet with a refined quad. screen() takes the first
    // `screen_count`, refine() the rest.
    ScreenOctet octets[2 * kRefineOctets];
    int32_t screen_count, octet_count;
    // Norms of the activations of the other octets: factors of SplitNorms::residual after screen() and after refine().
    float left_by_screen, left_by_refine;
    float rounding;  // factor of SplitNorms::term
};

struct ScreenTask {
    const PackedMatrix* matrix;
    int64_t group_begin, group_end;
    const ScreenRow* rows;
    int64_t row_count;
    float* approximate;  // [rows][approximate_stride], 16 for each group of the matrix, beyond its last row too
    int64_t approximate_stride;
    float* upper;  // [rows][upper_stride], one for each group: no logit of it is larger; some +infinity if that is not
                   // known
    int64_t upper_stride;
};

}  // namespace lpx
