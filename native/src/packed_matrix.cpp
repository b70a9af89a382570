// Storage of packed matrices: from file rows to groups of 16 interleaved rows, in parallel, and back row by row.
#include "packed_matrix.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "packed_group.h"
#include "packed_layout.h"
#include "thread_pool.h"

namespace lpx {
namespace {

int64_t padded(int64_t cols) {
    return (cols + kBlockCols - 1) / kBlockCols * kBlockCols;
}

PackedFormat packed_format(WeightType type, int quantize_bits, bool split) {
    constexpr auto kEightBits = [](bool is_split) { return is_split ? PackedFormat::Q8_0_Split : PackedFormat::Q8_0; };
    if (quantize_bits == 0) return type == WeightType::Q8_0 ? kEightBits(split) : static_cast<PackedFormat>(type);
    if (!is_float(static_cast<PackedFormat>(type)))
        throw std::invalid_argument("only F32, F16 and BF16 weights can be quantized while loading");
    if (quantize_bits == 8) return kEightBits(split);
    if (quantize_bits == 4) return PackedFormat::Q4_1;
    throw std::invalid_argument("weights can be quantized to 8 or 4 bits, not to " + std::to_string(quantize_bits));
}

size_t packed_group_bytes(PackedFormat format, int64_t cols) {
    const auto blocks = static_cast<size_t>(padded(cols) / kBlockCols);
    if (is_float(format)) return blocks * kBlockCols * kGroupRows * static_cast<size_t>(float_bytes(format));
    if (format == PackedFormat::Q8_0_Split)
        return static_cast<size_t>(SplitLayout::group_bytes(static_cast<int64_t>(blocks)));
    const BlockLayout layout = block_layout(format);
    return blocks / static_cast<size_t>(layout.blocks_per_super()) * static_cast<size_t>(layout.super_bytes());
}

size_t packed_matrix_bytes(PackedFormat format, int64_t rows, int64_t cols) {
    const int64_t groups = (rows + kGroupRows - 1) / kGroupRows;
    const size_t bytes = static_cast<size_t>(groups) * packed_group_bytes(format, cols);
    if (format != PackedFormat::Q8_0_Split) return bytes;
    const int64_t low_groups = (groups + SplitLayout::kLowGroups - 1) / SplitLayout::kLowGroups;
    return bytes + static_cast<size_t>(low_groups * SplitLayout::low_bytes(padded(cols) / kBlockCols));
}

// File rows behind a row map.
struct SourceRows {
    const std::byte* data;
    size_t row_bytes;
    std::span<const int32_t> map;
    int64_t rows;

