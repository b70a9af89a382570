// A weight matrix as the kernels want it: rows of output interleaved by 16, in the precision of the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

#include "weight_storage.h"

namespace lpx {

class ThreadPool;

// Weight encodings as files hold them (GGML's names).
enum class WeightType : uint8_t {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    IQ4_NL,
    IQ4_XS
};

// Throws std::invalid_argument for an unknown name.
WeightType weight_type_from_name(std::string_view name);
std::string_view weight_type_name(WeightType type);
// Bytes of one row of `cols` values; throws std::invalid_argument when cols is no multiple of the block.
size_t weight_row_bytes(WeightType type, int64_t cols);
// One row in the file's encoding to float32: the plain scalar decoder that everything else is compared with.
void decode_row(WeightType type, const std::byte* row, int64_t cols, float* out);

// How a matrix lies in memory; see packed_matrix.cpp for each layout.
enum class PackedFormat : uint8_t;

inline constexpr int kGroupRows = 16;  // interleaved output rows
inline constexpr int kBlockCols = 32;  // activations share a scale over this many columns

class PackedMatrix {
  public:
    // Packs `rows` x `cols` from the file's encoding. Row i of the result is row row_map[i] of `data` (empty: i).
    // Splits over `pool` when given. Throws std::invalid_argument when `data` has the wrong size.
    // With `split`, a matrix of Q8_0 is laid out for screening, see SplitLayout; other types take no notice.
    static PackedMatrix pack(WeightType type, int64_t rows, int64_t cols, std::span<const std::byte> data,
                             std::span<const int32_t> row_map, ThreadPool* pool, bool split = false);
    // Quantizes F32, F16 or BF16 weights while packing: 8 = int8 in blocks of 32, 4 = asymmetric 4-bit in blocks of 32.
    static PackedMatrix quantize(int bits, WeightType type, int64_t rows, int64_t cols, std::span<const std::byte> data,
                                 std::span<const int32_t> row_map, ThreadPool* pool);

    PackedMatrix() = default;
    PackedMatrix(PackedMatrix&&) noexcept = default;
    PackedMatrix& operator=(PackedMatrix&&) noexcept = default;

    bool empty() const { return rows_ == 0; }
    int64_t rows() const { return rows_; }
    int64_t cols() const { return cols_; }
    int64_t groups() const { return (rows_ + kGroupRows - 1) / kGroupRows; }
    int64_t padded_cols() const { return padded_cols_; }  // multiple of 32; padding multiplies zeros
    PackedFormat format() const { return format_; }
    std::string_view format_name() const;  // the name of the weight type with this layout
    bool split() const;                    // can be screened
    bool float_weights() const;            // F32, F16, BF16: kernels take float activations; else int8 blocks
    size_t bytes() const { return bytes_; }
    size_t group_bytes() const { return group_bytes_; }
    const std::byte* group(int64_t g) const { return data_.get() + g * group_bytes_; }
    // The low nibbles of a group of a split matrix, see SplitLayout; else unspecified.
    const std::byte* low_group(int64_t g) const;

    // Row `row` as float32, from the packed bytes, exactly what decode_row gives for the source (embedding look-up).
    void decode(int64_t row, float* out) const;

    // Bytes that pack()/quantize() will allocate (memory plan before loading).
    static size_t packed_bytes(WeightType type, int64_t rows, int64_t cols, int quantize_bits, bool split = false);

  private:
    friend class MatrixPacking;
    static PackedMatrix allocate_for(PackedFormat format, int64_t rows, int64_t cols);

    PackedFormat format_{};
    int64_t rows_ = 0, cols_ = 0, padded_cols_ = 0;
    size_t group_bytes_ = 0, bytes_ = 0;
    WeightMemory data_;
};

// Where a matrix comes from, as PackedMatrix::pack and quantize take it.
struct MatrixSource {
    WeightType type;
    int64_t rows, cols;
    std::span<const std::byte> data;
    std::span<const int32_t> row_map;
    int quantize_bits = 0;  // 0: the file's precision
    bool split = false;     // as in PackedMatrix::pack
    bool mapped = false;    // `data` is a read-only mapping of a file, whose pages are given back once they are packed
};

// A matrix that is being packed, group by group.
class MatrixPacking {
  public:
    // Checks the source and allocates the matrix; throws std::invalid_argument.
    explicit MatrixPacking(const MatrixSource& source);
    int64_t groups() const { return matrix_.groups(); }
    size_t source_group_bytes() const;
    // Packs groups [begin, end); several threads may pack different ones.
    void pack(int64_t begin, int64_t end);
    PackedMatrix take() { return std::move(matrix_); }

  private:
    void give_back(int64_t begin, int64_t end) const;

    MatrixSource source_;
    PackedMatrix matrix_;
};

// Packs all groups of all matrices, split over `pool` when given.
void pack_all(std::span<MatrixPacking> matrices, ThreadPool* pool);

}  // namespace lpx
