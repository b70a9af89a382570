// Upper bounds of products with a split matrix; see screen.h.
#include "kernels/screen.h"

#include "../block_matmul.h"

namespace lpx::LPX_ISA_NS {

namespace {

constexpr int64_t kOctetGroupsAhead = SplitLayout::kLowGroups;  // how far the low nibbles of octets are fetched

// The high nibbles of groups `apart` of each other, as codes of 4 bits: the activations bring the factor 16 and what is
// subtracted.
template <int kGroups>
class HighNibblePlanes {
  public:
    static constexpr TileKind kKind{.bits = 4, .scales = 1, .minimum = true, .offset = 0};
    static constexpr bool kNibbleDots = false;
    static constexpr int kParts = kGroups * LPX_ISA_NS::kParts;

    HighNibblePlanes(const PackedMatrix& w, int64_t first, int64_t apart) {
        for (int g = 0; g < kGroups; ++g)
            block_[g] = reinterpret_cast<const uint8_t*>(w.group(first + g * apart)) + SplitLayout::kNormBytes;
    }
    void next() {
        for (const uint8_t*& block : block_) {
            for (int i = 0; i < SplitLayout::kBlockBytes; i += 64) prefetch_stream(block + kFetchAhead + i);
            block += SplitLayout::kBlockBytes;
        }
    }
    HighNibblePlanes ahead(int blocks) const {
        HighNibblePlanes other = *this;
        for (const uint8_t*& block : other.block_) block += blocks * SplitLayout::kBlockBytes;
        return other;
    }
    template <int kVector>
    Bytes codes(int part) const {
        return bit_and(shift<kVector % 2 == 0 ? 0 : -4>(load_bytes(pairs(part, kVector))), set_bytes(15));
    }
    Bytes codes(int vector, int part) const {
        return bit_and(shift_right(load_bytes(pairs(part, vector)), 4 * (vector % 2)), set_bytes(15));
    }
    F32 scale(int /*sub*/, int part) const {
        const uint8_t* const scales = block_[part / LPX_ISA_NS::kParts] + SplitLayout::kNibbleBytes;
        return load_f16(reinterpret_cast<const uint16_t*>(scales) + part % LPX_ISA_NS::kParts * kLanes);
    }
    F32 min(int sub, int part) const { return scale(sub, part); }