    // nullptr for the padding rows of the last group
    const std::byte* row(int64_t i) const {
        if (i >= rows) return nullptr;
        const int64_t source = map.empty() ? i : map[static_cast<size_t>(i)];
        return data + static_cast<size_t>(source) * row_bytes;
    }
};

void check_source(WeightType type, int64_t rows, int64_t cols, std::span<const std::byte> data,
                  std::span<const int32_t> map) {
    if (rows <= 0 || cols <= 0) throw std::invalid_argument("a matrix needs at least one row and one column");
    const size_t row_bytes = weight_row_bytes(type, cols);
    const size_t source_rows = data.size() / row_bytes;
    if (data.size() % row_bytes != 0 || (map.empty() && source_rows != static_cast<size_t>(rows)))
        throw std::invalid_argument("a matrix of " + std::to_string(rows) + " rows of " + std::to_string(row_bytes) +
                                    " bytes cannot have " + std::to_string(data.size()) + " bytes");
    if (!map.empty() && map.size() != static_cast<size_t>(rows))
        throw std::invalid_argument("row map of " + std::to_string(map.size()) + " entries for " +
                                    std::to_string(rows) + " rows");
    for (const int32_t source : map)
        if (source < 0 || static_cast<size_t>(source) >= source_rows)
            throw std::invalid_argument("row map names row " + std::to_string(source) + " of " +
                                        std::to_string(source_rows));
}

void pack_float_group(PackedFormat format, const SourceRows& source, int64_t first_row, int64_t cols,
                      std::byte* group) {
    const auto size = static_cast<size_t>(float_bytes(format));
    const std::byte* row[kGroupRows];
    for (int r = 0; r < kGroupRows; ++r) row[r] = source.row(first_row + r);
    for (int64_t k = 0; k < padded(cols); ++k)
        for (int r = 0; r < kGroupRows; ++r) {
            if (row[r] != nullptr && k < cols)
                std::memcpy(group, row[r] + static_cast<size_t>(k) * size, size);
            else
                std::memset(group, 0, size);
            group += size;
        }
}

void pack_block_group(PackedFormat format, const SourceRows& source, int64_t first_row, int64_t cols, std::byte* group,
                      std::byte* low) {
    for (int r = 0; r < kGroupRows; ++r) {
        const auto* row = reinterpret_cast<const uint8_t*>(source.row(first_row + r));
        const bool split = format == PackedFormat::Q8_0_Split;
        WeightBlock block{};
        SplitNorms norms;
        for (int64_t b = 0; b < cols / kBlockCols; ++b) {
            if (row != nullptr) read_block(format, row, b, block);
            write_block(format, group, low, r, b, block);
            if (split) norms.add(block);
        }
        if (split) write_split_norms(group, r, norms);
    }
}

void quantize_group(PackedFormat format, WeightType type, const SourceRows& source, int64_t first_row, int64_t cols,
                    float* buffer, std::byte* group, std::byte* low) {
    for (int r = 0; r < kGroupRows; ++r) {
        const std::byte* row = source.row(first_row + r);
        if (row != nullptr) decode_row(type, row, cols, buffer);
        const bool split = format == PackedFormat::Q8_0_Split;
        WeightBlock block{};
        SplitNorms norms;
        for (int64_t k = 0; k < cols; k += kBlockCols) {
            if (row != nullptr) {
                const int count = static_cast<int>(cols - k < kBlockCols ? cols - k : kBlockCols);
                for (int i = 0; i < count; ++i)
                    if (!std::isfinite(buffer[k + i]))
                        throw std::invalid_argument("weights with NaN or infinity cannot be quantized");
                if (format == PackedFormat::Q8_0 || split)
                    quantize_block_q8(buffer + k, count, block);
                else
                    quantize_block_q4(buffer + k, count, block);
            }
            write_block(format, group, low, r, k / kBlockCols, block);
            if (split) norms.add(block);
        }
        if (split) write_split_norms(group, r, norms);
    }
}

// Source bytes that a thread packs at a time: small enough that threads end together, large enough for what each costs.
constexpr size_t kTaskBytes = size_t{1} << 20;

}  // namespace

size_t PackedMatrix::packed_bytes(WeightType type, int64_t rows, int64_t cols, int quantize_bits, bool split) {
    weight_row_bytes(type, cols);  // throws for a broken row
    if (rows <= 0) throw std::invalid_argument("a matrix needs at least one row");
    return packed_matrix_bytes(packed_format(type, quantize_bits, split), rows, cols);
}

PackedMatrix PackedMatrix::allocate_for(PackedFormat format, int64_t rows, int64_t cols) {
    PackedMatrix m;
    m.format_ = format;
    m.rows_ = rows;
    m.cols_ = cols;
    m.padded_cols_ = padded(cols);
    m.group_bytes_ = packed_group_bytes(format, cols);
    m.bytes_ = packed_matrix_bytes(format, rows, cols);
    m.data_ = allocate_weights(m.bytes_);
    return m;
}

PackedMatrix PackedMatrix::pack(WeightType type, int64_t rows, int64_t cols, std::span<const std::byte> data,
                                std::span<const int32_t> row_map, ThreadPool* pool, bool split) {
    MatrixPacking packing({.type = type, .rows = rows, .cols = cols, .data = data, .row_map = row_map, .split = split});
    pack_all({&packing, 1}, pool);
    return packing.take();
}

PackedMatrix PackedMatrix::quantize(int bits, WeightType type, int64_t rows, int64_t cols,
                                    std::span<const std::byte> data, std::span<const int32_t> row_map,
                                    ThreadPool* pool) {
    if (bits == 0) throw std::invalid_argument("weights can be quantized to 8 or 4 bits, not to 0");
    MatrixPacking packing(
        {.type = type, .rows = rows, .cols = cols, .data = data, .row_map = row_map, .quantize_bits = bits});
    pack_all({&packing, 1}, pool);
    return packing.take();
}

MatrixPacking::MatrixPacking(const MatrixSource& source) : source_(source) {
    const PackedFormat format = packed_format(source.type, source.quantize_bits, source.split);
    check_source(source.type, source.rows, source.cols, source.data, source.row_map);
    matrix_ = PackedMatrix::allocate_for(format, source.rows, source.cols);
}

size_t MatrixPacking::source_group_bytes() const {
    return kGroupRows * weight_row_bytes(source_.type, source_.cols);
}

void MatrixPacking::pack(int64_t begin, int64_t end) {
    const SourceRows rows{source_.data.data(), weight_row_bytes(source_.type, source_.cols), source_.row_map,
                          source_.rows};
    const PackedFormat format = matrix_.format_;
    const int64_t cols = source_.cols;
    std::vector<float> buffer(source_.quantize_bits != 0 ? static_cast<size_t>(cols) : 0);
    for (int64_t g = begin; g < end; ++g) {
        auto* const group = const_cast<std::byte*>(matrix_.group(g));
        auto* const low = const_cast<std::byte*>(matrix_.low_group(g));
        if (source_.quantize_bits != 0)
            quantize_group(format, source_.type, rows, g * kGroupRows, cols, buffer.data(), group, low);
        else if (is_float(format))
            pack_float_group(format, rows, g * kGroupRows, cols, group);
        else
            pack_block_group(format, rows, g * kGroupRows, cols, group, low);
    }
    if (source_.mapped && source_.row_map.empty()) give_back(begin, end);
}

// Whole pages only: what shares a page with other rows may not have been read yet.
void MatrixPacking::give_back(int64_t begin, int64_t end) const {
    static const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    const size_t bytes = source_group_bytes();
    const auto start = reinterpret_cast<uintptr_t>(source_.data.data());
    const uintptr_t first = (start + static_cast<size_t>(begin) * bytes + page - 1) / page * page;
    const uintptr_t last = (start + std::min(source_.data.size(), static_cast<size_t>(end) * bytes)) / page * page;
    if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

void pack_all(std::span<MatrixPacking> matrices, ThreadPool* pool) {
    struct Task {
        MatrixPacking* matrix;
        int64_t begin, end;
    };
    std::vector<Task> tasks;
    for (MatrixPacking& matrix : matrices) {
        const auto step = static_cast<int64_t>(std::max<size_t>(1, kTaskBytes / matrix.source_group_bytes()));
        for (int64_t g = 0; g < matrix.groups(); g += step)
            tasks.push_back({&matrix, g, std::min(g + step, matrix.groups())});
    }
    std::atomic<size_t> next{0};
    const auto work = [&](int /*thread*/) {
        for (size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < tasks.size();)
            tasks[i].matrix->pack(tasks[i].begin, tasks[i].end);
    };
    if (pool == nullptr)
        work(0);
    else
        pool->run(work);
}

std::string_view PackedMatrix::format_name() const {
    return weight_type_name(split() ? WeightType::Q8_0 : static_cast<WeightType>(format_));
}

const std::byte* PackedMatrix::low_group(int64_t g) const {
    return group(groups()) + SplitLayout::low_offset(padded_cols_ / kBlockCols, g);
}

bool PackedMatrix::split() const {
    return format_ == PackedFormat::Q8_0_Split;
}

bool PackedMatrix::float_weights() const {
    return is_float(format_);
}

void PackedMatrix::decode(int64_t row, float* out) const {
    const std::byte* packed = group(row / kGroupRows);
    const std::byte* low = low_group(row / kGroupRows);
    const int r = static_cast<int>(row % kGroupRows);
    if (is_float(format_)) {
        const auto size = static_cast<size_t>(float_bytes(format_));
        for (int64_t k = 0; k < cols_; ++k) {
            const std::byte* p = packed + (static_cast<size_t>(k) * kGroupRows + static_cast<size_t>(r)) * size;
            decode_row(static_cast<WeightType>(format_), p, 1, out + k);
        }
        return;
    }
    WeightBlock block{};
    for (int64_t b = 0; b < padded_cols_ / kBlockCols; ++b) {
        read_packed_block(format_, packed, low, r, b, block);
        if ((b + 1) * kBlockCols <= cols_) {
            block_values(format_, block, out + b * kBlockCols);
        } else {
            float last[kBlockCols];
            block_values(format_, block, last);
            std::memcpy(out + b * kBlockCols, last, static_cast<size_t>(cols_ - b * kBlockCols) * sizeof(float));
        }
    }
}

}  // namespace lpx
