// The product of packed block matrices with int8 activations, for one format at a time.
//
// Every output element is accumulated in one order whatever the tile: for each block of 32 columns (and each of its
// scales) acc = fma(dot, weight_scale * activation_scale, acc), then acc = fma(min, activation_scale * sum, acc); after
// every kRefineBlocks blocks the refined quad of the row, likewise. The dots are exact integers, so an element has the
// same bits in a tile of 1 row as in one of many.
//
// Included only by src/kernels/isa/*.cpp (see simd.h).
#pragma once

#include "block_source.h"
#include "kernels.h"

namespace lpx::LPX_ISA_NS {

// A tile has up to kTileRows rows. Up to kTogetherRows rows take kGroupsTogether groups at once.
#if defined(__AVX512F__)
inline constexpr int kTileRows = 6;
inline constexpr int kTogetherRows = kMaxFusedRows;
#elif defined(__AVX2__)
inline constexpr int kTileRows = 4;
inline constexpr int kTogetherRows = 1;  // registers do not suffice for more
#else
inline constexpr int kTileRows = 2;
inline constexpr int kTogetherRows = 1;
#endif
inline constexpr int kGroupsTogether = 2;
inline constexpr int kPassRows = 256;  // at most so many rows share one unpacked chunk

// Up to so many rows, each tile unpacks the codes in registers. Beyond, the first tile keeps in a chunk what it has
// unpacked: as soon as there is a second tile, but not where a dot product is one instruction and unpacking costs no
// more than reading back what was kept.
constexpr int fused_limit(PackedFormat format) {
    const BlockLayout layout = block_layout(format);
    const bool cheap = (layout.code_bits == 4 || layout.code_bits == 8) && !layout.two_level;
    return kUnsigned8 && cheap && format != PackedFormat::Q8_0_Split ? kMaxFusedRows : kTileRows;
}

// Rows of activations from some block on, with what is added for the sums (corrections).
struct RowTile {
    const int8_t* q8;
    const float* scale;
    const RefinedQuad* refined;
    const void* correction;  // [scales per block] each: float activation_scale * sum, or int32 -offset * sum
    int64_t cols;            // between rows of q8
    int64_t blocks;          // between rows of scale
    int64_t refinements;     // between rows of refined
    int64_t corrections;     // between rows of correction

    void skip(int64_t count) {
        q8 += count * cols;
        scale += count * blocks;
        refined += count * refinements;
        correction = static_cast<const int32_t*>(correction) + count * corrections;
    }
};

template <TileKind kKind>
inline I32 initial_sum(const RowTile& rows, int row, int64_t at) {
    if constexpr (kKind.offset == 0 || kKind.minimum) return broadcast_i32(0);
    return broadcast_i32(static_cast<const int32_t*>(rows.correction)[row * rows.corrections + at]);
}

// Parts of a source whose dots run together, sharing the broadcast activations: as many as registers allow.
template <class Source, int kRows>
inline constexpr int kPartsTogether = kSmallDot<Source::kKind.bits> && !Source::kNibbleDots ? Source::kParts
                                      : kRows == 1 && Source::kParts > 2                    ? 2
                                                                                            : 1;

// The nibbles of split codes as parts of their own: high, low, high, low ...
template <class Source>
struct Nibbles {
    const Source& source;
    template <int kVector>
    Bytes codes(int part) const {
        return part % 2 == 0 ? source.template codes<kVector>(part / 2) : source.template low_codes<kVector>(part / 2);
    }
};

// Dot products of kSteps code vectors from kFirst on, with kRows rows of activations.
template <int kFirst, int kSteps, int kStep = 0, class Source, class DotType, int kRows, int kWidth>
LPX_INLINE void add_steps(const Source& source, int first_part, const RowTile& rows, int64_t col,
                          DotType (&dot)[kRows][kWidth]) {
    if constexpr (kStep < kSteps) {
        Bytes codes[kWidth];
#pragma GCC unroll 4
        for (int p = 0; p < kWidth; ++p) codes[p] = source.template codes<kFirst + kStep>(first_part + p);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
            const Bytes quad = broadcast_quad(rows.q8 + r * rows.cols + col + 4 * (kFirst + kStep));
#pragma GCC unroll 4
            for (int p = 0; p < kWidth; ++p) dot[r][p].add(kStep, codes[p], quad);
        }
        add_steps<kFirst, kSteps, kStep + 1>(source, first_part, rows, col, dot);
    }
}

