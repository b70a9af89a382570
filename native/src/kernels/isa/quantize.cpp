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

// A block whose largest value is below 2^-100 counts as zero; NaN or infinity in a block makes its scale NaN, and so
// every output that uses it. Scales are the largest magnitude / 127, codes are rounded to nearest even. Every path
// gives the same bits.
#if defined(__AVX512F__)

// A run of kRefineBlocks blocks side by side, without a branch that depends on the values.

// Lanes 0 and 2, or 1 and 3, of every 128 bits of a, then of b.
inline __m512i even_lanes(__m512i a, __m512i b) {
    return _mm512_castps_si512(_mm512_shuffle_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), 0x88));
}
inline __m512i odd_lanes(__m512i a, __m512i b) {
    return _mm512_castps_si512(_mm512_shuffle_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), 0xdd));
}
inline __m512i max_of_pairs(__m512i a, __m512i b) {
    return _mm512_max_epi32(even_lanes(a, b), odd_lanes(a, b));
}
inline __m512i sum_of_pairs(__m512i a, __m512i b) {
    return _mm512_add_epi32(even_lanes(a, b), odd_lanes(a, b));
}
// Over the four 128-bit parts.
inline __m128i max_of_parts(__m512i a) {
    a = _mm512_max_epi32(a, _mm512_shuffle_i32x4(a, a, 0x4e));
    return _mm512_castsi512_si128(_mm512_max_epi32(a, _mm512_shuffle_i32x4(a, a, 0xb1)));
}
inline __m512i codes_of(const float* x, __m512 inverse) {
    return _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x), inverse));
}

// The peaks of a run of up to four blocks, one to a lane.
struct Peaks {
    __m128i first, second;
    uint32_t is_first;  // bit 4 q + b: the largest of block b is in its quad q
};

inline Peaks find_peaks(const float* x, int64_t blocks) {
    __m512i values[8];
    for (int i = 0; i < 8; ++i) {
        const __m512i all = i < 2 * blocks ? _mm512_loadu_si512(x + 16 * i) : _mm512_setzero_si512();
        values[i] = _mm512_and_si512(all, _mm512_set1_epi32(0x7fffffff));
    }
    // Lane p of part q: quad q of vector p, and of vector 4 + p.
    const __m512i front = max_of_pairs(max_of_pairs(values[0], values[1]), max_of_pairs(values[2], values[3]));
    const __m512i back = max_of_pairs(max_of_pairs(values[4], values[5]), max_of_pairs(values[6], values[7]));
    // Lane b of part q: quad q, and quad 4 + q, of block b.
    const __m512i low = even_lanes(front, back), high = odd_lanes(front, back);
    const __m128i first = max_of_parts(_mm512_max_epi32(low, high));
    const __m512i everywhere = _mm512_broadcast_i32x4(first);
    const __mmask16 below_low = _mm512_cmplt_epi32_mask(low, everywhere);
    const __mmask16 below_high = _mm512_cmplt_epi32_mask(high, everywhere);
    const __m128i below = max_of_parts(
        _mm512_max_epi32(_mm512_maskz_mov_epi32(below_low, low), _mm512_maskz_mov_epi32(below_high, high)));
    const uint32_t is_first = ~(below_low | static_cast<uint32_t>(below_high) << 16);
    // The largest counts twice in a block that has it in two quads.
    uint32_t once = is_first, twice = 0;
    for (int width = 16; width >= 4; width /= 2) {
        twice |= twice >> width | (once & once >> width);
        once |= once >> width;
    }
    return {first, _mm_mask_mov_epi32(below, static_cast<__mmask8>(twice & 15), first), is_first};
}

// Codes of 64 values, in order, and the sums of each quad of them.
struct CodedVectors {
    __m512i bytes, sums;
};
inline CodedVectors code_vectors(const float* x, int64_t vectors, const float* inverse, __mmask16 quads) {
    __m512i codes[4];
    for (int i = 0; i < 4; ++i)
        codes[i] = i < vectors ? codes_of(x + 16 * i, _mm512_set1_ps(inverse[i / 2])) : _mm512_setzero_si512();
    const __m512i mixed =
        _mm512_packs_epi16(_mm512_packs_epi32(codes[0], codes[1]), _mm512_packs_epi32(codes[2], codes[3]));
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i bytes = _mm512_maskz_permutexvar_epi32(quads, order, mixed);
    const __m512i pairs = _mm512_maddubs_epi16(_mm512_set1_epi8(1), bytes);
    return {bytes, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1))};
}

