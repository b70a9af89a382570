// Matrix products of float weights with float activations.
//
// An output element is summed over columns in chunks of kFloatChunk; within a chunk even and odd columns have a sum
// each. That order is the same for every number of rows.
#include "../block_matmul.h"

namespace lpx::LPX_ISA_NS {
namespace {

constexpr int kFloatChunk = 256;  // 16 KiB of 16 rows in float32
#if defined(__AVX512F__)
constexpr int kFloatRows = 8;
#else
constexpr int kFloatRows = 3;
#endif

template <PackedFormat kFormat>
F32 load_weights(const std::byte* p) {
    if constexpr (kFormat == PackedFormat::F32) return load(reinterpret_cast<const float*>(p));
    if constexpr (kFormat == PackedFormat::F16) return load_f16(reinterpret_cast<const uint16_t*>(p));
    return load_bf16(reinterpret_cast<const uint16_t*>(p));
}

template <PackedFormat kFormat, int kRows>
__attribute__((noinline)) void add_float_chunk(const std::byte* weights, int64_t cols, const float* x, int64_t x_stride,
                                               bool first, float* out, int64_t out_stride, int outputs) {
    constexpr int kPartSize = kLanes * float_bytes(kFormat), kColSize = 16 * float_bytes(kFormat);
    F32 sum[2][kRows][kParts];
    for (int odd = 0; odd < 2; ++odd)
        for (int r = 0; r < kRows; ++r)
            for (int part = 0; part < kParts; ++part) sum[odd][r][part] = zero();
    for (int64_t k = 0; k < cols; k += 2) {
        prefetch(weights + 2048);
        if constexpr (kColSize == 64) prefetch(weights + 2048 + 64);
#pragma GCC unroll 2
        for (int odd = 0; odd < 2; ++odd)
#pragma GCC unroll 2
            for (int part = 0; part < kParts; ++part) {
                const F32 w = load_weights<kFormat>(weights + odd * kColSize + part * kPartSize);
#pragma GCC unroll 8
                for (int r = 0; r < kRows; ++r)
                    sum[odd][r][part] = fma(w, set1(x[r * x_stride + k + odd]), sum[odd][r][part]);
            }
        weights += 2 * kColSize;
    }
    for (int r = 0; r < kRows; ++r) {
        float row[16];
        float* to = out + r * out_stride;
        for (int part = 0; part < kParts; ++part) store(row + part * kLanes, add(sum[0][r][part], sum[1][r][part]));
        for (int i = 0; i < outputs; ++i) to[i] = first ? row[i] : to[i] + row[i];
    }
}

template <PackedFormat kFormat, int kMax = kFloatRows>
void add_float_rows(int64_t rows, const std::byte* weights, int64_t cols, const float* x, int64_t x_stride, bool first,
                    float* out, int64_t out_stride, int outputs) {
    if constexpr (kMax > 1) {
        if (rows < kMax)
            return add_float_rows<kFormat, kMax - 1>(rows, weights, cols, x, x_stride, first, out, out_stride, outputs);
    }
    add_float_chunk<kFormat, kMax>(weights, cols, x, x_stride, first, out, out_stride, outputs);
}

template <PackedFormat kFormat>
void matmul_float(const PackedMatrix& w, int64_t group_begin, int64_t group_end, const Activations& a, int64_t rows,
                  float* out, int64_t out_stride, void* scratch) {
    const int64_t cols = w.padded_cols();
    auto* widened = static_cast<float*>(scratch);
    for (int64_t g = group_begin; g < group_end; ++g) {
        const int64_t left = w.rows() - g * kGroupRows;
        const int outputs = static_cast<int>(left < kGroupRows ? left : kGroupRows);
        for (int64_t k = 0; k < cols; k += kFloatChunk) {
            const int64_t count = cols - k < kFloatChunk ? cols - k : kFloatChunk;
            const std::byte* weights = w.group(g) + k * 16 * float_bytes(kFormat);
            const bool widen = kFormat != PackedFormat::F32 && rows > kFloatRows;
            if (widen)  // once for all tiles of rows
                for (int64_t i = 0; i < count * 16; i += kLanes)
                    store(widened + i, load_weights<kFormat>(weights + i * float_bytes(kFormat)));
            for (int64_t r = 0; r < rows; r += kFloatRows) {
                const int64_t tile = rows - r < kFloatRows ? rows - r : kFloatRows;
                const float* x = a.f32 + r * a.cols + k;
                float* to = out + r * out_stride + g * kGroupRows;
                if (widen)
                    add_float_rows<PackedFormat::F32>(tile, reinterpret_cast<const std::byte*>(widened), count, x,
                                                      a.cols, k == 0, to, out_stride, outputs);
                else
                    add_float_rows<kFormat>(tile, weights, count, x, a.cols, k == 0, to, out_stride, outputs);
            }
        }
    }
}

}  // namespace

MatmulFunction matmul_of_float_format(PackedFormat format) {
    switch (format) {
        case PackedFormat::F32:
            return matmul_float<PackedFormat::F32>;
        case PackedFormat::F16:
            return matmul_float<PackedFormat::F16>;
        case PackedFormat::BF16:
            return matmul_float<PackedFormat::BF16>;
        default:
            return nullptr;
    }
}

}  // namespace lpx::LPX_ISA_NS
