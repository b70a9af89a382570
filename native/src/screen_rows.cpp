#include "screen_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "packed_matrix.h"

namespace lpx {

namespace {

// At least the square root of `square`, in spite of rounding.
float root_above(double square) {
    const double above = std::sqrt(std::max(square, 0.0)) * (1.0 + 1e-6);
    return std::nextafter(static_cast<float>(above), std::numeric_limits<float>::infinity());
}

// Eight columns of a row.
struct Octet {
    double energy;  // of the activations, squared norm
    int32_t index;
};

ScreenOctet screen_octet(const int8_t* q8, int32_t index, float scale) {
    ScreenOctet octet{.q8 = {}, .block = index / 4, .vector = index % 4, .scale = scale, .offset = 0.0f};
    std::memcpy(octet.q8, q8, sizeof octet.q8);
    int sum = 0;
    for (const int8_t q : octet.q8) sum += q;
    octet.offset = -7.5f * static_cast<float>(sum);
    return octet;
}

}  // namespace

ScreenRows::ScreenRows(int64_t cols, int64_t rows)
    : cols_(cols),
      rows_(rows),
      scale_(rows * cols / kBlockCols),
      offset_(rows * cols / kBlockCols),
      refined_(rows * refined_quads(cols)) {}

size_t ScreenRows::bytes_for(int64_t cols, int64_t rows) {
    return rows * (sizeof(ScreenRow) + 2 * sizeof(float) * static_cast<size_t>(cols / kBlockCols) +
                   sizeof(RefinedQuad) * static_cast<size_t>(refined_quads(cols)));
}

void ScreenRows::prepare(const Activations& a, int64_t row) {
    const int64_t blocks = cols_ / kBlockCols, quads = refined_quads(cols_);
    const int8_t* const q8 = a.q8 + row * cols_;
    const float* const scale = a.scale + row * blocks;
    const int16_t* const sum = a.sum + row * blocks * 2;
    const RefinedQuad* const refined = a.refined + row * quads;
    float* const scales = scale_.data() + row * blocks;
    float* const offsets = offset_.data() + row * blocks;
    static thread_local std::vector<Octet> octets;
    octets.resize(4 * blocks);
    for (int64_t b = 0; b < blocks; ++b) {
        scales[b] = 16.0f * scale[b];
        offsets[b] = -120.5f * scale[b] * static_cast<float>(sum[2 * b] + sum[2 * b + 1]);
        const double square = double{scale[b]} * scale[b];
        for (int i = 0; i < 4; ++i) {
            int squares = 0;
            for (int k = 0; k < 8; ++k) squares += q8[32 * b + 8 * i + k] * q8[32 * b + 8 * i + k];
            octets[4 * b + i] = {square * squares, static_cast<int32_t>(4 * b + i)};
        }
    }
    // Two vectors of codes, the quads, are an octet.
    const auto octet_of = [&](int64_t quad) { return 4 * kRefineBlocks * quad + refined[quad].vector / 2; };
    for (int64_t i = 0; i < quads; ++i) {
        RefinedQuad& quad = refined_[row * quads + i] = refined[i];
        quad.scale *= 16.0f;
        const int64_t octet = octet_of(i), block = octet / 4;
        offsets[block] += -120.5f * refined[i].scale * static_cast<float>(refined[i].sum);
        double energy = 0.0;
        for (int k = 0; k < 8; ++k) {
            double value = double{scale[block]} * q8[8 * octet + k];
            if (k / 4 == refined[i].vector % 2) value += double{refined[i].scale} * refined[i].q8[k % 4];
            energy += value * value;
        }
        octets[octet].energy = energy;
    }
    double left = 0.0;
    for (const Octet& octet : octets) left += octet.energy;
    // What subtracting leaves of rounding errors counts as left.
    const double total = left, least = 1e-12 * total;

    ScreenRow& out = rows_[row];
    out = {};
    out.q8 = q8;
    out.scale = scales;
    out.offset = offsets;
    out.refined = refined_.data() + row * quads;
    // Activations that are not finite have no order and no bounds.
    const int64_t count = std::isfinite(total) ? std::min<int64_t>(kRefineOctets, std::ssize(octets)) : 0;
    std::partial_sort(octets.begin(), octets.begin() + count, octets.end(),
                      [](const Octet& x, const Octet& y) { return x.energy > y.energy; });
    for (int64_t i = 0; i < count; ++i) {
        const int32_t index = octets[i].index;
        out.octets[out.octet_count++] = screen_octet(q8 + 8 * index, index, scale[index / 4]);
        const int64_t quad = index / (4 * kRefineBlocks);
        if (octet_of(quad) == index) {
            int8_t twice[8] = {};
            std::memcpy(twice + 4 * (refined[quad].vector % 2), refined[quad].q8, 4);
            out.octets[out.octet_count++] = screen_octet(twice, index, refined[quad].scale);
        }
        left -= octets[i].energy;
        if (i < kScreenOctets) {
            out.screen_count = out.octet_count;
            out.left_by_screen = root_above(left + least);
        }
    }
    if (count == 0) out.left_by_screen = std::numeric_limits<float>::infinity();
    out.left_by_refine = root_above(left + least);
    // Roundings of the screen and of the kernel that it stands for. The two parts of a quad may be larger than their
    // sum, but not more than four times.
    out.rounding = root_above(total) * static_cast<float>(4 * blocks + 64) * 0x1p-21f;
}

}  // namespace lpx
