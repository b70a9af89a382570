#include "kv_cache.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <new>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "packed_layout.h"

namespace lpx {

namespace {

constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, which older headers lack

constexpr const char* kTypeNames[] = {"f16", "bf16", "q8", "q4"};

// Bytes of a block's keys or values, without scales.
int64_t stored_bytes(KvType type, int64_t dims) {
    if (type == KvType::Q8) return dims * kKvBlock;
    if (type == KvType::Q4) return dims * kKvBlock / 2;
    return dims * kKvBlock * static_cast<int64_t>(sizeof(uint16_t));
}

float read_half(const std::byte* p, int64_t index, KvType type) {
    uint16_t half;
    std::memcpy(&half, p + index * sizeof half, sizeof half);
    return type == KvType::BF16 ? bf16_to_f32(half) : f16_to_f32(half);
}

float read_byte(const std::byte* block, int64_t byte) {
    return static_cast<float>(static_cast<int8_t>(std::to_integer<uint8_t>(block[byte])));
}

// The value of a code of 4 bits; `byte` and `minimum` are offsets.
float read_nibble(const std::byte* block, int64_t byte, bool high, float scale, int64_t minimum) {
    const auto stored = std::to_integer<uint8_t>(block[byte]);
    return read_half(block + minimum, 0, KvType::F16) + static_cast<float>(high ? stored >> 4 : stored & 15) * scale;
}

// The number whose bits are the lowest ones of 16 codes, `pitch` bytes apart.
float read_lowest_bits(const std::byte* codes, int64_t pitch) {
    uint16_t half = 0;
    for (int bit = 0; bit < 16; ++bit)
        half |= static_cast<uint16_t>(std::to_integer<unsigned>(codes[bit * pitch] & std::byte{1}) << bit);
    return f16_to_f32(half);
}

// The rotation of keys, by its definition: over each of the largest powers of two that fit one behind the other, entry
// (i, j) is 1 where i & j has an even number of bits, else -1, over the root of the count. It is its own inverse.
void rotate_back(std::span<float> x) {
    while (!x.empty()) {
        const size_t count = std::bit_floor(x.size());
        std::vector<float> rotated(count);
        for (size_t i = 0; i < count; ++i) {
            double sum = 0.0;
            for (size_t j = 0; j < count; ++j) sum += std::popcount(i & j) % 2 == 0 ? x[j] : -x[j];
            rotated[i] = static_cast<float>(sum / std::sqrt(static_cast<double>(count)));
        }
        std::copy(rotated.begin(), rotated.end(), x.begin());
        x = x.subspan(count);
    }
}

}  // namespace

KvType kv_type_from_name(std::string_view name) {
    const auto found = std::find(std::begin(kTypeNames), std::end(kTypeNames), name);
    if (found == std::end(kTypeNames))
        throw std::invalid_argument("unknown KV cache type '" + std::string(name) + "'; there are f16, bf16, q8, q4");
    return static_cast<KvType>(found - std::begin(kTypeNames));
}

KvLayout make_kv_layout(KvTypes types, int64_t head_dim) {
    if (head_dim < 1 || head_dim > kMaxHeadDim)
        throw std::invalid_argument("head size " + std::to_string(head_dim) + " is outside [1, " +
                                    std::to_string(kMaxHeadDim) + "]");
    KvLayout layout{};
    layout.types = types;
    layout.head_dim = head_dim;
    layout.padded = padded_head_dim(head_dim);
    layout.groups = (layout.padded + kKvGroup - 1) / kKvGroup;
    const int64_t halves = layout.groups * kKvBlock * static_cast<int64_t>(sizeof(uint16_t));
    layout.holds_value_scales = types.value == KvType::Q8;
    layout.holds_key_scales = layout.holds_value_scales && types.key == KvType::Q8;
    const auto scales = [&](KvType type, bool held) { return has_codes(type) && !held ? halves : 0; };
    const auto minima = [&](KvType type) { return type == KvType::Q4 ? halves : 0; };
    // Lanes of keys are tokens, so only codes are padded; lanes of values are dimensions.
    const int64_t key_dims = has_codes(types.key) ? layout.padded : head_dim;
    const int64_t value_dims = has_codes(types.value) ? layout.groups * kKvGroup : layout.padded;
    layout.key_scales = stored_bytes(types.key, key_dims);
    layout.key_minima = layout.key_scales + scales(types.key, layout.holds_key_scales);
    layout.values = layout.key_minima + minima(types.key);
    layout.value_scales = layout.values + stored_bytes(types.value, value_dims);
    layout.value_minima = layout.value_scales + scales(types.value, layout.holds_value_scales);
    layout.bytes = layout.value_minima + minima(types.value);
    return layout;
}

KvCache::KvCache(int64_t blocks, int64_t layers, int64_t kv_heads, const KvLayout& layout)
    : layout_(layout), blocks_(blocks), kv_heads_(kv_heads), block_pitch_(layers * kv_heads * layout.bytes) {
    if (blocks < 1 || blocks > INT32_MAX) throw std::invalid_argument("number of KV blocks must be in [1, 2^31)");
    void* const p = mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    madvise(p, bytes(), MADV_HUGEPAGE);  // only a hint; small pages work too
    data_ = {static_cast<std::byte*>(p), Unmap{bytes()}};
}

bool KvCache::populate(int64_t first, int64_t count) const {
    if (first < 0 || count < 0 || first > blocks_ - count) throw std::out_of_range("blocks outside of the KV cache");
    const int64_t page = sysconf(_SC_PAGESIZE);
    const int64_t begin = first * block_pitch_ / page * page;  // the cache begins at a page
    const int64_t end = (first + count) * block_pitch_;
    return madvise(data_.get() + begin, static_cast<size_t>(end - begin), kPopulateWrite) == 0;
}

size_t KvCache::block_bytes(int64_t layers, int64_t kv_heads, const KvLayout& layout) {
    return static_cast<size_t>(layers) * kv_heads * layout.bytes;
}

void KvCache::read(int64_t block, int64_t layer, int64_t kv_head, int slot, float* key, float* value) const {
    const KvLayout& l = layout_;
    const std::byte* const p = at(layer, kv_head) + block * block_pitch_;
    const auto factor_at = [&](int64_t factors, int64_t d) {
        return factors + (d / kKvGroup * kKvBlock + slot) * static_cast<int64_t>(sizeof(uint16_t));
    };
    // Of dimension d of values in codes of 8 bits.
    const auto byte_at = [&](int64_t d) { return l.values + (slot / 2 * l.groups * kKvGroup + d) * 2 + slot % 2; };
    // The scale of the group of dimension d.
    const auto scale_of = [&](int64_t d, bool held, int first_dim, int64_t scales) {
        return held ? read_lowest_bits(p + byte_at(d / kKvGroup * kKvGroup + first_dim), 2)
                    : read_half(p + factor_at(scales, d), 0, KvType::F16);
    };
    std::vector<float> keys(l.padded);
    const int64_t key_dims = has_codes(l.types.key) ? l.padded : l.head_dim;
    for (int64_t d = 0; d < key_dims; ++d) {
        const auto scale = [&] { return scale_of(d, l.holds_key_scales, 0, l.key_scales); };
        if (l.types.key == KvType::Q8)
            keys[d] = read_byte(p, (d / 2 * kKvBlock + slot) * 2 + d % 2) * scale();
        else if (l.types.key == KvType::Q4)
            keys[d] =
                read_nibble(p, (d / 4 * kKvBlock + slot) * 2 + d % 2, d % 4 >= 2, scale(), factor_at(l.key_minima, d));
        else
            keys[d] = read_half(p, d * kKvBlock + slot, l.types.key);
    }
    if (has_codes(l.types.key)) rotate_back(keys);
    std::copy_n(keys.begin(), l.head_dim, key);

    for (int64_t d = 0; d < l.head_dim; ++d) {
        const auto scale = [&] { return scale_of(d, l.holds_value_scales, 16, l.value_scales); };
        const int64_t group = d / kKvGroup, within = d % kKvGroup;
        const int64_t pair = (slot / 2 * l.groups + group) * (kKvGroup / 2) + within % 16;  // of nibbles
        if (l.types.value == KvType::Q8)
            value[d] = read_byte(p, byte_at(d)) * scale();
        else if (l.types.value == KvType::Q4)
            value[d] =
                read_nibble(p, l.values + pair * 2 + slot % 2, within >= 16, scale(), factor_at(l.value_minima, d));
        else
            value[d] = read_half(p + l.values, slot * l.padded + d, l.types.value);
    }
}

void KvCache::Unmap::operator()(std::byte* p) const {
    munmap(p, bytes);
}

}  // namespace lpx