// How a run is coded.
struct Plan {
    alignas(16) float inverse[4];  // of the scales
    uint32_t quads;                // bit 8 b + q: quad q of block b is coded with its block
    int vector;                    // the quad that is refined, negative if there is none
    float coarse;                  // its largest magnitude
};

inline Plan plan_blocks(const Peaks& peaks, int64_t blocks, float* scales) {
    const __mmask8 large = _mm_cmpge_epi32_mask(peaks.first, _mm_set1_epi32(kSmallest));
    const __mmask8 valid = _mm_mask_cmplt_epi32_mask(large, peaks.first, _mm_set1_epi32(kInfinity));
    const __m128 first = _mm_castsi128_ps(peaks.first), second = _mm_castsi128_ps(peaks.second);
    // Errors grow with the square of the scale.
    __m128 gain = _mm_maskz_mul_ps(valid, _mm_sub_ps(first, second), _mm_add_ps(first, second));
    gain = _mm_maskz_mov_ps(_mm_cmp_ps_mask(gain, _mm_setzero_ps(), _CMP_GT_OQ), gain);  // no NaN: 0 * infinity
    __m128 best = _mm_max_ps(gain, _mm_shuffle_ps(gain, gain, 0x4e));
    best = _mm_max_ps(best, _mm_shuffle_ps(best, best, 0xb1));
    const bool refines = _mm_cvtss_f32(best) > 0.0f;
    const int chosen = __builtin_ctz(_mm_cmp_ps_mask(gain, best, _CMP_EQ_OQ));
    const int vector = 8 * chosen + __builtin_ctz(peaks.is_first >> chosen & 0x11111111u) / 4;

    // Rounding may leave a hair more than half a coarse step: the limit is that hair wider.
    const auto relieved = static_cast<__mmask8>(static_cast<unsigned>(refines) << chosen);
    const __m128 peak = _mm_mask_max_ps(first, relieved, second, _mm_mul_ps(first, _mm_set1_ps(kFineLimit * 1.0001f)));
    Plan plan;
    _mm_store_ps(plan.inverse, _mm_maskz_div_ps(valid, _mm_set1_ps(127.0f), peak));
    const __m128 scale = _mm_mask_div_ps(_mm_set1_ps(__builtin_nanf("")), valid, peak, _mm_set1_ps(127.0f));
    _mm_mask_storeu_ps(scales, static_cast<__mmask8>((1u << blocks) - 1), _mm_maskz_mov_ps(large, scale));
    const uint32_t valid_quads = ((valid * 0x00204081u) & 0x01010101u) * 255u;
    plan.quads = valid_quads & ~(static_cast<uint32_t>(refines) << vector);
    plan.vector = refines ? vector : -1;
    plan.coarse = _mm_cvtss_f32(_mm_permutevar_ps(first, _mm_cvtsi32_si128(chosen)));
    return plan;
}

template <bool kWhole>
inline void code_blocks(const float* x, int64_t blocks, const Plan& plan, const QuantizedRow& out) {
    if constexpr (kWhole) blocks = kRefineBlocks;
    const CodedVectors front = code_vectors(x, 2 * blocks, plan.inverse, static_cast<__mmask16>(plan.quads));
    const CodedVectors back =
        code_vectors(x + 64, 2 * blocks - 4, plan.inverse + 2, static_cast<__mmask16>(plan.quads >> 16));
    const __m512i halves = sum_of_pairs(front.sums, back.sums);
    const __m512i sums = sum_of_pairs(halves, halves);  // of part q: vector q of front, of back, and again
    const __m256i narrow = _mm512_cvtepi32_epi16(
        _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 0, 0, 0, 0, 0, 0, 0, 0), sums));
    if constexpr (kWhole) {
        _mm512_storeu_si512(out.q8, front.bytes);
        _mm512_storeu_si512(out.q8 + 64, back.bytes);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out.sum), _mm256_castsi256_si128(narrow));
    } else {
        const uint32_t there = (1u << 8 * blocks) - 1;
        _mm512_mask_storeu_epi32(out.q8, static_cast<__mmask16>(there), front.bytes);
        _mm512_mask_storeu_epi32(out.q8 + 64, static_cast<__mmask16>(there >> 16), back.bytes);
        _mm_mask_storeu_epi32(out.sum, static_cast<__mmask8>((1u << blocks) - 1), _mm256_castsi256_si128(narrow));
    }
}