// `total` += the dot products of the code vectors [kFirst, kFirst + kSteps).
template <int kFirst, int kSteps, int kBits, class Source, int kRows, int kWidth>
LPX_INLINE void add_dots(const Source& source, int first_part, const RowTile& rows, int64_t col,
                         I32 (&total)[kRows][kWidth]) {
    Dot<kBits, kSteps> dot[kRows][kWidth];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
        for (int p = 0; p < kWidth; ++p) dot[r][p].begin(total[r][p]);
    add_steps<kFirst, kSteps>(source, first_part, rows, col, dot);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
        for (int p = 0; p < kWidth; ++p) total[r][p] = dot[r][p].total(total[r][p]);
}

template <int kSub, class Source, int kRows>
LPX_INLINE void add_sub_block(const Source& source, const RowTile& rows, int64_t block,
                              F32 (&acc)[kRows][Source::kParts]) {
    constexpr TileKind kKind = Source::kKind;
    constexpr int kSteps = 8 / kKind.scales, kWidth = kPartsTogether<Source, kRows>;
    const int64_t at = block * kKind.scales + kSub;
#pragma GCC unroll 4
    for (int first_part = 0; first_part < Source::kParts; first_part += kWidth) {
        // The compiler would keep every broadcast for the next part, in memory, since there are too few registers.
        if (first_part > 0) asm volatile("" ::: "memory");
        I32 total[kRows][kWidth];
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
            for (int p = 0; p < kWidth; ++p) total[r][p] = initial_sum<kKind>(rows, r, at);
        if constexpr (Source::kNibbleDots) {
            I32 nibbles[kRows][2 * kWidth];
#pragma GCC unroll 8
            for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
                for (int p = 0; p < 2 * kWidth; ++p) nibbles[r][p] = broadcast_i32(0);
            add_dots<0, kSteps, 4>(Nibbles<Source>{source}, 2 * first_part, rows, 32 * block, nibbles);
#pragma GCC unroll 8
            for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
                for (int p = 0; p < kWidth; ++p)
                    total[r][p] = add(total[r][p], add(times16(nibbles[r][2 * p]), nibbles[r][2 * p + 1]));
        } else {
            add_dots<kSub * kSteps, kSteps, kKind.bits>(source, first_part, rows, 32 * block, total);
        }
#pragma GCC unroll 4
        for (int p = 0; p < kWidth; ++p) {
            const int part = first_part + p;
            const F32 scale = source.scale(kSub, part);
#pragma GCC unroll 8
            for (int r = 0; r < kRows; ++r) {
                const F32 product_scale = mul(scale, set1(rows.scale[r * rows.blocks + block]));
                acc[r][part] = fma(to_float(total[r][p]), product_scale, acc[r][part]);
            }
            if constexpr (kKind.minimum) {
                const F32 min = source.min(kSub, part);
#pragma GCC unroll 8
                for (int r = 0; r < kRows; ++r) {
                    const float sum = static_cast<const float*>(rows.correction)[r * rows.corrections + at];
                    acc[r][part] = fma(min, set1(sum), acc[r][part]);
                }
            }
        }
    }
}

// Adds the refined quad of one row for the kRefineBlocks blocks from `block` on, where `source` stands.
template <class Source>
LPX_INLINE void add_refined(const Source& source, const RowTile& rows, int row, int64_t block,
                            F32 (&acc)[Source::kParts]) {
    constexpr TileKind kKind = Source::kKind;
    const RefinedQuad& quad = rows.refined[row * rows.refinements + block / kRefineBlocks];
    const auto place = static_cast<unsigned>(quad.vector);  // unsigned: divided by shifts
    const auto at = source.ahead(static_cast<int>(place / 8));
    const int vector = static_cast<int>(place % 8), sub = kKind.scales == 2 ? vector / 4 : 0;
    const I32 initial = broadcast_i32(kKind.minimum ? 0 : -kKind.offset * quad.sum);
    const Bytes values = broadcast_quad(quad.q8);
    const F32 scale = set1(quad.scale);
#pragma GCC unroll 4
    for (int part = 0; part < Source::kParts; ++part) {
        I32 total;
        if constexpr (Source::kNibbleDots) {
            Dot<4, 1> low;
            low.begin(initial);
            low.add(0, at.low_codes(vector, part), values);
            const I32 nothing = broadcast_i32(0);
            Dot<4, 1> high;
            high.begin(nothing);
            high.add(0, at.codes(vector, part), values);
            total = add(times16(high.total(nothing)), low.total(initial));
        } else {
            Dot<kKind.bits, 1> dot;
            dot.begin(initial);
            dot.add(0, at.codes(vector, part), values);
            total = dot.total(initial);
        }
        acc[part] = fma(to_float(total), mul(at.scale(sub, part), scale), acc[part]);
    }
}

