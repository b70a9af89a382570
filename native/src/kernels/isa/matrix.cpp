// Matrix products: choice by format, and quantization of activations.
#include "../block_matmul.h"

namespace lpx::LPX_ISA_NS {

MatmulFunction matmul_of_float_format(PackedFormat format);
MatmulFunction matmul_of_block_format(PackedFormat format);
MatmulFunction matmul_of_super_block_format(PackedFormat format);
void fill_matrix(KernelTable& table);

namespace {

MatmulFunction matmul_of(PackedFormat format) {
    if (MatmulFunction f = matmul_of_float_format(format)) return f;
    if (MatmulFunction f = matmul_of_block_format(format)) return f;
    return matmul_of_super_block_format(format);
}

void matmul(const PackedMatrix& w, int64_t group_begin, int64_t group_end, const Activations& a, int64_t rows,
            float* out, int64_t out_stride, void* scratch) {
    if (rows > 0 && group_begin < group_end)
        matmul_of(w.format())(w, group_begin, group_end, a, rows, out, out_stride, scratch);
}

// Symmetric int8 in blocks of 32: scale = max|x| / 127, codes rounded to nearest even. A block whose largest value is
// below 2^-100 counts as zero. NaN or infinity in a block makes its scale NaN, and so every output that uses it.
void quantize_rows(const float* x, int64_t rows, int64_t cols, int8_t* q8, float* scale, int16_t* sum) {
    constexpr uint32_t kInfinity = 0x7f800000u, kSmallest = (127u - 100u) << 23;
    constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer in the low bits
    constexpr int32_t kRoundBits = 0x4b400000;
    const int64_t blocks = rows * cols / 32;
    for (int64_t b = 0; b < blocks; ++b, x += 32, q8 += 32, sum += 2) {
        int32_t bits[32];
        std::memcpy(bits, x, sizeof bits);
        int32_t largest = 0;  // of the magnitudes' bits, which order like the magnitudes
        for (int i = 0; i < 32; ++i) {
            const int32_t magnitude = bits[i] & 0x7fffffff;
            largest = largest > magnitude ? largest : magnitude;
        }
        const auto top = static_cast<uint32_t>(largest);
        if (top < kSmallest || top >= kInfinity) {
            scale[b] = top < kSmallest ? 0.0f : __builtin_nanf("");
            std::memset(q8, 0, 32);
            sum[0] = sum[1] = 0;
            continue;
        }
        float maximum;
        std::memcpy(&maximum, &largest, sizeof maximum);
        scale[b] = maximum / 127.0f;
        const float inverse = 127.0f / maximum;
        float shifted[32];
        for (int i = 0; i < 32; ++i) shifted[i] = x[i] * inverse + kRound;
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
    }
}

}  // namespace

void fill_matrix(KernelTable& table) {
    table.matmul = matmul;
    table.quantize_rows = quantize_rows;
}

}  // namespace lpx::LPX_ISA_NS