  private:
    const uint8_t* pairs(int part, int vector) const {
        return block_[part / LPX_ISA_NS::kParts] + part % LPX_ISA_NS::kParts * kPartBytes + vector / 2 * 64;
    }
    const uint8_t* block_[kGroups];
};

// Adds scale * (l - 7.5) * x for the octets [begin, end) of a row to the 16 sums of a group.
void add_octets(const PackedMatrix& w, int64_t g, const ScreenRow& row, int begin, int end, F32 (&sum)[kParts]) {
    const uint8_t* const scales =
        reinterpret_cast<const uint8_t*>(w.group(g)) + SplitLayout::kNormBytes + SplitLayout::kNibbleBytes;
    const auto* const low = reinterpret_cast<const uint8_t*>(w.low_group(g));
    for (int i = begin; i < end; ++i) {
        const ScreenOctet& octet = row.octets[i];
        const uint8_t* const p = low + (4 * octet.block + octet.vector) * SplitLayout::kLowStride;
        const auto* const scale = reinterpret_cast<const uint16_t*>(scales + octet.block * SplitLayout::kBlockBytes);
        const Bytes even = broadcast_quad(octet.q8), odd = broadcast_quad(octet.q8 + 4);
        const I32 nothing = broadcast_i32(0);
#pragma GCC unroll 2
        for (int part = 0; part < kParts; ++part) {
            const Bytes pair = load_bytes(p + part * kPartBytes);
            Dot<4, 2> dot;
            dot.begin(nothing);
            dot.add(0, bit_and(pair, set_bytes(15)), even);
            dot.add(1, bit_and(shift<-4>(pair), set_bytes(15)), odd);
            const F32 product = add(to_float(dot.total(nothing)), set1(octet.offset));
            sum[part] = fma(product, mul(load_f16(scale + part * kLanes), set1(octet.scale)), sum[part]);
        }
    }
}

void prefetch_octets(const PackedMatrix& w, int64_t g, const ScreenRow& row) {
    const std::byte* const low = w.low_group(g);
    for (int i = 0; i < row.screen_count; ++i)
        prefetch(low + (4 * row.octets[i].block + row.octets[i].vector) * SplitLayout::kLowStride);
}

// Upper bounds of the sums of a group, given the norm of the activations that they leave out. `taint` becomes NaN if
// one of them is not finite.
LPX_INLINE void bound(const PackedMatrix& w, int64_t g, const ScreenRow& row, float left, F32 (&sum)[kParts],
                      F32& taint) {
    const auto* const norms = reinterpret_cast<const float*>(w.group(g));
#pragma GCC unroll 2
    for (int part = 0; part < kParts; ++part) {
        const float* const p = norms + part * kLanes;
        sum[part] = fma(load(p + 16), set1(row.rounding), fma(load(p), set1(left), sum[part]));
        taint = fma(sum[part], zero(), taint);
    }
}

bool is_nan(F32 lanes) {
    const float sum = sum_lanes(lanes);
    return sum != sum;
}

// The largest of those of 16 values that are outputs.
float highest(const PackedMatrix& w, int64_t g, const F32 (&values)[kParts]) {
    F32 most = values[0];
    for (int part = 1; part < kParts; ++part) most = max(most, values[part]);
    const int64_t outputs = w.rows() - g * kGroupRows;
    if (outputs >= kGroupRows) return max_lanes(most);
    float value[16];
    for (int part = 0; part < kParts; ++part) store(value + part * kLanes, values[part]);
    for (int64_t i = 1; i < outputs; ++i) value[0] = value[i] > value[0] ? value[i] : value[0];
    return value[0];
}

// Adds the first octets of a row to what the high nibbles gave for a group, and bounds the sums.
void finish_group(const ScreenTask& t, int64_t g, int64_t r, F32& taint) {
    const ScreenRow& row = t.rows[r];
    if (g + kOctetGroupsAhead < t.group_end) prefetch_octets(*t.matrix, g + kOctetGroupsAhead, row);
    float* const out = t.approximate + r * t.approximate_stride + g * kGroupRows;
    F32 sum[kParts];
    for (int part = 0; part < kParts; ++part) sum[part] = load(out + part * kLanes);
    add_octets(*t.matrix, g, row, 0, row.screen_count, sum);
    for (int part = 0; part < kParts; ++part) store(out + part * kLanes, sum[part]);
    bound(*t.matrix, g, row, row.left_by_screen, sum, taint);
    t.upper[r * t.upper_stride + g] = highest(*t.matrix, g, sum);
}

void screen(const ScreenTask& t) {
    const PackedMatrix& w = *t.matrix;
    const int64_t row_blocks = w.padded_cols() / 32;
    // The rows of activations lie one behind the other.
    const ScreenRow& row = t.rows[0];
    const RowTile all{
        row.q8,    row.scale, row.refined, row.offset, 32 * row_blocks, row_blocks, refined_quads(32 * row_blocks),
        row_blocks};
    F32 taint = zero();
    int64_t g = t.group_begin;
    if (t.row_count == 1) {
        const int64_t run = (t.group_end - t.group_begin) / kGroupsTogether;
        for (; g < t.group_begin + run; ++g) {
            const Outputs to{t.approximate + g * kGroupRows, 0, run * kGroupRows, kGroupRows};
            add_tile<1>(HighNibblePlanes<kGroupsTogether>(w, g, run), row_blocks, all, true, to);
            for (int i = 0; i < kGroupsTogether; ++i) finish_group(t, g + i * run, 0, taint);
        }
        g = t.group_begin + run * kGroupsTogether;
    }
    for (; g < t.group_end; ++g) {
        RowTile tile = all;
        Outputs to{t.approximate + g * kGroupRows, t.approximate_stride, 0, kGroupRows};
        for (int64_t r = 0; r < t.row_count; r += kTileRows) {
            add_few_rows<kTileRows>(t.row_count - r < kTileRows ? t.row_count - r : kTileRows,
                                    HighNibblePlanes<1>(w, g, 0), row_blocks, tile, true, to);
            tile.skip(kTileRows);
            to.first += kTileRows * to.stride;
        }
        for (int64_t r = 0; r < t.row_count; ++r) finish_group(t, g, r, taint);
    }
    if (is_nan(taint) && t.group_begin < t.group_end)
        for (int64_t r = 0; r < t.row_count; ++r) t.upper[r * t.upper_stride + t.group_begin] = __builtin_inff();
}

float refine(const ScreenTask& t, int64_t g, int64_t r) {
    const ScreenRow& row = t.rows[r];
    const float* const approximate = t.approximate + r * t.approximate_stride + g * kGroupRows;
    F32 sum[kParts], taint = zero();
    for (int part = 0; part < kParts; ++part) sum[part] = load(approximate + part * kLanes);
    add_octets(*t.matrix, g, row, row.screen_count, row.octet_count, sum);
    bound(*t.matrix, g, row, row.left_by_refine, sum, taint);
    return is_nan(taint) ? __builtin_inff() : highest(*t.matrix, g, sum);
}

}  // namespace

void fill_screen(KernelTable& table) {
    // Where whole codes are multiplied at once, all logits of more rows take less time than their screen.
    table.screen_rows = kUnsigned8 ? 2 : kMostScreenRows;
    table.screen = screen;
    table.refine = refine;
}

}  // namespace lpx::LPX_ISA_NS
