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

// `held` values of a head as codes; `emit(group, count, codes)` stores the codes of its `count` padded dimensions.
template <int kBits, class F>
inline void store_groups(const float* x, int64_t held, const KvLayout& layout, std::byte* scales, std::byte* minima,
                         int slot, F emit) {
    for (int64_t g = 0; g < layout.groups; ++g) {
        const int64_t first = g * kKvGroup;
        const int count = static_cast<int>(layout.padded - first < kKvGroup ? layout.padded - first : kKvGroup);
        const int64_t within = held - first < kKvGroup ? held - first : kKvGroup;
        float values[kKvGroup] = {};
        std::memcpy(values, x + first, within * sizeof(float));
        for (int i = 0; i < kKvGroup; i += kLanes) store(values + i, clamp(load(values + i), kMostF16));
        // What lies beyond repeats a value, and so does not widen the range of the codes.
        for (int64_t i = within; i < kKvGroup; ++i) values[i] = values[0];
        int16_t codes[kKvGroup];
        const GroupScale made = code_group<kBits>(values, codes);
        const int64_t at = (g * kKvBlock + slot) * sizeof(uint16_t);
        std::memcpy(scales + at, &made.scale, sizeof made.scale);
        if constexpr (kBits == 4) std::memcpy(minima + at, &made.minimum, sizeof made.minimum);
        emit(g, count, codes);
    }
}

inline std::byte nibbles(int16_t low, int16_t high) {
    return static_cast<std::byte>(low | high << 4);
}

template <int kBits>
void store_key_codes(const KvWrite& w) {
    const KvLayout& layout = *w.layout;
    std::byte* const keys = w.block + 2 * w.slot;
    float rotated[kMaxHeadDim] = {};
    std::memcpy(rotated, w.key, layout.head_dim * sizeof(float));
    for (int64_t d = 0; d < layout.padded; d += kLanes) store(rotated + d, clamp(load(rotated + d), kMostF16));
    rotate_head(rotated, layout.padded);
    store_groups<kBits>(rotated, layout.padded, layout, w.block + layout.key_scales, w.block + layout.key_minima,
                        w.slot, [&](int64_t g, int count, const int16_t* codes) {
                            std::byte* to = keys + g * kKvGroup * kKvBlock * kBits / 8;
                            for (int d = 0; d < count; d += kBits == 8 ? 2 : 4, to += 2 * kKvBlock)
                                for (int j = 0; j < 2; ++j)
                                    to[j] = kBits == 8 ? static_cast<std::byte>(codes[d + j])
                                                       : nibbles(codes[d + j], codes[d + 2 + j]);
                        });
}

template <int kBits>
void store_value_codes(const KvWrite& w) {
    const KvLayout& layout = *w.layout;
    constexpr int kGroupBytes = kKvGroup * 2 * kBits / 8;
    const int64_t pitch = kBits == 8 ? 2 * layout.padded : layout.groups * kGroupBytes;
    std::byte* const values = w.block + layout.values + w.slot / 2 * pitch + w.slot % 2;
    store_groups<kBits>(w.value, layout.head_dim, layout, w.block + layout.value_scales, w.block + layout.value_minima,
                        w.slot, [&](int64_t g, int count, const int16_t* codes) {
                            std::byte* const to = values + g * kGroupBytes;
                            if constexpr (kBits == 8)
                                for (int d = 0; d < count; ++d) to[2 * d] = static_cast<std::byte>(codes[d]);
                            else
                                for (int d = 0; d < kKvGroup / 2; ++d)
                                    to[2 * d] = nibbles(codes[d], codes[kKvGroup / 2 + d]);
                        });
}

void store_kv(const KvWrite& w) {
    switch (w.layout->types.key) {
        case KvType::F16:
            store_key_floats<Float16>(w);
            break;
        case KvType::BF16:
            store_key_floats<Bfloat16>(w);
            break;
        case KvType::Q8:
            store_key_codes<8>(w);
            break;
        case KvType::Q4:
            store_key_codes<4>(w);
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
            store_value_codes<8>(w);
            break;
        case KvType::Q4:
            store_value_codes<4>(w);
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
