// Where a tile of a block matrix product gets its codes and scales: from packed groups, or from what an earlier tile
// has kept of them, unpacked.
//
// Included only by src/kernels/isa/*.cpp (see simd.h).
#pragma once

#include <utility>

#include "../packed_layout.h"
#include "kernels.h"
#include "simd_int.h"

namespace lpx::LPX_ISA_NS {

// What the arithmetic on a block looks like once codes and scales are unpacked.
struct TileKind {
    int bits;      // bound of the codes, as in Dot
    int scales;    // scales per block of 32 columns, 1 or 2
    bool minimum;  // a minimum per scale
    int offset;    // subtracted from each code, through the sum of the activations

    constexpr bool corrected() const { return minimum || offset != 0; }
    constexpr bool operator==(const TileKind&) const = default;
};

constexpr TileKind tile_kind(PackedFormat format) {
    const BlockLayout layout = block_layout(format);
    const bool wide = layout.code_bits == 8 || layout.table;
    const int bits = wide ? 8 : layout.code_bits < 4 ? 4 : layout.code_bits;
    return {bits, layout.scales, layout.minimum, wide && kUnsigned8 ? 128 : layout.offset};
}
// Whether products with packed groups of split codes are one with the high nibbles and one with the low ones. Where
// codes are unsigned bytes, putting the nibbles together is cheaper.
constexpr bool has_nibble_dots(PackedFormat format) {
    return format == PackedFormat::Q8_0_Split && !kUnsigned8;
}
constexpr TileKind packed_kind(PackedFormat format) {
    if (has_nibble_dots(format)) return {.bits = 4, .scales = 1, .minimum = false, .offset = 128};
    return tile_kind(format);
}

// Memory that is fetched while blocks are walked: from `next` on, so many bytes for each block.
class Fetch {
  public:
    Fetch() = default;
    Fetch(const void* next, int64_t bytes_per_block)
        : fetched_(static_cast<const std::byte*>(next)), wanted_(fetched_), bytes_per_block_(bytes_per_block) {}
    void advance() {
        for (wanted_ += bytes_per_block_; fetched_ < wanted_; fetched_ += 64) prefetch_stream(fetched_);
    }

  private:
    const std::byte* fetched_ = nullptr;
    const std::byte* wanted_ = nullptr;
    int64_t bytes_per_block_ = 0;
};

// Values of the 4-bit table as the dot product takes them.
struct CodeTable {
    uint8_t value[16];
};
constexpr CodeTable make_code_table() {
    CodeTable table{};
    for (int i = 0; i < 16; ++i) table.value[i] = static_cast<uint8_t>(kIq4Values[i] + (kUnsigned8 ? 128 : 0));
    return table;
}

// Walks the blocks of one packed group.
template <PackedFormat kFormat>
class PackedSource {
    static constexpr BlockLayout kLayout = block_layout(kFormat);
    static constexpr bool kSplit = kFormat == PackedFormat::Q8_0_Split;

  public:
    static constexpr bool kNibbleDots = has_nibble_dots(kFormat);
    static constexpr TileKind kKind = packed_kind(kFormat);
    static constexpr int kParts = LPX_ISA_NS::kParts;

    // Fetches what comes next in memory.
    PackedSource(const PackedMatrix& w, int64_t group, int64_t block) : PackedSource(w, group, block, Fetch()) {
        fetch_ = Fetch(block_ + kFetchAhead, kLayout.super_bytes() / kLayout.blocks_per_super());
        if constexpr (kSplit) fetch_ = Fetch(block_ + kFetchAhead, kBlockBytes);
    }
    // `block` must be the first of a super block. The low nibbles of split codes are fetched of the group that is
    // `low_step` further on, of none with 0.
    PackedSource(const PackedMatrix& w, int64_t group, int64_t block, const Fetch& fetch, int64_t low_step = 1)
        : header_(reinterpret_cast<const uint8_t*>(w.group(group)) +
                  block / kLayout.blocks_per_super() * kLayout.super_bytes()),
          block_(header_ + kLayout.header_bytes()),
          fetch_(fetch) {
        if constexpr (kSplit) {
            block_ = reinterpret_cast<const uint8_t*>(w.group(group)) + SplitLayout::kNormBytes + block * kBlockBytes;
            low_ = reinterpret_cast<const uint8_t*>(w.low_group(group)) + 4 * block * SplitLayout::kLowStride;
            to_next_low_ = w.low_group(group + low_step) - w.low_group(group);
        }
    }

    void next() {
        fetch_.advance();
        block_ += kBlockBytes;
        if constexpr (kSplit) {
            if (to_next_low_ != 0)
                for (int v = 0; v < 4; ++v) prefetch_stream(low_ + to_next_low_ + v * SplitLayout::kLowStride);
            low_ += 4 * SplitLayout::kLowStride;
        }
        if constexpr (kLayout.two_level) {
            if (++index_ == kLayout.blocks_per_super()) {
                index_ = 0;
                header_ = block_;
                block_ += kLayout.header_bytes();
            }
        }
    }

