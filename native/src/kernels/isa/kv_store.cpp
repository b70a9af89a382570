// Keys and values into the blocks of the KV cache, and queries into the codes that keys are multiplied with; see
// kernels/kv_layout.h for layouts.

#include "kernels/attention.h"
#include "kernels/kernels.h"
#include "kernels/kv_codes.h"
#include "kernels/rotate_head.h"

namespace lpx::LPX_ISA_NS {

namespace {

struct Float16 {
    static constexpr float kMost = kMostF16;
    static void store(uint16_t* p, F32 a) { store_f16(p, a); }
};
struct Bfloat16 {
    static constexpr float kMost = 3.3895314e38f;
    static void store(uint16_t* p, F32 a) { store_bf16(p, a); }
};

// max first, with the constant second: a NaN becomes the constant.
inline F32 clamp(F32 a, float most) {
    return min(max(a, set1(-most)), set1(most));
}

// `emit(d, n, halves)` takes n values from dimension d on.
template <class T, class F>
inline void convert(const float* x, int64_t head_dim, F emit) {
    for (int64_t d = 0; d < head_dim; d += kLanes) {
        const int64_t n = head_dim - d < kLanes ? head_dim - d : kLanes;
        float values[kLanes] = {};
        std::memcpy(values, x + d, n * sizeof(float));
        uint16_t halves[kLanes];
        T::store(halves, clamp(load(values), T::kMost));
        emit(d, n, halves);
    }
}

template <class T>
void store_key_floats(const KvWrite& w) {
    uint16_t* const keys = reinterpret_cast<uint16_t*>(w.block) + w.slot;
    convert<T>(w.key, w.layout->head_dim, [&](int64_t d, int64_t n, const uint16_t* halves) {
        for (int64_t i = 0; i < n; ++i) keys[(d + i) * kKvBlock] = halves[i];
    });
}

template <class T>
void store_value_floats(const KvWrite& w) {
    uint16_t* const values = reinterpret_cast<uint16_t*>(w.block + w.layout->values) + w.slot * w.layout->padded;
    convert<T>(w.value, w.layout->head_dim, [&](int64_t d, int64_t n, const uint16_t* halves) {
        std::memcpy(values + d, halves, n * sizeof(uint16_t));
    });
}

struct CodedGroup {
    float values[kKvGroup];
    int16_t codes[kKvGroup];
    GroupScale scale;
};

// `held` values of a head in groups; `emit(group, coded)` stores what belongs to a group.
template <int kBits, class F>
inline void for_groups(const float* x, int64_t held, int64_t groups, F emit) {
    for (int64_t g = 0; g < groups; ++g) {
        const int64_t first = g * kKvGroup;
        const int64_t within = held - first < kKvGroup ? held - first : kKvGroup;
        CodedGroup group{};
        std::memcpy(group.values, x + first, within * sizeof(float));
        for (int i = 0; i < kKvGroup; i += kLanes) store(group.values + i, clamp(load(group.values + i), kMostF16));
        // What lies beyond repeats a value, and so does not widen the range of the codes.
        for (int64_t i = within; i < kKvGroup; ++i) group.values[i] = group.values[0];
        group.scale = code_group<kBits>(group.values, group.codes);
        emit(g, group);
    }
}

inline void store_half(std::byte* halves, int64_t group, int slot, uint16_t half) {
    std::memcpy(halves + (group * kKvBlock + slot) * sizeof half, &half, sizeof half);
}

inline std::byte nibbles(int16_t low, int16_t high) {
    return static_cast<std::byte>(low | high << 4);
}

// Also tells the scales, which codes of values may have to hold: [groups].
template <int kBits>
void store_key_codes(const KvWrite& w, uint16_t* scales) {
    const KvLayout& layout = *w.layout;
    std::byte* const keys = w.block + 2 * w.slot;
    float rotated[kMaxHeadDim] = {};
    std::memcpy(rotated, w.key, layout.head_dim * sizeof(float));
    for (int64_t d = 0; d < layout.padded; d += kLanes) store(rotated + d, clamp(load(rotated + d), kMostF16));
    rotate_head(rotated, layout.padded);
    for_groups<kBits>(rotated, layout.padded, layout.groups, [&](int64_t g, const CodedGroup& group) {
        const int64_t left = layout.padded - g * kKvGroup;
        const int count = static_cast<int>(left < kKvGroup ? left : kKvGroup);
        std::byte* to = keys + g * kKvGroup * kKvBlock * kBits / 8;
        for (int d = 0; d < count; d += kBits == 8 ? 2 : 4, to += 2 * kKvBlock)
            for (int j = 0; j < 2; ++j)
                to[j] = kBits == 8 ? static_cast<std::byte>(group.codes[d + j])
                                   : nibbles(group.codes[d + j], group.codes[d + 2 + j]);
        scales[g] = group.scale.scale;
        if (!layout.holds_key_scales) store_half(w.block + layout.key_scales, g, w.slot, group.scale.scale);
        if constexpr (kBits == 4) store_half(w.block + layout.key_minima, g, w.slot, group.scale.minimum);
    });
}

template <int kBits>
void store_value_codes(const KvWrite& w, const uint16_t* key_scales) {
    const KvLayout& layout = *w.layout;
    constexpr int kGroupBytes = kKvGroup * 2 * kBits / 8;
    std::byte* const values = w.block + layout.values + w.slot / 2 * layout.groups * kGroupBytes + w.slot % 2;
    for_groups<kBits>(w.value, layout.head_dim, layout.groups, [&](int64_t g, CodedGroup& group) {
        std::byte* const to = values + g * kGroupBytes;
        if constexpr (kBits == 8) {
            const uint32_t bits = uint32_t{group.scale.scale} << 16 | key_scales[g];
            code_with_bits(group.values, group.scale.step, bits, layout.holds_key_scales ? 0 : 16, group.codes);
            for (int d = 0; d < kKvGroup; ++d) to[2 * d] = static_cast<std::byte>(group.codes[d]);
        } else {
            for (int d = 0; d < kKvGroup / 2; ++d) to[2 * d] = nibbles(group.codes[d], group.codes[kKvGroup / 2 + d]);
            store_half(w.block + layout.value_scales, g, w.slot, group.scale.scale);
            store_half(w.block + layout.value_minima, g, w.slot, group.scale.minimum);
        }
    });
}

void store_kv(const KvWrite& w) {
    uint16_t key_scales[kMostKvGroups] = {};
    switch (w.layout->types.key) {
        case KvType::F16:
            store_key_floats<Float16>(w);
            break;
        case KvType::BF16:
            store_key_floats<Bfloat16>(w);
            break;
        case KvType::Q8:
            store_key_codes<8>(w, key_scales);
            break;
        case KvType::Q4:
            store_key_codes<4>(w, key_scales);
            break;
    }
    switch (w.layout->types.value) {
        case KvType::F16:
            store_value_floats<Float16>(w);
            break;
        case KvType::BF16:
            store_value_floats<Bfloat16>(w);
            break;
        case KvType::Q8:
            store_value_codes<8>(w, key_scales);
            break;
        case KvType::Q4:
            store_value_codes<4>(w, key_scales);
            break;
    }
}

void code_queries(const AttentionTask& task) {
    const KvLayout& layout = *task.layout;
    for (int r = 0; r < task.rows; ++r) {
        float rotated[kMaxHeadDim];
        std::memcpy(rotated, task.query + r * layout.padded, layout.padded * sizeof(float));
        rotate_head(rotated, layout.padded);
        for (int64_t g = 0; g < layout.groups; ++g) {
            const int64_t first = g * kKvGroup, rest = layout.padded - first;
            code_query(rotated + first, task.coded.codes + r * layout.padded + first,
                       static_cast<int>(rest < kKvGroup ? rest : kKvGroup), task.coded.scales[r * layout.groups + g],
                       task.coded.sums[r * layout.groups + g]);
        }
    }
}

}  // namespace

void fill_kv_store(KernelTable& table) {
    table.store_kv = store_kv;
    table.code_queries = code_queries;
}

}  // namespace lpx::LPX_ISA_NS
