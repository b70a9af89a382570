// The kernels of one instruction set, as plain functions on numbers. They know no model and no threads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attention.h"
#include "kernels/screen.h"
#include "packed_matrix.h"

namespace lpx {

// In every kRefineBlocks blocks of a row, one quad (4 columns) is carried twice, see isa/quantize.cpp: its value is
// q8 * scale of its block, plus q8 * scale of this.
struct RefinedQuad {
    int8_t q8[4] = {};
    float scale = 0.0f;
    int16_t vector = 0;  // quad within the kRefineBlocks blocks: block * 8 + column / 4
    int16_t sum = 0;     // of q8
};
inline constexpr int kRefineBlocks = 4;  // a divisor of 8, so that the blocks lie in one super block
// Internal linkage: each instruction set has to keep its own copy.
static inline int64_t refined_quads(int64_t cols) {
    return (cols / kBlockCols + kRefineBlocks - 1) / kRefineBlocks;
}

// Rows of activations, in the forms that matrix kernels read. Caller owns the buffers.
struct Activations {
    int64_t cols = 0;                      // padded to a multiple of 32, padding zero
    const float* f32 = nullptr;            // [rows][cols], always there
    const int8_t* q8 = nullptr;            // [rows][cols], value = q8 * scale of its block, |q8| <= 127
    const float* scale = nullptr;          // [rows][cols / 32]
    const int16_t* sum = nullptr;          // [rows][cols / 16], sums of 16 q8 each
    const RefinedQuad* refined = nullptr;  // [rows][refined_quads(cols)]
};

// Where quantized rows go: as in Activations.
struct QuantizedRow {
    int8_t* q8;
    float* scale;
    int16_t* sum;
    RefinedQuad* refined;
};

inline constexpr int kMaximaBlock = 64;  // logits that share a maximum, see block_maxima

// Bounds of what the matrix kernels of any instruction set keep in scratch: an unpacked chunk with the corrections of
// a pass over rows, and the corrections of the few rows whose tiles all unpack in registers.
inline constexpr size_t kBlockScratchBytes = 128 * 1024;
inline constexpr size_t kFloatScratchBytes = 16 * 1024;
inline constexpr int kMaxFusedRows = 64;

inline constexpr int64_t kReadStep = 256;  // bytes of a stream that read_streams reads at a time

struct KernelTable {
    const char* isa = nullptr;

    // --- matrix.cpp ---
    // out[r * out_stride + n] = sum_k w[n][k] * a[r][k] for rows r in [0, rows) and output rows n of the groups
    // [group_begin, group_end). Each output is accumulated in one fixed order over k, whatever `rows` is (I1).
    // `scratch` holds matmul_scratch_bytes(w) bytes, one per thread.
    void (*matmul)(const PackedMatrix& w, int64_t group_begin, int64_t group_end, const Activations& a, int64_t rows,
                   float* out, int64_t out_stride, void* scratch) = nullptr;

    // --- quantize.cpp ---
    // Quantizes `rows` rows of `cols` (padded) floats; each row alone (I1).
    void (*quantize_rows)(const float* x, int64_t rows, int64_t cols, const QuantizedRow& out) = nullptr;

    // --- elementwise.cpp ---
    void (*rms_norm)(const float* x, const float* weight, float eps, int64_t n, float* out) = nullptr;  // one row
    void (*add)(float* x, const float* y, int64_t n) = nullptr;                                         // x += y
    void (*scale)(float* x, float factor, int64_t n) = nullptr;                                         // x *= factor
    void (*silu_mul)(const float* gate, const float* up, int64_t n, float* out) = nullptr;       // silu(gate) * up
    void (*gelu_tanh_mul)(const float* gate, const float* up, int64_t n, float* out) = nullptr;  // gelu(gate) * up
    void (*softcap)(float* x, float cap, int64_t n) = nullptr;                                   // cap * tanh(x / cap)
    // Rotates pairs (j, j + half) of one head in place; cos and sin have `half` values.
    void (*rotate)(float* head, const float* cos, const float* sin, int64_t half) = nullptr;

    // --- kv_store.cpp: see attention.h ---
    void (*store_kv)(const KvWrite&) = nullptr;
    // Fills task.coded from task.query; each row alone (I1).
    void (*code_queries)(const AttentionTask& task) = nullptr;

    // --- attention.cpp: see attention.h ---
    void (*attend)(const AttentionTask&) = nullptr;
    void (*merge_split)(const MergeTask&) = nullptr;

    // --- screen.cpp: see screen.h ---
    int64_t screen_rows = 0;  // steps of more rows are faster without, at most kMostScreenRows
    void (*screen)(const ScreenTask&) = nullptr;
    // The upper bound of one row and group after more octets.
    float (*refine)(const ScreenTask&, int64_t group, int64_t row) = nullptr;

    // --- sampling.cpp ---
    // maxima[b] = largest of x[64 b, 64 b + 64) (the last block may be short); false when one of the values is NaN.
    bool (*block_maxima)(const float* x, int64_t n, float* maxima) = nullptr;
    // sum of exp((x[i] - shift) * factor), in a fixed order
    float (*sum_exp)(const float* x, float shift, float factor, int64_t n) = nullptr;

    // --- roofline.cpp: what the machine can do at most, see roofline.h ---
    // Reads `streams` (1, 2, 4 or 8) streams in turn that lie one behind the other in memory, each `stream_bytes` (a
    // multiple of kReadStep) long, fetched ahead as the matrix kernels do or left to the machine's own prefetching.
    void (*read_streams)(const std::byte* data, int streams, int64_t stream_bytes, bool fetched) = nullptr;
    // Rounds of independent multiply-adds on registers; they return how many multiply-adds that were. The dot products
    // are those of the matrix kernels: int8 activations with codes of 4 or 8 bits. Null where there is no unit.
    int64_t (*peak_int8_4bit)(int64_t rounds) = nullptr;
    int64_t (*peak_int8)(int64_t rounds) = nullptr;
    int64_t (*peak_bf16)(int64_t rounds) = nullptr;
    int64_t (*peak_f32)(int64_t rounds) = nullptr;
};

// Bytes of scratch per thread that matmul needs for this matrix; it must be aligned to 64 bytes.
size_t matmul_scratch_bytes(const PackedMatrix& w);

// Kernel sets that are compiled in and that this machine can run, best first ("portable" is always last).
struct IsaList {
    const char* names[8];
    int count;
};
IsaList available_isas();
// The kernels of `name` (nullptr or "": LPX_ISA from the environment, else the best). Throws std::invalid_argument,
// with the choices, for a name that is unknown or that this machine cannot run.
const KernelTable& kernels_for(const char* name);

}  // namespace lpx