// Where a tile lies in the output: its rows `stride` apart, and in a row the 16 outputs of each of its groups, `groups`
// apart. Only `count` of the last group's outputs are there.
struct Outputs {
    float* first;
    int64_t stride;
    int64_t groups;
    int count;

    float* at(int row, int group) const { return first + row * stride + group * groups; }
};

// Adds `blocks` blocks to kRows rows of 16 outputs a group.
template <int kRows, class Source>
__attribute__((noinline)) void add_tile(Source source, int64_t blocks, const RowTile& rows_in, bool first,
                                        const Outputs& out) {
    constexpr int kGroups = Source::kParts / kParts;
    const RowTile rows = rows_in;
    F32 acc[kRows][Source::kParts];
    for (int r = 0; r < kRows; ++r)
        for (int part = 0; part < Source::kParts; ++part) acc[r][part] = zero();
    float edge[16];
    if (!first) {
        for (int r = 0; r < kRows; ++r)
            for (int g = 0; g < kGroups; ++g) {
                const float* from = out.at(r, g);
                if (g == kGroups - 1 && out.count < 16) {
                    std::memcpy(edge, from, static_cast<size_t>(out.count) * sizeof(float));
                    from = edge;
                }
                for (int part = 0; part < kParts; ++part) acc[r][g * kParts + part] = load(from + part * kLanes);
            }
    }
    for (int64_t start = 0; start < blocks; start += kRefineBlocks) {
        const Source first_block = source;
        const int64_t end = start + kRefineBlocks < blocks ? start + kRefineBlocks : blocks;
        for (int64_t b = start; b < end; ++b) {
            add_sub_block<0>(source, rows, b, acc);
            if constexpr (Source::kKind.scales == 2) add_sub_block<1>(source, rows, b, acc);
            source.next();
        }
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) add_refined(first_block, rows, r, start, acc[r]);
    }
    for (int r = 0; r < kRows; ++r)
        for (int g = 0; g < kGroups; ++g) {
            const bool whole = g < kGroups - 1 || out.count == 16;
            float* const to = whole ? out.at(r, g) : edge;
            for (int part = 0; part < kParts; ++part) store(to + part * kLanes, acc[r][g * kParts + part]);
            if (!whole) std::memcpy(out.at(r, g), edge, static_cast<size_t>(out.count) * sizeof(float));
        }
}

// add_tile for a number of rows known at run time, kMin <= count <= kMax.
template <int kMax, int kMin = 1, class Source>
LPX_INLINE void add_few_rows(int64_t count, const Source& source, int64_t blocks, const RowTile& rows, bool first,
                             const Outputs& out) {
    if constexpr (kMax > kMin) {
        if (count < kMax) return add_few_rows<kMax - 1, kMin>(count, source, blocks, rows, first, out);
    }
    add_tile<kMax>(source, blocks, rows, first, out);
}

// Rows in parts of at most `most`, all of about the same size: at least half of `most` where there are several.
struct EvenParts {
    int64_t rows, count;

    constexpr EvenParts(int64_t rows, int64_t most) : rows(rows), count((rows + most - 1) / most) {}
    constexpr int64_t size(int64_t part) const { return rows / count + (part < rows % count); }
};
inline constexpr int kFewestRows = (kTileRows + 1) / 2;  // of a tile that is one of several

// add(tile, count, its rows, its outputs) for one tile after the other.
template <class F>
inline void for_each_tile(const EvenParts& tiles, RowTile rows, Outputs out, F add) {
    for (int64_t t = 0; t < tiles.count; ++t) {
        const int64_t count = tiles.size(t);
        add(t, count, rows, out);
        rows.skip(count);
        out.first += count * out.stride;
    }
}

