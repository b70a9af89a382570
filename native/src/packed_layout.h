// How each block format lies in a file row and in a packed group. Owned here: bit positions and sizes, nothing else.
//
// A file row is read 32 columns at a time into a WeightBlock, whatever its encoding; packing, unpacking and the scalar
// decoder all go through it, so that a packed matrix gives back exactly the numbers of the file.
#pragma once

#include <cstddef>
#include <cstdint>

#include "packed_matrix.h"

namespace lpx {

// One enumerator per layout: the values are those of WeightType.
enum class PackedFormat : uint8_t {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    IQ4_NL,
    IQ4_XS,
    Q8_0_Split  // no weight type of its own: Q8_0 as the head has it, see SplitLayout
};

// Layout of a group (16 rows) of a block format, in order of address:
//   for each super block (`blocks_per_super` blocks of 32 columns)
//     two-level only: f16 d[16], and with a minimum f16 dmin[16]
//     for each block
//       codes, 512 of them in code_bytes(): see below
//       one level:  f16 scale[16], and with a minimum f16 min[16]
//       two levels: int8 sub_scale[scales][16], and with a minimum uint8 sub_min[scales][16]; with nibble_scales
//                   both in one byte, the scale low
// Codes are eight vectors of 64 bytes; vector j holds columns 4j..4j+3, byte (row * 4 + column % 4). In memory:
//   8 bits: the eight vectors.
//   4 low bits (4, 5, 6 bits): four vectors, vector v with code vector 2v in the low and 2v + 1 in the high nibbles.
//   2 low bits (2, 3 bits): two vectors, bits 2i of vector p for code vector 4p + i.
//   fifth bit: one vector, bit j for code vector j. Third bit (3 bits): the same.
//   fifth and sixth bit (6 bits): two vectors like those of the 2 low bits.
// value = scale * (code - offset), or scale * table[code] (4-bit codes of IQ4), scale = d * sub_scale with two levels;
// plus min, or minus dmin * sub_min with two levels. 8-bit codes are signed.
struct BlockLayout {
    int code_bits;
    bool table;
    int scales;  // per block of 32 columns: 1, or 2 of 16 columns each
    bool minimum;
    bool two_level;
    bool nibble_scales;
    int offset;

    constexpr int code_bytes() const { return 64 * code_bits; }
    constexpr int blocks_per_super() const { return two_level ? 8 : 1; }
    constexpr int header_bytes() const { return two_level ? (minimum ? 64 : 32) : 0; }
    constexpr int scale_bytes() const {
        if (!two_level) return minimum ? 64 : 32;
        return 16 * scales * (minimum && !nibble_scales ? 2 : 1);
    }
    constexpr int block_bytes() const { return code_bytes() + scale_bytes(); }
    constexpr int super_bytes() const { return header_bytes() + blocks_per_super() * block_bytes(); }
};

constexpr BlockLayout block_layout(PackedFormat format) {
    switch (format) {  //                        bits table scales min  two  nibble offset
        case PackedFormat::Q4_0:
            return {4, false, 1, false, false, false, 8};
        case PackedFormat::Q4_1:
            return {4, false, 1, true, false, false, 0};
        case PackedFormat::Q5_0:
            return {5, false, 1, false, false, false, 16};
        case PackedFormat::Q5_1:
            return {5, false, 1, true, false, false, 0};
        case PackedFormat::Q8_0:
        case PackedFormat::Q8_0_Split:
            return {8, false, 1, false, false, false, 0};
        case PackedFormat::IQ4_NL:
            return {4, true, 1, false, false, false, 0};
        case PackedFormat::Q2_K:
            return {2, false, 2, true, true, true, 0};
        case PackedFormat::Q3_K:
            return {3, false, 2, false, true, false, 4};
        case PackedFormat::Q4_K:
            return {4, false, 1, true, true, false, 0};
        case PackedFormat::Q5_K:
            return {5, false, 1, true, true, false, 0};
        case PackedFormat::Q6_K:
            return {6, false, 2, false, true, false, 32};
        case PackedFormat::IQ4_XS:
            return {4, true, 1, false, true, false, 0};
        case PackedFormat::F32:
        case PackedFormat::F16:
        case PackedFormat::BF16:
            break;
    }
    return {};
}

constexpr bool is_float(PackedFormat format) {
    return format <= PackedFormat::BF16;
}
constexpr int float_bytes(PackedFormat format) {
    return format == PackedFormat::F32 ? 4 : 2;
}

// Q8_0 with the high four bits of the codes apart from the low ones, so that the likeliest tokens can be found from the
// high ones (kernels/screen.h). A group is
//   two floats a row, [2][16]: bounds of what screening leaves out, see SplitNorms
//   for each block: the high nibbles of code + 128, as codes of 4 bits lie, and f16 scale[16]
// and behind all groups, for every kLowGroups of them,
//   for each of the four vectors of the low nibbles of each block: that of one group after the other.
// So a few vectors of many groups, the octets of a screen, are read in runs.
struct SplitLayout {
    static constexpr int kNormBytes = 2 * 16 * 4;
    static constexpr int kNibbleBytes = 256;
    static constexpr int kBlockBytes = kNibbleBytes + 32;
    static constexpr int64_t group_bytes(int64_t blocks) { return kNormBytes + blocks * kBlockBytes; }
    static constexpr int64_t kLowGroups = 3;
    static constexpr int64_t kLowStride = kLowGroups * 64;  // between vectors of a group
    static constexpr int64_t low_bytes(int64_t blocks) { return 4 * blocks * kLowStride; }  // of kLowGroups groups
    static constexpr int64_t low_offset(int64_t blocks, int64_t group) {
        return group / kLowGroups * low_bytes(blocks) + group % kLowGroups * 64;
    }
};

// The values behind the codes of IQ4_NL and IQ4_XS (GGML's kvalues_iq4nl, part of the file format).
inline constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

// 32 columns of one row.
struct WeightBlock {
    uint8_t code[32];
    uint16_t scale;  // f16 bits: scale, or d with two levels
    uint16_t min;    // f16 bits: minimum, or dmin with two levels
    int8_t sub_scale[2];
    uint8_t sub_min[2];
};

// Block `block` (columns 32 * block ...) of a file row.
void read_block(PackedFormat format, const uint8_t* row, int64_t block, WeightBlock& out);
// The 32 float values of a block: the one formula for files and packed matrices.
void block_values(PackedFormat format, const WeightBlock& block, float* out);

float f16_to_f32(uint16_t bits);
uint16_t f32_to_f16(float value);  // round to nearest even
float bf16_to_f32(uint16_t bits);

}  // namespace lpx
