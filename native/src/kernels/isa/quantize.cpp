// Quantization of activations: int8 in blocks of 32 columns, with the worst outliers of a row carried twice.
//
// Activations of language models have few, very large values. One of them spoils the scale of its whole block. So in
// every kRefineBlocks blocks, the block whose scale gains most is relieved of its largest quad (4 columns): the quad is
// split into coarse codes with a scale of their own (a RefinedQuad) and a remainder, which is coded with the rest of
// the block. On SmolLM2 this lowers the divergence from float32 activations to a quarter, for a 32nd more dot products.
#include "../kernels.h"
#include "../simd.h"

namespace lpx::LPX_ISA_NS {

void fill_quantize(KernelTable& table);

namespace {

constexpr uint32_t kInfinity = 0x7f800000u, kSmallest = (127u - 100u) << 23;
constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer in the low bits
constexpr int32_t kRoundBits = 0x4b400000;
constexpr float kFineLimit = 1.0f / 254.0f;  // a coarse code misses at most half its scale, the largest / 254

inline float from_bits(uint32_t bits) {
    float f;
    std::memcpy(&f, &bits, sizeof f);
    return f;
}

// Magnitudes as bits, which order like the values: the two largest quads of a block.
struct BlockPeaks {
    uint32_t first = 0, second = 0;
    int quad = 0;  // of `first`
};

inline BlockPeaks find_peaks(const float* x) {
    uint32_t bits[32];
    std::memcpy(bits, x, sizeof bits);
    uint32_t peak[8] = {};
    for (int q = 0; q < 8; ++q)
        for (int i = 0; i < 4; ++i) {
            const uint32_t magnitude = bits[4 * q + i] & 0x7fffffffu;
            peak[q] = peak[q] > magnitude ? peak[q] : magnitude;
        }
    BlockPeaks peaks;
    for (int q = 0; q < 8; ++q) {
        if (peak[q] > peaks.first) {
            peaks.second = peaks.first;
            peaks.first = peak[q];
            peaks.quad = q;
        } else if (peak[q] > peaks.second) {
            peaks.second = peak[q];
        }
    }
    return peaks;
}

inline int32_t round_code(float x) {
    const float shifted = x + kRound;
    int32_t bits;
    std::memcpy(&bits, &shifted, sizeof bits);
    return bits - kRoundBits;
}

// Codes of 32 values whose magnitudes are at most `peak`; returns the scale.
inline float code_block(const float* x, float peak, int8_t* q8, int16_t* sum) {
    const float inverse = 127.0f / peak;
    float shifted[32];
    for (int i = 0; i < 32; ++i) shifted[i] = x[i] * inverse + kRound;
    int32_t bits[32];
    std::memcpy(bits, shifted, sizeof bits);
    for (int half = 0; half < 2; ++half) {
        int32_t total = 0;
        for (int i = 0; i < 16; ++i) {
            const int32_t code = bits[16 * half + i] - kRoundBits;
            q8[16 * half + i] = static_cast<int8_t>(code);
            total += code;
        }
        sum[half] = static_cast<int16_t>(total);
    }
    return peak / 127.0f;
}

// A block whose largest value is below 2^-100 counts as zero; NaN or infinity in a block makes its scale NaN, and so
// every output that uses it. Scales are the largest magnitude / 127, codes are rounded to nearest even.
void quantize_row(const float* x, int64_t blocks, const QuantizedRow& out) {
    for (int64_t start = 0; start < blocks; start += kRefineBlocks) {
        const int64_t count = blocks - start < kRefineBlocks ? blocks - start : kRefineBlocks;
        BlockPeaks peaks[kRefineBlocks];
        int64_t chosen = -1;
        float best_gain = 0.0f;
        for (int64_t b = 0; b < count; ++b) {
            peaks[b] = find_peaks(x + (start + b) * 32);
            if (peaks[b].first < kSmallest || peaks[b].first >= kInfinity) continue;
            // Errors grow with the square of the scale.
            const float first = from_bits(peaks[b].first), second = from_bits(peaks[b].second);
            const float gain = (first - second) * (first + second);
            if (gain > best_gain) {
                best_gain = gain;
                chosen = b;
            }
        }
        RefinedQuad& refined = out.refined[start / kRefineBlocks];
        refined = {};
        for (int64_t b = 0; b < count; ++b) {
            const float* values = x + (start + b) * 32;
            int8_t* q8 = out.q8 + (start + b) * 32;
            int16_t* sum = out.sum + (start + b) * 2;
            float& scale = out.scale[start + b];
            if (peaks[b].first < kSmallest || peaks[b].first >= kInfinity) {
                scale = peaks[b].first < kSmallest ? 0.0f : __builtin_nanf("");
                std::memset(q8, 0, 32);
                sum[0] = sum[1] = 0;
                continue;
            }
            float peak = from_bits(peaks[b].first);
            if (b != chosen) {
                scale = code_block(values, peak, q8, sum);
                continue;
            }
            float remainder[32];
            std::memcpy(remainder, values, sizeof remainder);
            refined.vector = static_cast<int16_t>(8 * b + peaks[b].quad);
            refined.scale = peak / 127.0f;
            int32_t total = 0;
            for (int i = 0; i < 4; ++i) {
                float& value = remainder[4 * peaks[b].quad + i];
                const int32_t code = round_code(value * (127.0f / peak));
                refined.q8[i] = static_cast<int8_t>(code);
                total += code;
                value -= static_cast<float>(code) * refined.scale;
            }
            refined.sum = static_cast<int16_t>(total);
            // Rounding may leave a hair more than half a coarse step: the limit is that hair wider.
            const float second = from_bits(peaks[b].second), fine = peak * (kFineLimit * 1.0001f);
            scale = code_block(remainder, second > fine ? second : fine, q8, sum);
        }
    }
}

void quantize_rows(const float* x, int64_t rows, int64_t cols, const QuantizedRow& out) {
    const int64_t blocks = cols / 32, refined = refined_quads(cols);
    for (int64_t r = 0; r < rows; ++r)
        quantize_row(x + r * cols, blocks,
                     {out.q8 + r * cols, out.scale + r * blocks, out.sum + r * blocks * 2, out.refined + r * refined});
}

}  // namespace

void fill_quantize(KernelTable& table) {
    table.quantize_rows = quantize_rows;
}

}  // namespace lpx::LPX_ISA_NS