// The corrections of `rows` rows for `blocks` blocks: [rows][blocks * scales].
template <TileKind kKind>
inline void compute_corrections(const Activations& a, int64_t first_row, int64_t rows, int64_t first_block,
                                int64_t blocks, void* out) {
    if constexpr (!kKind.corrected()) return;
    const int64_t row_blocks = a.cols / 32;
    for (int64_t r = 0; r < rows; ++r) {
        const int16_t* sum = a.sum + ((first_row + r) * row_blocks + first_block) * 2;
        const float* scale = a.scale + (first_row + r) * row_blocks + first_block;
        for (int64_t b = 0; b < blocks; ++b)
            for (int s = 0; s < kKind.scales; ++s) {
                const int32_t total = kKind.scales == 2 ? sum[2 * b + s] : sum[2 * b] + sum[2 * b + 1];
                const int64_t at = (r * blocks + b) * kKind.scales + s;
                if constexpr (kKind.minimum)
                    static_cast<float*>(out)[at] = scale[b] * static_cast<float>(total);
                else
                    static_cast<int32_t*>(out)[at] = -kKind.offset * total;
            }
        if constexpr (kKind.minimum) {
            const RefinedQuad* quad = a.refined + (first_row + r) * refined_quads(a.cols) + first_block / kRefineBlocks;
            for (int64_t b = 0; b < blocks; b += kRefineBlocks, ++quad) {
                const int64_t at = (r * blocks + b + quad->vector / 8) * kKind.scales;
                const int sub = kKind.scales == 2 ? quad->vector % 8 / 4 : 0;
                static_cast<float*>(out)[at + sub] += quad->scale * static_cast<float>(quad->sum);
            }
        }
    }
}

// Packed bytes of `blocks` blocks, headers of super blocks included (rounded down).
template <PackedFormat kFormat>
constexpr int64_t packed_block_bytes(int64_t blocks) {
    if (kFormat == PackedFormat::Q8_0_Split) return SplitLayout::group_bytes(blocks);  // the low nibbles lie elsewhere
    constexpr BlockLayout kLayout = block_layout(kFormat);
    return blocks * kLayout.super_bytes() / kLayout.blocks_per_super();
}

// Scratch of a thread: an unpacked chunk, then corrections.
struct BlockScratch {
    UnpackedChunk chunk;
    float correction[kPassRows * kChunkBlocks * 2];
};
static_assert(kChunkBlocks % kRefineBlocks == 0 && 8 % kRefineBlocks == 0);
static_assert(sizeof(BlockScratch) <= kBlockScratchBytes);

// Whole rows of the groups [begin, end), from packed groups. Few rows take kTogether groups at once, which lie far
// apart: memory serves several streams better than one, and they share the activations.
template <PackedFormat kFormat, int kTogether>
void add_groups(const PackedMatrix& w, int64_t begin, int64_t end, const RowTile& all, int64_t rows, float* out,
                int64_t out_stride) {
    const int64_t row_blocks = w.padded_cols() / 32;
    const EvenParts tiles(rows, kTileRows);
    const int64_t run = (end - begin) / kTogether;
    if (kTogether == 1 || rows <= kTogetherRows) {
        for (int64_t g = begin; g < begin + run; ++g) {
            const int64_t left = w.rows() - (g + (kTogether - 1) * run) * kGroupRows;
            const Outputs to{out + g * kGroupRows, out_stride, run * kGroupRows,
                             static_cast<int>(left < kGroupRows ? left : kGroupRows)};
            if (tiles.count == 1) {
                add_few_rows<kTileRows>(rows, GroupsSource<kFormat, kTogether>(w, g, run), row_blocks, all, true, to);
            } else if constexpr (fused_limit(kFormat) > kTileRows) {
                // Later tiles find the groups in the cache, and each fetches a part of the next groups.
                const int64_t fetched = (packed_block_bytes<kFormat>(1) + tiles.count - 1) / tiles.count;
                for_each_tile(tiles, all, to, [&](int64_t t, int64_t count, const RowTile& tile, const Outputs& at) {
                    const auto fetch = [&](int64_t group) {
                        return Fetch(w.group(group + 1) + t * row_blocks * fetched, fetched);
                    };
                    add_few_rows<kTileRows, kFewestRows>(
                        count, GroupsSource<kFormat, kTogether>(w, g, run, 0, fetch, 0), row_blocks, tile, true, at);
                });
            }
        }
        begin += run * kTogether;
    }
    if constexpr (kTogether > 1)
        if (begin < end) add_groups<kFormat, kTogether / 2>(w, begin, end, all, rows, out, out_stride);
}

