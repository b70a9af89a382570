// Storage of packed matrices: from file rows to groups of 16 interleaved rows, in parallel, and back row by row.
#include "packed_matrix.h"

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

PackedFormat packed_format(WeightType type, int quantize_bits) {
    if (quantize_bits == 0) return static_cast<PackedFormat>(type);
    if (!is_float(static_cast<PackedFormat>(type)))
        throw std::invalid_argument("only F32, F16 and BF16 weights can be quantized while loading");
    if (quantize_bits == 8) return PackedFormat::Q8_0;
    if (quantize_bits == 4) return PackedFormat::Q4_1;
    throw std::invalid_argument("weights can be quantized to 8 or 4 bits, not to " + std::to_string(quantize_bits));
}

size_t packed_group_bytes(PackedFormat format, int64_t cols) {
    const auto blocks = static_cast<size_t>(padded(cols) / kBlockCols);
    if (is_float(format)) return blocks * kBlockCols * kGroupRows * static_cast<size_t>(float_bytes(format));
    const BlockLayout layout = block_layout(format);
    return blocks / static_cast<size_t>(layout.blocks_per_super()) * static_cast<size_t>(layout.super_bytes());
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

SourceRows check_source(WeightType type, int64_t rows, int64_t cols, std::span<const std::byte> data,
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
    return {data.data(), row_bytes, map, rows};
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

void pack_block_group(PackedFormat format, const SourceRows& source, int64_t first_row, int64_t cols,
                      std::byte* group) {
    for (int r = 0; r < kGroupRows; ++r) {
        const auto* row = reinterpret_cast<const uint8_t*>(source.row(first_row + r));
        WeightBlock block{};
        for (int64_t b = 0; b < cols / kBlockCols; ++b) {
            if (row != nullptr) read_block(format, row, b, block);
            write_block(format, group, r, b, block);
        }
    }
}

void quantize_group(PackedFormat format, WeightType type, const SourceRows& source, int64_t first_row, int64_t cols,
                    float* buffer, std::byte* group) {
    for (int r = 0; r < kGroupRows; ++r) {
        const std::byte* row = source.row(first_row + r);
        if (row != nullptr) decode_row(type, row, cols, buffer);
        WeightBlock block{};
        for (int64_t k = 0; k < cols; k += kBlockCols) {
            if (row != nullptr) {
                const int count = static_cast<int>(cols - k < kBlockCols ? cols - k : kBlockCols);
                for (int i = 0; i < count; ++i)
                    if (!std::isfinite(buffer[k + i]))
                        throw std::invalid_argument("weights with NaN or infinity cannot be quantized");
                if (format == PackedFormat::Q8_0)
                    quantize_block_q8(buffer + k, count, block);
                else
                    quantize_block_q4(buffer + k, count, block);
            }
            write_block(format, group, r, k / kBlockCols, block);
        }
    }
}

// Calls pack(first_group, end_group) on ranges that cover all groups.
template <class Pack>
void for_group_ranges(int64_t groups, ThreadPool* pool, Pack&& pack) {
    if (pool == nullptr) {
        pack(int64_t{0}, groups);
        return;
    }
    const int64_t threads = pool->size();
    pool->run([&](int thread) { pack(groups * thread / threads, groups * (thread + 1) / threads); });
}

}  // namespace

size_t PackedMatrix::packed_bytes(WeightType type, int64_t rows, int64_t cols, int quantize_bits) {
    weight_row_bytes(type, cols);  // throws for a broken row
    if (rows <= 0) throw std::invalid_argument("a matrix needs at least one row");
    return static_cast<size_t>((rows + kGroupRows - 1) / kGroupRows) *
           packed_group_bytes(packed_format(type, quantize_bits), cols);
}

PackedMatrix PackedMatrix::allocate_for(PackedFormat format, int64_t rows, int64_t cols) {
    PackedMatrix m;
    m.format_ = format;
    m.rows_ = rows;
    m.cols_ = cols;
    m.padded_cols_ = padded(cols);
    m.group_bytes_ = packed_group_bytes(format, cols);
    m.bytes_ = m.group_bytes_ * static_cast<size_t>(m.groups());
    m.data_ = allocate_weights(m.bytes_);
    return m;
}

PackedMatrix PackedMatrix::pack(WeightType type, int64_t rows, int64_t cols, std::span<const std::byte> data,
                                std::span<const int32_t> row_map, ThreadPool* pool) {
    const SourceRows source = check_source(type, rows, cols, data, row_map);
    PackedMatrix m = allocate_for(packed_format(type, 0), rows, cols);
    for_group_ranges(m.groups(), pool, [&](int64_t begin, int64_t end) {
        for (int64_t g = begin; g < end; ++g) {
            std::byte* group = m.data_.get() + static_cast<size_t>(g) * m.group_bytes_;
            if (is_float(m.format_))
                pack_float_group(m.format_, source, g * kGroupRows, cols, group);
            else
                pack_block_group(m.format_, source, g * kGroupRows, cols, group);
        }
    });
    return m;
}

PackedMatrix PackedMatrix::quantize(int bits, WeightType type, int64_t rows, int64_t cols,
                                    std::span<const std::byte> data, std::span<const int32_t> row_map,
                                    ThreadPool* pool) {
    if (bits == 0) throw std::invalid_argument("weights can be quantized to 8 or 4 bits, not to 0");
    const PackedFormat format = packed_format(type, bits);
    const SourceRows source = check_source(type, rows, cols, data, row_map);
    PackedMatrix m = allocate_for(format, rows, cols);
    for_group_ranges(m.groups(), pool, [&](int64_t begin, int64_t end) {
        std::vector<float> buffer(static_cast<size_t>(cols));
        for (int64_t g = begin; g < end; ++g)
            quantize_group(format, type, source, g * kGroupRows, cols, buffer.data(),
                           m.data_.get() + static_cast<size_t>(g) * m.group_bytes_);
    });
    return m;
}

std::string_view PackedMatrix::format_name() const {
    return weight_type_name(static_cast<WeightType>(format_));
}

bool PackedMatrix::float_weights() const {
    return is_float(format_);
}

void PackedMatrix::decode(int64_t row, float* out) const {
    const std::byte* packed = group(row / kGroupRows);
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
        read_packed_block(format_, packed, r, b, block);
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