    template <int kVector>
    Bytes codes(int part) const {
        const uint8_t* p = block_ + part * kPartBytes;
        if constexpr (kSplit && !kNibbleDots) {
            const Bytes high = load_bytes(p + kVector / 2 * 64);
            const Bytes low = load_bytes(low_ + part * kPartBytes + kVector / 2 * SplitLayout::kLowStride);
            if constexpr (kVector % 2 == 0) return bit_select(set_bytes(0xf0), shift<4>(high), low);
            return bit_select(set_bytes(0xf0), high, shift<-4>(low));
        } else if constexpr (kLayout.code_bits == 8 && !kSplit) {
            const Bytes code = load_bytes(p + 64 * kVector);
            return kUnsigned8 ? bit_xor(code, set_bytes(0x80)) : code;
        } else if constexpr (kLayout.code_bits < 4) {
            const Bytes low = bit_and(shift<-2 * (kVector % 4)>(load_bytes(p + kVector / 4 * 64)), set_bytes(3));
            if constexpr (kLayout.code_bits == 2) return low;
            return bit_or(low, bit_and(shift<2 - kVector>(load_bytes(p + 128)), set_bytes(4)));
        } else {
            const Bytes pair = load_bytes(p + kVector / 2 * 64);
            const Bytes low = bit_and(shift<kVector % 2 == 0 ? 0 : -4>(pair), set_bytes(15));
            if constexpr (kLayout.table) return lookup(load_table(kTable.value), low);
            if constexpr (kLayout.code_bits == 5)
                return bit_or(low, bit_and(shift<4 - kVector>(load_bytes(p + 256)), set_bytes(0x10)));
            if constexpr (kLayout.code_bits == 6) {
                const Bytes plane = load_bytes(p + 256 + kVector / 4 * 64);
                return bit_or(low, bit_and(shift<4 - 2 * (kVector % 4)>(plane), set_bytes(0x30)));
            }
            return low;
        }
    }

    // Codes as an 8-bit dot product takes them, put together from the nibbles of a split matrix; else as they are.
    template <int kVector>
    Bytes whole_codes(int part) const {
        if constexpr (!kNibbleDots) return codes<kVector>(part);
        return bit_xor(bit_or(high_codes<kVector>(part), low_codes<kVector>(part)), set_bytes(0x80));
    }

    // The block that many further on, in the same super block.
    PackedSource ahead(int blocks) const {
        PackedSource other = *this;
        other.block_ += blocks * kBlockBytes;
        if constexpr (kSplit) other.low_ += 4 * blocks * SplitLayout::kLowStride;
        return other;
    }

    // codes<vector> for a vector known at run time.
    Bytes codes(int vector, int part) const {
        const uint8_t* p = block_ + part * kPartBytes;
        if constexpr (kSplit && !kNibbleDots) {
            const Bytes high = shift_right(load_bytes(p + vector / 2 * 64), 4 * (vector % 2));
            return bit_or(shift<4>(bit_and(high, set_bytes(15))), low_codes(vector, part));
        } else if constexpr (kLayout.code_bits == 8 && !kSplit) {
            const Bytes code = load_bytes(p + 64 * vector);
            return kUnsigned8 ? bit_xor(code, set_bytes(0x80)) : code;
        } else if constexpr (kLayout.code_bits < 4) {
            const Bytes low = bit_and(shift_right(load_bytes(p + vector / 4 * 64), 2 * (vector % 4)), set_bytes(3));
            if constexpr (kLayout.code_bits == 2) return low;
            return bit_or(low, shift<2>(bit_and(shift_right(load_bytes(p + 128), vector), set_bytes(1))));
        } else {
            const Bytes low = bit_and(shift_right(load_bytes(p + vector / 2 * 64), 4 * (vector % 2)), set_bytes(15));
            if constexpr (kLayout.table) return lookup(load_table(kTable.value), low);
            if constexpr (kLayout.code_bits == 5)
                return bit_or(low, shift<4>(bit_and(shift_right(load_bytes(p + 256), vector), set_bytes(1))));
            if constexpr (kLayout.code_bits == 6) {
                const Bytes plane = shift_right(load_bytes(p + 256 + vector / 4 * 64), 2 * (vector % 4));
                return bit_or(low, shift<4>(bit_and(plane, set_bytes(3))));
            }
            return low;
        }
    }

