// Where a tile of a block matrix product gets its codes and scales: packed groups, or a chunk unpacked to bytes.
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
    // `block` must be the first of a super block. Low nibbles of split codes are fetched with `fetch_low`.
    PackedSource(const PackedMatrix& w, int64_t group, int64_t block, const Fetch& fetch, bool fetch_low = true)
        : header_(reinterpret_cast<const uint8_t*>(w.group(group)) +
                  block / kLayout.blocks_per_super() * kLayout.super_bytes()),
          block_(header_ + kLayout.header_bytes()),
          fetch_(fetch) {
        if constexpr (kSplit) {
            block_ = reinterpret_cast<const uint8_t*>(w.group(group)) + SplitLayout::kNormBytes + block * kBlockBytes;
            low_ = reinterpret_cast<const uint8_t*>(w.low_group(group)) + 4 * block * SplitLayout::kLowStride;
            if (fetch_low) to_next_low_ = w.low_group(group + 1) - w.low_group(group);
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

    // Of split codes: the low nibbles, and 16 times the high ones.
    template <int kVector>
    Bytes low_codes(int part) const {
        const Bytes pair = load_bytes(low_ + part * kPartBytes + kVector / 2 * SplitLayout::kLowStride);
        return bit_and(shift<kVector % 2 == 0 ? 0 : -4>(pair), set_bytes(15));
    }
    template <int kVector>
    Bytes high_codes(int part) const {
        const Bytes pair = load_bytes(block_ + part * kPartBytes + kVector / 2 * 64);
        return bit_and(shift<kVector % 2 == 0 ? 4 : 0>(pair), set_bytes(0xf0));
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
    static constexpr bool kNibbleDots = Group::kNibbleDots;
    static constexpr int kParts = kGroups * Group::kParts;

    // Groups `apart` of each other.
    GroupsSource(const PackedMatrix& w, int64_t first, int64_t apart) : GroupsSource(w, first, apart, Indices()) {}
    // `fetch(group)` tells what to fetch while a group is walked, `fetch_low` whether low nibbles, too.
    template <class F>
    GroupsSource(const PackedMatrix& w, int64_t first, int64_t apart, F fetch, bool fetch_low)
        : GroupsSource(w, first, apart, fetch, fetch_low, Indices()) {}

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
    GroupsSource(const PackedMatrix& w, int64_t first, int64_t apart, F fetch, bool fetch_low,
                 std::integer_sequence<int, kIndex...>)
        : groups_{Group(w, first + kIndex * apart, 0, fetch(first + kIndex * apart), fetch_low)...} {}

    Group groups_[kGroups];
};

#if defined(__AVX512F__)
inline constexpr int kChunkGroups = 2;  // two groups share the broadcast activations
#else
inline constexpr int kChunkGroups = 1;
#endif
inline constexpr int kChunkBlocks = 32;

// A chunk of up to kChunkGroups groups, its codes as bytes and its scales as floats: 16 KiB of codes a group, which
// stay in the first or second cache.
struct UnpackedChunk {
    uint8_t codes[kChunkGroups][kChunkBlocks][8][64];
    float scale[kChunkGroups][kChunkBlocks][2][16];
    float min[kChunkGroups][kChunkBlocks][2][16];
};

// Walks the blocks of an unpacked chunk, kGroups groups at once. Their parts follow one another.
template <TileKind kTileKind, int kGroups>
class UnpackedSource {
    static constexpr int kGroupParts = LPX_ISA_NS::kParts;

  public:
    static constexpr TileKind kKind = kTileKind;
    static constexpr bool kNibbleDots = false;
    static constexpr int kParts = kGroups * kGroupParts;

    UnpackedSource(const UnpackedChunk& chunk, const Fetch& fetch) : chunk_(&chunk), fetch_(fetch) {}
    void next() {
        ++block_;
        fetch_.advance();
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
    const UnpackedChunk* chunk_;
    Fetch fetch_;
    int64_t block_ = 0;
};

// Codes as an 8-bit dot product takes them, from the nibbles of a split matrix; else as they are.
template <int kVector, PackedFormat kFormat>
inline Bytes whole_codes(const PackedSource<kFormat>& source, int part) {
    if constexpr (!PackedSource<kFormat>::kNibbleDots) return source.template codes<kVector>(part);
    const Bytes code = bit_or(source.template high_codes<kVector>(part), source.template low_codes<kVector>(part));
    return bit_xor(code, set_bytes(0x80));
}

template <PackedFormat kFormat>
inline void unpack_chunk(const PackedMatrix& w, int64_t group, int64_t first_block, int64_t blocks, UnpackedChunk& out,
                         int place) {
    PackedSource<kFormat> source(w, group, first_block);
    for (int64_t b = 0; b < blocks; ++b) {
        for (int part = 0; part < kParts; ++part) {
            uint8_t* codes = out.codes[place][b][0] + part * kPartBytes;
            store_bytes(codes, whole_codes<0>(source, part));
            store_bytes(codes + 64, whole_codes<1>(source, part));
            store_bytes(codes + 128, whole_codes<2>(source, part));
            store_bytes(codes + 192, whole_codes<3>(source, part));
            store_bytes(codes + 256, whole_codes<4>(source, part));
            store_bytes(codes + 320, whole_codes<5>(source, part));
            store_bytes(codes + 384, whole_codes<6>(source, part));
            store_bytes(codes + 448, whole_codes<7>(source, part));
            for (int s = 0; s < PackedSource<kFormat>::kKind.scales; ++s) {
                store(out.scale[place][b][s] + part * kLanes, source.scale(s, part));
                if (PackedSource<kFormat>::kKind.minimum)
                    store(out.min[place][b][s] + part * kLanes, source.min(s, part));
            }
        }
        source.next();
    }
}

}  // namespace lpx::LPX_ISA_NS
