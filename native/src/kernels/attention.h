// What attention kernels work on: blocks of the KV cache, as kernels/kv_layout.h lays them out, and rows of queries.
//
// Stored values, scales and minima are always finite, so that masked tokens, whatever an earlier owner of the block
// left there, add exactly nothing.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kv_layout.h"

namespace lpx {

inline constexpr int kSplitTokens = 256;  // attention is accumulated apart over every so many absolute positions
inline constexpr int kMaxTileRows = 32;   // query rows (tokens x heads of a group) that share one pass over the keys

// Writes key and value of one token, clamped to the finite range of the type (of float16 where codes are kept), to slot
// `slot` of a block.
struct KvWrite {
    const float* key;    // [head_dim]
    const float* value;  // [head_dim]
    const KvLayout* layout;
    std::byte* block;
    int slot;
};

// Codes of query rows for keys that are codes themselves.
struct QueryCodes {
    int16_t* codes;  // [rows][padded head_dim]
    float* scales;   // [rows][groups]
    float* sums;     // [rows][groups]: scale times the sum of the codes
};

// Online softmax over the tokens of one split [begin, end) for a tile of query rows; block by block in ascending order,
// so a row's bits do not depend on the other rows of the tile (I1). Row r belongs to token r / group, whose position
// is first_position + r / group; it sees the positions (position - window, position] of the split.
//
// `writes` go to the cache on the way: their lines are fetched before they are written, like all others.
struct AttentionTask {
    const float* query;  // [rows][padded head_dim], rotated, scaled, padding zero
    int rows;
    int group;
    int64_t first_position;
    int64_t begin, end;  // absolute positions; begin is a multiple of kSplitTokens, end - begin <= kSplitTokens
    int64_t window;      // 0: no limit
    const KvLayout* layout;
    float softcap;                 // 0: off
    const std::byte* cache;        // block 0 of this layer and KV head
    int64_t block_pitch;           // bytes from one block to the next
    const int32_t* block_table;    // of the sequence
    const std::byte* upcoming[2];  // blocks to fetch during the last ones, in the order of use; may be any
    void (*store_kv)(const KvWrite&);
    const KvWrite* writes;  // neighbouring tokens, the first of them at position write_position
    int write_count;
    int64_t write_position;
    float* max;        // [rows]: largest score, kNoScore when the row sees no token of the split
    float* sum;        // [rows]: sum of exp(score - max)
    float* weighted;   // [rows][padded head_dim]: sum of exp(score - max) * value
    float* scratch;    // [rows][kKvBlock + 1]
    QueryCodes coded;  // made by code_queries; only where keys are codes
};

inline constexpr float kNoScore = -1e30f;

// Folds one split into the accumulated state; splits are folded in ascending order. `first` starts the state.
struct MergeTask {
    int rows;
    int64_t head_dim;  // padded
    bool first;
    const float* max;
    const float* sum;
    const float* weighted;
    float* total_max;
    float* total_sum;
    float* total_weighted;
};

}  // namespace lpx
