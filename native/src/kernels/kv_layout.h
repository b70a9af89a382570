// How the KV cache keeps keys and values: the types, and where everything lies in a block of one KV head.
//
//   f16, bf16  keys [head_dim][kKvBlock] (lanes are tokens), values [kKvBlock][padded head_dim] (lanes are dimensions)
//   q8         codes c of 8 bits, value = c * scale
//   q4         codes c of 4 bits, value = minimum + c * scale
//
// A token has one scale (and minimum), float16, for every kKvGroup dimensions. Codes lie in pairs, as the products of
// 16-bit numbers take them, and no two tokens share a byte, since different threads may write them:
//
//   keys q8    [padded / 2][kKvBlock][2]: dimensions 2p and 2p + 1 of a token
//   keys q4    [padded / 4][kKvBlock][2]: byte j of quad k holds dimension 4k + j, and 4k + 2 + j in its high half
//   values q8  [kKvBlock / 2][groups][kKvGroup][2]: a dimension of tokens 2p and 2p + 1
//   values q4  [kKvBlock / 2][groups][kKvGroup / 2][2]: byte d of a group holds its dimension d, and d + 16 in the high
//              half
//
// Scales and minima are kept [groups][kKvBlock] behind the codes, but for those of q8: the lowest bits of a group of
// values are the scale of these (dimensions 16 to 31, the lowest bit first) and, where keys are q8 too, that of the
// keys of the group (dimensions 0 to 15). So a number takes one byte, all in all. Products take the codes as they are.
// Values lose a bit by it, which costs next to nothing: keys are what needs precision (docs/accuracy.md).
//
// Keys that are codes are kept in a rotated basis, see rotate_head.h.
#pragma once

#include <cstdint>

namespace lpx {

enum class KvType : uint8_t { F16, BF16, Q8, Q4 };

struct KvTypes {
    KvType key = KvType::F16, value = KvType::F16;
};

inline constexpr int kKvBlock = 32;  // tokens of a KV block
inline constexpr int kMaxHeadDim = 512;
inline constexpr int kHeadDimStep = 16;  // values, codes and accumulators are padded to a multiple
inline constexpr int kKvGroup = 32;      // dimensions that share a scale; the last group of a head may have 16
inline constexpr int kMostKvGroups = kMaxHeadDim / kKvGroup;

// Internal linkage: each instruction set has to keep its own copy.
static inline int64_t padded_head_dim(int64_t head_dim) {
    return (head_dim + kHeadDimStep - 1) / kHeadDimStep * kHeadDimStep;
}
static inline bool has_codes(KvType type) {
    return type == KvType::Q8 || type == KvType::Q4;
}

// Offsets in bytes from the first key of a block, all of them multiples of 64; scales only where no codes hold them,
// minima only for q4.
struct KvLayout {
    KvTypes types;
    int64_t head_dim, padded;
    int64_t groups;
    bool holds_value_scales, holds_key_scales;  // the codes of values do
    int64_t key_scales, key_minima, values, value_scales, value_minima;
    int64_t bytes;  // of the block
};

}  // namespace lpx