    // The low nibbles of split codes.
    template <int kVector>
    Bytes low_codes(int part) const {
        const Bytes pair = load_bytes(low_ + part * kPartBytes + kVector / 2 * SplitLayout::kLowStride);
        return bit_and(shift<kVector % 2 == 0 ? 0 : -4>(pair), set_bytes(15));
    }
    Bytes low_codes(int vector, int part) const {
        const Bytes pair = load_bytes(low_ + part * kPartBytes + vector / 2 * SplitLayout::kLowStride);
        return bit_and(shift_right(pair, 4 * (vector % 2)), set_bytes(15));
    }

    F32 scale(int sub, int part) const {
        const uint8_t* scales = block_ + kCodeBytes;
        if constexpr (!kLayout.two_level) return load_halves(scales, part);
        const uint8_t* p = scales + 16 * sub + part * kLanes;
        return mul(load_halves(header_, part), kLayout.nibble_scales ? load_low_nibbles(p) : load_i8(p));
    }

    // What is added per unit of the activations' sum.
    F32 min(int sub, int part) const {
        const uint8_t* scales = block_ + kLayout.code_bytes();
        if constexpr (!kLayout.two_level) return load_halves(scales + 32, part);
        const uint8_t* p = scales + 16 * (kLayout.nibble_scales ? sub : kLayout.scales + sub) + part * kLanes;
        return mul(sub_from_zero(load_halves(header_ + 32, part)),
                   kLayout.nibble_scales ? load_high_nibbles(p) : load_u8(p));
    }

  private:
    static constexpr int kBlockBytes = kSplit ? SplitLayout::kBlockBytes : kLayout.block_bytes();
    static constexpr int kCodeBytes = kSplit ? SplitLayout::kNibbleBytes : kLayout.code_bytes();
    static constexpr CodeTable kTable = make_code_table();

    // 16 times the high nibbles of split codes.
    template <int kVector>
    Bytes high_codes(int part) const {
        const Bytes pair = load_bytes(block_ + part * kPartBytes + kVector / 2 * 64);
        return bit_and(shift<kVector % 2 == 0 ? 4 : 0>(pair), set_bytes(0xf0));
    }
    static F32 load_halves(const uint8_t* p, int part) {
        return load_f16(reinterpret_cast<const uint16_t*>(p) + part * kLanes);
    }
    static F32 sub_from_zero(F32 a) { return sub(zero(), a); }

    const uint8_t* header_;
    const uint8_t* block_;
    Fetch fetch_;
    const uint8_t* low_ = nullptr;  // kSplit: low nibbles, and how far on the next to fetch are (0: none)
    int64_t to_next_low_ = 0;
    int index_ = 0;
};

// Walks several packed groups at once. Their parts follow one another.
template <PackedFormat kFormat, int kGroups>
class GroupsSource {
    using Group = PackedSource<kFormat>;
    using Indices = std::make_integer_sequence<int, kGroups>;

  public:
    static constexpr TileKind kKind = Group::kKind;
    static constexpr TileKind kWholeKind = tile_kind(kFormat);
    static constexpr bool kNibbleDots = Group::kNibbleDots;
    static constexpr int kGroupCount = kGroups;
    static constexpr int kParts = kGroups * Group::kParts;

    // Groups `apart` of each other.
    GroupsSource(const PackedMatrix& w, int64_t first, int64_t apart) : GroupsSource(w, first, apart, Indices()) {}
    // From `block` on. `fetch(group)` tells what to fetch while a group is walked; low_step as in PackedSource.
    template <class F>
    GroupsSource(const PackedMatrix& w, int64_t first, int64_t apart, int64_t block, F fetch, int64_t low_step)
        : GroupsSource(w, first, apart, block, fetch, low_step, Indices()) {}

    void next() {
        for (Group& group : groups_) group.next();
    }
    GroupsSource ahead(int blocks) const {
        GroupsSource other = *this;
        for (Group& group : other.groups_) group = group.ahead(blocks);
        return other;
    }
    template <int kVector>
    Bytes codes(int part) const {
        return groups_[part / Group::kParts].template codes<kVector>(part % Group::kParts);
    }
    Bytes codes(int vector, int part) const {
        return groups_[part / Group::kParts].codes(vector, part % Group::kParts);
    }
    template <int kVector>
    Bytes whole_codes(int part) const {
        return groups_[part / Group::kParts].template whole_codes<kVector>(part % Group::kParts);
    }
    template <int kVector>
    Bytes low_codes(int part) const {
        return groups_[part / Group::kParts].template low_codes<kVector>(part % Group::kParts);
    }
    Bytes low_codes(int vector, int part) const {
        return groups_[part / Group::kParts].low_codes(vector, part % Group::kParts);
    }
    F32 scale(int sub, int part) const { return groups_[part / Group::kParts].scale(sub, part % Group::kParts); }
    F32 min(int sub, int part) const { return groups_[part / Group::kParts].min(sub, part % Group::kParts); }