// Blocks [block, block + blocks) of the groups [begin, end), kGroups at once. The first tile unpacks them for all.
template <PackedFormat kFormat, int kGroups>
void add_chunks(const PackedMatrix& w, int64_t begin, int64_t end, int64_t block, int64_t blocks, UnpackedChunk& chunk,
                const RowTile& all, int64_t rows, float* out, int64_t out_stride) {
    using Groups = GroupsSource<kFormat, kGroups>;
    const EvenParts tiles(rows, kTileRows);
    const int64_t fetched = (packed_block_bytes<kFormat>(1) + tiles.count - 1) / tiles.count;
    int64_t g = begin;
    for (; g + kGroups <= end; g += kGroups) {
        const int64_t left = w.rows() - (g + kGroups - 1) * kGroupRows;
        const Outputs to{out + g * kGroupRows, out_stride, kGroupRows,
                         static_cast<int>(left < kGroupRows ? left : kGroupRows)};
        for_each_tile(tiles, all, to, [&](int64_t t, int64_t count, const RowTile& tile, const Outputs& at) {
            // Each tile fetches a part of the next groups.
            const auto fetch = [&](int64_t group) {
                return Fetch(w.group(group + kGroups) + packed_block_bytes<kFormat>(block) + t * blocks * fetched,
                             fetched);
            };
            if (t == 0)
                add_few_rows<kTileRows, kFewestRows>(
                    count, KeepingSource<Groups>(Groups(w, g, 1, block, fetch, kGroups), chunk), blocks, tile,
                    block == 0, at);
            else
                add_few_rows<kTileRows, kFewestRows>(
                    count, UnpackedSource<Groups::kWholeKind, kGroups>(chunk, [&](int i) { return fetch(g + i); }),
                    blocks, tile, block == 0, at);
        });
    }
    if constexpr (kGroups > 1)
        if (g < end) add_chunks<kFormat, kGroups / 2>(w, g, end, block, blocks, chunk, all, rows, out, out_stride);
}

template <PackedFormat kFormat>
void matmul_blocks(const PackedMatrix& w, int64_t group_begin, int64_t group_end, const Activations& a, int64_t rows,
                   float* out, int64_t out_stride, void* scratch_bytes) {
    using Packed = PackedSource<kFormat>;
    constexpr TileKind kUnpackedKind = tile_kind(kFormat);
    auto& scratch = *static_cast<BlockScratch*>(scratch_bytes);
    const int64_t row_blocks = w.padded_cols() / 32, refinements = refined_quads(w.padded_cols());
    static_assert(fused_limit(kFormat) <= kMaxFusedRows);
    if (rows <= fused_limit(kFormat)) {
        // Corrections of whole rows lie behind the scratch of the chunks.
        void* correction = &scratch + 1;
        compute_corrections<Packed::kKind>(a, 0, rows, 0, row_blocks, correction);
        const RowTile all{a.q8,   a.scale,    a.refined,   correction,
                          a.cols, row_blocks, refinements, row_blocks * Packed::kKind.scales};
        add_groups<kFormat, kGroupsTogether>(w, group_begin, group_end, all, rows, out, out_stride);
        return;
    }
    const EvenParts passes(rows, kPassRows);
    for (int64_t p = 0, pass = 0, pass_rows; p < passes.count; ++p, pass += pass_rows) {
        pass_rows = passes.size(p);
        for (int64_t block = 0; block < row_blocks; block += kChunkBlocks) {
            const int64_t blocks = row_blocks - block < kChunkBlocks ? row_blocks - block : kChunkBlocks;
            const int64_t corrections = blocks * kUnpackedKind.scales;
            compute_corrections<kUnpackedKind>(a, pass, pass_rows, block, blocks, scratch.correction);
            const RowTile tile{a.q8 + pass * a.cols + 32 * block,
                               a.scale + pass * row_blocks + block,
                               a.refined + pass * refinements + block / kRefineBlocks,
                               scratch.correction,
                               a.cols,
                               row_blocks,
                               refinements,
                               corrections};
            add_chunks<kFormat, kChunkGroups>(w, group_begin, group_end, block, blocks, scratch.chunk, tile, pass_rows,
                                              out + pass * out_stride, out_stride);
        }
    }
}

using MatmulFunction = void (*)(const PackedMatrix&, int64_t, int64_t, const Activations&, int64_t, float*, int64_t,
                                void*);

}  // namespace lpx::LPX_ISA_NS
