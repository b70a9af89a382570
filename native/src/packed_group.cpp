// Writes and reads single rows of packed groups; packed_layout.h has the layout.
#include "packed_group.h"

#include <cmath>
#include <cstring>
#include <limits>

namespace lpx {
namespace {

uint32_t load_quad(const void* p) {
    uint32_t v;
    std::memcpy(&v, p, sizeof v);
    return v;
}
void store_quad(void* p, uint32_t v) {
    std::memcpy(p, &v, sizeof v);
}

constexpr uint32_t kNibbles = 0x0f0f0f0fu, kPairs = 0x03030303u, kBits = 0x01010101u;

// Bits `from` and up of the eight code quads into planes of `width` bits each, and back.
void write_planes(uint8_t* planes, const uint32_t* quad, int from, int width) {
    const int per_plane = 8 / width;
    const uint32_t mask = width == 2 ? kPairs : kBits;
    for (int p = 0; p < width; ++p) {
        uint32_t bits = 0;
        for (int i = 0; i < per_plane; ++i) bits |= ((quad[p * per_plane + i] >> from) & mask) << (i * width);
        store_quad(planes + 64 * p, bits);
    }
}
void read_planes(const uint8_t* planes, uint32_t* quad, int to, int width) {
    const int per_plane = 8 / width;
    const uint32_t mask = width == 2 ? kPairs : kBits;
    for (int p = 0; p < width; ++p) {
        const uint32_t bits = load_quad(planes + 64 * p);
        for (int i = 0; i < per_plane; ++i) quad[p * per_plane + i] |= ((bits >> (i * width)) & mask) << to;
    }
}

struct Place {
    size_t header, block;  // offsets within the group
};
Place place(const BlockLayout& layout, int64_t block) {
    const int per_super = layout.blocks_per_super();
    const auto header = static_cast<size_t>(block / per_super) * static_cast<size_t>(layout.super_bytes());
    return {header, header + static_cast<size_t>(layout.header_bytes()) +
                        static_cast<size_t>(block % per_super) * static_cast<size_t>(layout.block_bytes())};
}

// Eight quads of 4-bit codes, two in each of four planes, and back.
void write_nibbles(uint8_t* planes, const uint32_t* quad, int64_t stride = 64) {
    for (int v = 0; v < 4; ++v)
        store_quad(planes + stride * v, (quad[2 * v] & kNibbles) | (quad[2 * v + 1] & kNibbles) << 4);
}
void read_nibbles(const uint8_t* planes, uint32_t* quad, int64_t stride = 64) {
    for (int j = 0; j < 8; ++j) quad[j] = (load_quad(planes + stride * (j / 2)) >> (j % 2 * 4)) & kNibbles;
}

constexpr uint32_t kSigns = 0x80808080u;  // between codes and codes + 128

// Offsets in a group and, of low codes, in its part of the plane behind.
constexpr int64_t split_codes(int row, int64_t block) {
    return SplitLayout::kNormBytes + block * SplitLayout::kBlockBytes + 4 * row;
}
constexpr int64_t split_scale(int row, int64_t block) {
    return split_codes(0, block) + SplitLayout::kNibbleBytes + 2 * row;
}
constexpr int64_t split_low_codes(int row, int64_t block) {
    return 4 * block * SplitLayout::kLowStride + 4 * row;
}

void write_split(uint8_t* group, uint8_t* low, int row, int64_t block, const WeightBlock& value) {
    uint32_t quad[8], high[8];
    std::memcpy(quad, value.code, sizeof quad);
    for (int j = 0; j < 8; ++j) {
        quad[j] ^= kSigns;
        high[j] = quad[j] >> 4;
    }
    write_nibbles(group + split_codes(row, block), high);
    write_nibbles(low + split_low_codes(row, block), quad, SplitLayout::kLowStride);
    std::memcpy(group + split_scale(row, block), &value.scale, 2);
}

void read_split(const uint8_t* group, const uint8_t* low, int row, int64_t block, WeightBlock& value) {
    uint32_t quad[8], high[8];
    read_nibbles(group + split_codes(row, block), high);
    read_nibbles(low + split_low_codes(row, block), quad, SplitLayout::kLowStride);
    for (int j = 0; j < 8; ++j) quad[j] = (quad[j] | high[j] << 4) ^ kSigns;
    std::memcpy(value.code, quad, sizeof quad);
    std::memcpy(&value.scale, group + split_scale(row, block), 2);
}

}  // namespace

void SplitNorms::add(const WeightBlock& block) {
    int low_sum = 0, low_squares = 0;
    for (int i = 0; i < 32; ++i) {
        const int low = block.code[i] & 15;
        low_sum += low;
        low_squares += low * low;
    }
    const double scale = f16_to_f32(block.scale), scale_squared = scale * scale;
    residual += scale_squared * (low_squares - 15 * low_sum + 32 * 7.5 * 7.5);
    // The terms are sums over a block of high nibble * 16 and of 120.5, each times x: the larger of the norms.
    term += scale_squared * 32 * 240.0 * 240.0;
}

void write_split_norms(std::byte* group, int row, const SplitNorms& norms) {
    const double squares[2] = {norms.residual, norms.term};
    for (int i = 0; i < 2; ++i) {
        const float up = std::nextafter(static_cast<float>(std::sqrt(squares[i])), std::numeric_limits<float>::max());
        std::memcpy(group + (16 * i + row) * sizeof up, &up, sizeof up);
    }
}

void write_block(PackedFormat format, std::byte* group, std::byte* low, int row, int64_t block,
                 const WeightBlock& value) {
    if (format == PackedFormat::Q8_0_Split)
        return write_split(reinterpret_cast<uint8_t*>(group), reinterpret_cast<uint8_t*>(low), row, block, value);
    const BlockLayout layout = block_layout(format);
    const Place at = place(layout, block);
    auto* codes = reinterpret_cast<uint8_t*>(group + at.block) + 4 * row;
    uint32_t quad[8];
    std::memcpy(quad, value.code, sizeof quad);
    switch (layout.code_bits) {
        case 8:
            for (int j = 0; j < 8; ++j) store_quad(codes + 64 * j, quad[j]);
            break;
        case 2:
        case 3:
            write_planes(codes, quad, 0, 2);
            if (layout.code_bits == 3) write_planes(codes + 128, quad, 2, 1);
            break;
        default:
            write_nibbles(codes, quad);
            if (layout.code_bits > 4) write_planes(codes + 256, quad, 4, layout.code_bits - 4);
    }
    uint8_t* scales = reinterpret_cast<uint8_t*>(group + at.block) + layout.code_bytes();
    uint8_t* f16 = layout.two_level ? reinterpret_cast<uint8_t*>(group + at.header) : scales;
    std::memcpy(f16 + 2 * row, &value.scale, 2);
    if (layout.minimum) std::memcpy(f16 + 32 + 2 * row, &value.min, 2);
    if (!layout.two_level) return;
    for (int s = 0; s < layout.scales; ++s) {
        const auto scale = static_cast<uint8_t>(value.sub_scale[s]);
        if (layout.nibble_scales) {
            scales[16 * s + row] = static_cast<uint8_t>(scale | value.sub_min[s] << 4);
            continue;
        }
        scales[16 * s + row] = scale;
        if (layout.minimum) scales[16 * (layout.scales + s) + row] = value.sub_min[s];
    }
}

void read_packed_block(PackedFormat format, const std::byte* group, const std::byte* low, int row, int64_t block,
                       WeightBlock& value) {
    if (format == PackedFormat::Q8_0_Split)
        return read_split(reinterpret_cast<const uint8_t*>(group), reinterpret_cast<const uint8_t*>(low), row, block,
                          value);
    const BlockLayout layout = block_layout(format);
    const Place at = place(layout, block);
    const auto* codes = reinterpret_cast<const uint8_t*>(group + at.block) + 4 * row;
    uint32_t quad[8] = {};
    switch (layout.code_bits) {
        case 8:
            for (int j = 0; j < 8; ++j) quad[j] = load_quad(codes + 64 * j);
            break;
        case 2:
        case 3:
            read_planes(codes, quad, 0, 2);
            if (layout.code_bits == 3) read_planes(codes + 128, quad, 2, 1);
            break;
        default:
            read_nibbles(codes, quad);
            if (layout.code_bits > 4) read_planes(codes + 256, quad, 4, layout.code_bits - 4);
    }
    std::memcpy(value.code, quad, sizeof quad);
    const uint8_t* scales = reinterpret_cast<const uint8_t*>(group + at.block) + layout.code_bytes();
    const uint8_t* f16 = layout.two_level ? reinterpret_cast<const uint8_t*>(group + at.header) : scales;
    std::memcpy(&value.scale, f16 + 2 * row, 2);
    if (layout.minimum) std::memcpy(&value.min, f16 + 32 + 2 * row, 2);
    if (!layout.two_level) return;
    for (int s = 0; s < layout.scales; ++s) {
        const uint8_t scale = scales[16 * s + row];
        value.sub_scale[s] = static_cast<int8_t>(layout.nibble_scales ? scale & 15 : scale);
        if (layout.minimum)
            value.sub_min[s] = layout.nibble_scales ? scale >> 4 : scales[16 * (layout.scales + s) + row];
    }
}

void quantize_block_q8(const float* x, int count, WeightBlock& out) {
    float largest = 0.0f;
    for (int i = 0; i < count; ++i) {
        const float magnitude = x[i] < 0 ? -x[i] : x[i];
        if (magnitude > largest) largest = magnitude;
    }
    out = {};
    out.scale = f32_to_f16(largest / 127.0f);
    const float scale = f16_to_f32(out.scale);  // the codes fit the rounded scale
    if (scale == 0.0f) return;
    for (int i = 0; i < count; ++i) {
        float code = x[i] / scale;
        code = code < -127.0f ? -127.0f : code > 127.0f ? 127.0f : code;
        out.code[i] = static_cast<uint8_t>(static_cast<int8_t>(code < 0 ? code - 0.5f : code + 0.5f));
    }
}

namespace {

// Nearest codes for scale and minimum, and their squared error.
float assign_q4(const float* x, int count, float scale, float min, uint8_t* code) {
    const float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
    float error = 0.0f;
    for (int i = 0; i < count; ++i) {
        float position = (x[i] - min) * inverse;
        position = position < 0.0f ? 0.0f : position > 15.0f ? 15.0f : position;
        code[i] = static_cast<uint8_t>(position + 0.5f);
        const float miss = scale * static_cast<float>(code[i]) + min - x[i];
        error += miss * miss;
    }
    return error;
}

}  // namespace

void quantize_block_q4(const float* x, int count, WeightBlock& out) {
    float low = x[0], high = x[0];
    for (int i = 1; i < count; ++i) {
        if (x[i] < low) low = x[i];
        if (x[i] > high) high = x[i];
    }
    out = {};
    float best = -1.0f;
    // Cutting the ends of the range a little often costs less than a coarser step; from each start, the least-squares
    // scale and minimum for the codes found.
    for (const float cut : {0.0f, 0.02f, 0.04f, 0.06f, 0.09f}) {
        const float range = high - low;
        float scale = range * (1.0f - 2.0f * cut) / 15.0f, min = low + range * cut;
        uint8_t code[32];
        for (int pass = 0; pass < 2; ++pass) {
            const uint16_t scale_bits = f32_to_f16(scale);
            const uint16_t min_bits = f32_to_f16(min < -65504.0f ? -65504.0f : min > 65504.0f ? 65504.0f : min);
            const float error = assign_q4(x, count, f16_to_f32(scale_bits), f16_to_f32(min_bits), code);
            if (best < 0.0f || error < best) {
                best = error;
                out.scale = scale_bits;
                out.min = min_bits;
                std::memcpy(out.code, code, static_cast<size_t>(count));
            }
            float sum_q = 0.0f, sum_qq = 0.0f, sum_x = 0.0f, sum_qx = 0.0f;
            for (int i = 0; i < count; ++i) {
                const auto q = static_cast<float>(code[i]);
                sum_q += q;
                sum_qq += q * q;
                sum_x += x[i];
                sum_qx += q * x[i];
            }
            const auto n = static_cast<float>(count);
            const float determinant = n * sum_qq - sum_q * sum_q;
            if (determinant <= 0.0f) break;
            scale = (n * sum_qx - sum_q * sum_x) / determinant;
            min = (sum_qq * sum_x - sum_q * sum_qx) / determinant;
            if (!(scale > 0.0f)) break;
        }
    }
}

}  // namespace lpx