// Codes the quad that is refined, which the blocks were coded without.
inline void code_refined(const float* x, const Plan& plan, const QuantizedRow& out) {
    *out.refined = {};
    if (plan.vector < 0) return;
    const __m128 values = _mm_loadu_ps(x + 4 * plan.vector);
    const __m128i high = _mm_cvtps_epi32(_mm_mul_ps(values, _mm_set1_ps(127.0f / plan.coarse)));
    const float scale = plan.coarse / 127.0f;
    const __m128 rest = _mm_sub_ps(values, _mm_mul_ps(_mm_cvtepi32_ps(high), _mm_set1_ps(scale)));
    const __m128i low = _mm_cvtps_epi32(_mm_mul_ps(rest, _mm_set1_ps(plan.inverse[plan.vector / 8])));
    const auto sum_of = [](__m128i a) {
        a = _mm_add_epi32(a, _mm_shuffle_epi32(a, 0x4e));
        return _mm_cvtsi128_si32(_mm_add_epi32(a, _mm_shuffle_epi32(a, 0xb1)));
    };
    _mm_storeu_si32(out.refined->q8, _mm_cvtepi32_epi8(high));
    _mm_storeu_si32(out.q8 + 4 * plan.vector, _mm_cvtepi32_epi8(low));
    out.refined->scale = scale;
    out.refined->vector = static_cast<int16_t>(plan.vector);
    out.refined->sum = static_cast<int16_t>(sum_of(high));
    out.sum[plan.vector / 4] = static_cast<int16_t>(out.sum[plan.vector / 4] + sum_of(low));
}

inline constexpr int kTogether = 4;  // runs whose steps are taken in turns, since each waits for the one before

template <int kCount>
inline void quantize_runs(const float* x, int64_t blocks, QuantizedRow& out) {
    Plan plans[kCount];
    Peaks peaks[kCount];
    const int64_t each = kCount == 1 ? blocks : kRefineBlocks;  // blocks of a run
#pragma GCC unroll 4
    for (int i = 0; i < kCount; ++i) peaks[i] = find_peaks(x + 128 * i, each);
#pragma GCC unroll 4
    for (int i = 0; i < kCount; ++i) plans[i] = plan_blocks(peaks[i], each, out.scale + 4 * i);
    for (int i = 0; i < kCount; ++i) {
        const QuantizedRow at{out.q8 + 128 * i, out.scale + 4 * i, out.sum + 8 * i, out.refined + i};
        if (each == kRefineBlocks)
            code_blocks<true>(x + 128 * i, kRefineBlocks, plans[i], at);
        else
            code_blocks<false>(x + 128 * i, each, plans[i], at);
    }
    for (int i = 0; i < kCount; ++i) {
        const QuantizedRow at{out.q8 + 128 * i, out.scale + 4 * i, out.sum + 8 * i, out.refined + i};
        code_refined(x + 128 * i, plans[i], at);
    }
    out = {out.q8 + 128 * kCount, out.scale + 4 * kCount, out.sum + 8 * kCount, out.refined + kCount};
}

void quantize_row(const float* x, int64_t blocks, const QuantizedRow& out) {
    QuantizedRow at = out;
    constexpr int64_t kMany = kTogether * kRefineBlocks;
    for (; blocks >= kMany; blocks -= kMany, x += 32 * kMany) quantize_runs<kTogether>(x, kMany, at);
    for (; blocks > 0; blocks -= kRefineBlocks, x += 32 * kRefineBlocks)
        quantize_runs<1>(x, blocks < kRefineBlocks ? blocks : kRefineBlocks, at);
}

#else

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

#endif

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
