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

inline int32_t round_code(float x) {
    const float shifted = x + kRound;
    int32_t bits;
    std::memcpy(&bits, &shifted, sizeof bits);
    return bits - kRoundBits;
}

// Magnitudes as bits, which order like the values: the two largest quads of a block.
struct BlockPeaks {
    uint32_t first = 0, second = 0;
    int quad = 0;  // of `first`
};

#if defined(__AVX2__)

// Vectors of four quads' worth of lanes in the order 0 2 4 6 1 3 5 7, and bytes packed by two packs: back in order.
inline __m256i in_order(__m256i a) {
    return _mm256_permutevar8x32_epi32(a, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

inline __m256i max_within_quads(__m256i a) {
    a = _mm256_max_epi32(a, _mm256_shuffle_epi32(a, 0xb1));
    return _mm256_max_epi32(a, _mm256_shuffle_epi32(a, 0x4e));
}

// In every lane.
inline __m256i max_of_lanes(__m256i a) {
    return max_within_quads(_mm256_max_epi32(a, _mm256_permute2x128_si256(a, a, 1)));
}

inline BlockPeaks find_peaks(const float* x) {
    __m256i quads[4];
    for (int i = 0; i < 4; ++i) {
        const __m256i values = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + 8 * i));
        quads[i] = max_within_quads(_mm256_and_si256(values, _mm256_set1_epi32(0x7fffffff)));
    }
    const __m256i peaks = in_order(_mm256_blend_epi32(_mm256_blend_epi32(quads[0], quads[1], 0xaa),
                                                      _mm256_blend_epi32(quads[2], quads[3], 0xaa), 0xcc));
    const __m256i first = max_of_lanes(peaks);
    const int at_first = _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(peaks, first)));
    const int quad = __builtin_ctz(static_cast<unsigned>(at_first));
    const __m256i chosen = _mm256_cmpeq_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(quad));
    const __m256i second = max_of_lanes(_mm256_andnot_si256(chosen, peaks));
    return {static_cast<uint32_t>(_mm256_cvtsi256_si32(first)), static_cast<uint32_t>(_mm256_cvtsi256_si32(second)),
            quad};
}

// Codes of 32 values whose magnitudes are at most `peak`; returns the scale.
inline float code_block(const float* x, float peak, int8_t* q8, int16_t* sum) {
    const __m256 inverse = _mm256_set1_ps(127.0f / peak), round = _mm256_set1_ps(kRound);
    __m256i codes[4];
    for (int i = 0; i < 4; ++i) {
        const __m256 shifted = _mm256_add_ps(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), inverse), round);
        codes[i] = _mm256_sub_epi32(_mm256_castps_si256(shifted), _mm256_set1_epi32(kRoundBits));
    }
    const __m256i bytes =
        in_order(_mm256_packs_epi16(_mm256_packs_epi32(codes[0], codes[1]), _mm256_packs_epi32(codes[2], codes[3])));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(q8), bytes);
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes);
    __m256i sums = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32(sums, 0xb1));
    sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32(sums, 0x4e));
    sum[0] = static_cast<int16_t>(_mm256_cvtsi256_si32(sums));
    sum[1] = static_cast<int16_t>(_mm256_extract_epi32(sums, 4));
    return peak / 127.0f;
}

#else

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

#endif

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