  private:
    template <int... kIndex>
    GroupsSource(const PackedMatrix& w, int64_t first, int64_t apart, std::integer_sequence<int, kIndex...>)
        : groups_{Group(w, first + kIndex * apart, 0)...} {}
    template <class F, int... kIndex>
    GroupsSource(const PackedMatrix& w, int64_t first, int64_t apart, int64_t block, F fetch, int64_t low_step,
                 std::integer_sequence<int, kIndex...>)
        : groups_{Group(w, first + kIndex * apart, block, fetch(first + kIndex * apart), low_step)...} {}

    Group groups_[kGroups];
};

#if defined(__AVX512F__)
inline constexpr int kChunkGroups = 2;  // two groups share the broadcast activations
#else
inline constexpr int kChunkGroups = 1;
#endif
inline constexpr int kChunkBlocks = 32;

// Up to kChunkBlocks blocks of kChunkGroups groups: codes as bytes, scales as floats.
struct UnpackedChunk {
    uint8_t codes[kChunkGroups][kChunkBlocks][8][64];
    float scale[kChunkGroups][kChunkBlocks][2][16];
    float min[kChunkGroups][kChunkBlocks][2][16];
};

// Walks the blocks of an unpacked chunk, kGroups groups at once. Their parts follow one another.
template <TileKind kTileKind, int kGroups>
class UnpackedSource {
    static constexpr int kGroupParts = LPX_ISA_NS::kParts;
    using Indices = std::make_integer_sequence<int, kGroups>;

  public:
    static constexpr TileKind kKind = kTileKind;
    static constexpr bool kNibbleDots = false;
    static constexpr int kParts = kGroups * kGroupParts;

    // `fetch(i)` tells what to fetch beside group i of the chunk.
    template <class F>
    UnpackedSource(const UnpackedChunk& chunk, F fetch) : UnpackedSource(chunk, fetch, Indices()) {}
    void next() {
        ++block_;
        for (Fetch& fetch : fetch_) fetch.advance();
    }
    template <int kVector>
    Bytes codes(int part) const {
        return codes(kVector, part);
    }
    UnpackedSource ahead(int blocks) const {
        UnpackedSource other = *this;
        other.block_ += blocks;
        return other;
    }
    Bytes codes(int vector, int part) const {
        return load_bytes(chunk_->codes[part / kGroupParts][block_][vector] + part % kGroupParts * kPartBytes);
    }
    F32 scale(int sub, int part) const {
        return load(chunk_->scale[part / kGroupParts][block_][sub] + part % kGroupParts * kLanes);
    }
    F32 min(int sub, int part) const {
        return load(chunk_->min[part / kGroupParts][block_][sub] + part % kGroupParts * kLanes);
    }

  private:
    template <class F, int... kIndex>
    UnpackedSource(const UnpackedChunk& chunk, F fetch, std::integer_sequence<int, kIndex...>)
        : chunk_(&chunk), fetch_{fetch(kIndex)...} {}

    const UnpackedChunk* chunk_;
    Fetch fetch_[kGroups];
    int64_t block_ = 0;
};

// Walks packed groups and keeps in a chunk what it unpacks of them, for an UnpackedSource.
template <class Groups>
class KeepingSource {
    static constexpr int kGroupParts = LPX_ISA_NS::kParts;

  public:
    static constexpr TileKind kKind = Groups::kWholeKind;
    static constexpr bool kNibbleDots = false;
    static constexpr int kParts = Groups::kParts;

    KeepingSource(const Groups& groups, UnpackedChunk& chunk) : groups_(groups), chunk_(&chunk) {}
    void next() {
        ++block_;
        groups_.next();
    }
    // Of blocks that were walked.
    UnpackedSource<kKind, Groups::kGroupCount> ahead(int blocks) const {
        UnpackedSource<kKind, Groups::kGroupCount> kept(*chunk_, [](int) { return Fetch(); });
        return kept.ahead(static_cast<int>(block_) + blocks);
    }
    template <int kVector>
    Bytes codes(int part) const {
        const Bytes code = groups_.template whole_codes<kVector>(part);
        store_bytes(chunk_->codes[part / kGroupParts][block_][kVector] + part % kGroupParts * kPartBytes, code);
        return code;
    }
    F32 scale(int sub, int part) const {
        const F32 scale = groups_.scale(sub, part);
        store(chunk_->scale[part / kGroupParts][block_][sub] + part % kGroupParts * kLanes, scale);
        return scale;
    }
    F32 min(int sub, int part) const {
        const F32 min = groups_.min(sub, part);
        store(chunk_->min[part / kGroupParts][block_][sub] + part % kGroupParts * kLanes, min);
        return min;
    }

  private:
    Groups groups_;
    UnpackedChunk* chunk_;
    int64_t block_ = 0;
};

}  // namespace lpx::LPX_ISA_NS
