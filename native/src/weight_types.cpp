// Weight encodings of files: names, sizes and the plain scalar decoders.
#include <bit>
#include <cstring>
#include <stdexcept>
#include <string>

#include "packed_layout.h"
#include "packed_matrix.h"

namespace lpx {
namespace {

struct TypeInfo {
    std::string_view name;
    int block_cols;
    int block_bytes;
};

constexpr TypeInfo kTypes[] = {
    {"F32", 1, 4},      {"F16", 1, 2},      {"BF16", 1, 2},     {"Q4_0", 32, 18},   {"Q4_1", 32, 20},
    {"Q5_0", 32, 22},   {"Q5_1", 32, 24},   {"Q8_0", 32, 34},   {"Q2_K", 256, 84},  {"Q3_K", 256, 110},
    {"Q4_K", 256, 144}, {"Q5_K", 256, 176}, {"Q6_K", 256, 210}, {"IQ4_NL", 32, 18}, {"IQ4_XS", 256, 136},
};

uint16_t read_u16(const uint8_t* p) {
    uint16_t v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

// 16 bytes of nibbles: columns 0..15 low, 16..31 high.
void read_nibbles(const uint8_t* p, uint8_t* code) {
    for (int i = 0; i < 16; ++i) {
        code[i] = p[i] & 15;
        code[i + 16] = p[i] >> 4;
    }
}

// One nibble of each of 32 bytes, as the K formats store a block of 32 columns.
void read_nibble_half(const uint8_t* p, bool high, uint8_t* code) {
    const int shift = high ? 4 : 0;
    for (int i = 0; i < 32; ++i) code[i] = (p[i] >> shift) & 15;
}

void add_fifth_bits(const uint8_t* p, uint8_t* code) {
    uint32_t bits;
    std::memcpy(&bits, p, sizeof bits);
    for (int i = 0; i < 32; i += 4) {
        uint32_t quad;
        std::memcpy(&quad, code + i, sizeof quad);
        // The product puts bit n of four at bit 8n (and copies elsewhere).
        quad |= (((bits >> i & 15u) * 0x00204081u) & 0x01010101u) << 4;
        std::memcpy(code + i, &quad, sizeof quad);
    }
}

// The 6-bit scales and minimums of Q4_K and Q5_K: 12 bytes for 8 of each.
void read_scale_min_k4(const uint8_t* p, int64_t i, WeightBlock& out) {
    if (i < 4) {
        out.sub_scale[0] = static_cast<int8_t>(p[i] & 63);
        out.sub_min[0] = p[i + 4] & 63;
    } else {
        out.sub_scale[0] = static_cast<int8_t>((p[i + 4] & 15) | (p[i - 4] >> 6) << 4);
        out.sub_min[0] = static_cast<uint8_t>((p[i + 4] >> 4) | (p[i] >> 6) << 4);
    }
}

// The 6-bit scales of Q3_K: 12 bytes for 16.
int8_t read_scale_k3(const uint8_t* p, int64_t i) {
    const int low = i < 8 ? p[i] & 15 : p[i - 8] >> 4;
    const int high = (p[8 + i % 4] >> (2 * (i / 4))) & 3;
    return static_cast<int8_t>((low | high << 4) - 32);
}

}  // namespace

WeightType weight_type_from_name(std::string_view name) {
    for (size_t i = 0; i < std::size(kTypes); ++i)
        if (kTypes[i].name == name) return static_cast<WeightType>(i);
    std::string message = "unknown weight type '" + std::string(name) + "'; known are";
    for (const TypeInfo& type : kTypes) message += " " + std::string(type.name);
    throw std::invalid_argument(message);
}

std::string_view weight_type_name(WeightType type) {
    return kTypes[static_cast<size_t>(type)].name;
}

size_t weight_row_bytes(WeightType type, int64_t cols) {
    const TypeInfo& info = kTypes[static_cast<size_t>(type)];
    if (cols <= 0 || cols % info.block_cols != 0)
        throw std::invalid_argument("a row of " + std::to_string(cols) + " values is no whole number of " +
                                    std::string(info.name) + " blocks of " + std::to_string(info.block_cols));
    return static_cast<size_t>(cols / info.block_cols) * static_cast<size_t>(info.block_bytes);
}

float f16_to_f32(uint16_t h) {
    const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
    const uint32_t magnitude = h & 0x7fffu;
    if (magnitude >= 0x7c00u)  // infinity and NaN
        return std::bit_cast<float>(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
    if (magnitude < 0x400u) {  // zero and subnormal
        const float f = static_cast<float>(magnitude) * 0x1p-24f;
        return sign ? -f : f;
    }
    return std::bit_cast<float>(sign | ((magnitude << 13) + (112u << 23)));
}

uint16_t f32_to_f16(float f) {
    uint32_t bits = std::bit_cast<uint32_t>(f);
    const uint32_t sign = (bits >> 16) & 0x8000u;
    bits &= 0x7fffffffu;
    if (bits > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
    if (bits >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
    if (bits < 0x38800000u)  // subnormal result: the addition rounds to a multiple of 2^-24
        return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(std::bit_cast<float>(bits) + 0.5f) - 0x3f000000u));
    bits += 0xfffu + ((bits >> 13) & 1u);
    return static_cast<uint16_t>(sign | ((bits - (112u << 23)) >> 13));
}

float bf16_to_f32(uint16_t bits) {
    return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

void read_block(PackedFormat format, const uint8_t* row, int64_t block, WeightBlock& out) {
    const int64_t super = block / 8, i = block % 8;  // of the K formats: 8 blocks of 32 share a header
    switch (format) {
        case PackedFormat::Q4_0:
        case PackedFormat::IQ4_NL:
            row += block * 18;
            out.scale = read_u16(row);
            read_nibbles(row + 2, out.code);
            return;
        case PackedFormat::Q4_1:
            row += block * 20;
            out.scale = read_u16(row);
            out.min = read_u16(row + 2);
            read_nibbles(row + 4, out.code);
            return;
        case PackedFormat::Q5_0:
            row += block * 22;
            out.scale = read_u16(row);
            read_nibbles(row + 6, out.code);
            add_fifth_bits(row + 2, out.code);
            return;
        case PackedFormat::Q5_1:
            row += block * 24;
            out.scale = read_u16(row);
            out.min = read_u16(row + 2);
            read_nibbles(row + 8, out.code);
            add_fifth_bits(row + 4, out.code);
            return;
        case PackedFormat::Q8_0:
        case PackedFormat::Q8_0_Split:
            row += block * 34;
            out.scale = read_u16(row);
            std::memcpy(out.code, row + 2, 32);
            return;
        case PackedFormat::Q2_K: {  // scales[16] qs[64] d dmin
            row += super * 84;
            out.scale = read_u16(row + 80);
            out.min = read_u16(row + 82);
            const uint8_t* q = row + 16 + (i / 4) * 32;
            for (int k = 0; k < 32; ++k) out.code[k] = (q[k] >> (2 * (i % 4))) & 3;
            for (int s = 0; s < 2; ++s) {
                out.sub_scale[s] = static_cast<int8_t>(row[2 * i + s] & 15);
                out.sub_min[s] = row[2 * i + s] >> 4;
            }
            return;
        }
        case PackedFormat::Q3_K: {  // hmask[32] qs[64] scales[12] d
            row += super * 110;
            out.scale = read_u16(row + 108);
            const uint8_t* q = row + 32 + (i / 4) * 32;
            for (int k = 0; k < 32; ++k)
                out.code[k] = static_cast<uint8_t>(((q[k] >> (2 * (i % 4))) & 3) | ((row[k] >> i) & 1) << 2);
            for (int s = 0; s < 2; ++s) out.sub_scale[s] = read_scale_k3(row + 96, 2 * i + s);
            return;
        }
        case PackedFormat::Q4_K:  // d dmin scales[12] qs[128]
            row += super * 144;
            out.scale = read_u16(row);
            out.min = read_u16(row + 2);
            read_scale_min_k4(row + 4, i, out);
            read_nibble_half(row + 16 + (i / 2) * 32, i % 2 != 0, out.code);
            return;
        case PackedFormat::Q5_K:  // d dmin scales[12] qh[32] qs[128]
            row += super * 176;
            out.scale = read_u16(row);
            out.min = read_u16(row + 2);
            read_scale_min_k4(row + 4, i, out);
            read_nibble_half(row + 48 + (i / 2) * 32, i % 2 != 0, out.code);
            for (int k = 0; k < 32; ++k)
                out.code[k] = static_cast<uint8_t>(out.code[k] | ((row[16 + k] >> i) & 1) << 4);
            return;
        case PackedFormat::Q6_K: {  // ql[128] qh[64] scales[16] d
            row += super * 210;
            out.scale = read_u16(row + 208);
            const int64_t half = i / 4, quarter = i % 4;
            read_nibble_half(row + half * 64 + (quarter % 2) * 32, quarter / 2 != 0, out.code);
            const uint8_t* high = row + 128 + half * 32;
            for (int k = 0; k < 32; ++k)
                out.code[k] = static_cast<uint8_t>(out.code[k] | ((high[k] >> (2 * quarter)) & 3) << 4);
            for (int s = 0; s < 2; ++s) out.sub_scale[s] = static_cast<int8_t>(row[192 + 2 * i + s]);
            return;
        }
        case PackedFormat::IQ4_XS: {  // d scales_h(u16) scales_l[4] qs[128]
            row += super * 136;
            out.scale = read_u16(row);
            const int low = (row[4 + i / 2] >> (4 * (i % 2))) & 15;
            const int high = (read_u16(row + 2) >> (2 * i)) & 3;
            out.sub_scale[0] = static_cast<int8_t>((low | high << 4) - 32);
            read_nibbles(row + 8 + i * 16, out.code);
            return;
        }
        case PackedFormat::F32:
        case PackedFormat::F16:
        case PackedFormat::BF16:
            return;  // no blocks
    }
}

void block_values(PackedFormat format, const WeightBlock& block, float* out) {
    const BlockLayout layout = block_layout(format);
    const float d = f16_to_f32(block.scale);
    const float m = layout.minimum ? f16_to_f32(block.min) : 0.0f;
    for (int k = 0; k < 32; ++k) {
        const int s = layout.scales == 2 ? k / 16 : 0;
        const float scale = layout.two_level ? d * static_cast<float>(block.sub_scale[s]) : d;
        const int code = layout.code_bits == 8 ? static_cast<int8_t>(block.code[k])
                         : layout.table        ? kIq4Values[block.code[k]]
                                               : block.code[k] - layout.offset;
        out[k] = scale * static_cast<float>(code);
        if (layout.minimum) out[k] += layout.two_level ? -(m * static_cast<float>(block.sub_min[s])) : m;
    }
}

void decode_row(WeightType type, const std::byte* row, int64_t cols, float* out) {
    const auto format = static_cast<PackedFormat>(type);
    const auto* p = reinterpret_cast<const uint8_t*>(row);
    switch (type) {
        case WeightType::F32:
            std::memcpy(out, p, static_cast<size_t>(cols) * 4);
            return;
        case WeightType::F16:
            for (int64_t i = 0; i < cols; ++i) out[i] = f16_to_f32(read_u16(p + 2 * i));
            return;
        case WeightType::BF16:
            for (int64_t i = 0; i < cols; ++i) out[i] = bf16_to_f32(read_u16(p + 2 * i));
            return;
        default:
            break;
    }
    WeightBlock block;
    for (int64_t b = 0; b < cols / 32; ++b) {
        read_block(format, p, b, block);
        block_values(format, block, out + 32 * b);
    }
}

}  // namespace lpx
