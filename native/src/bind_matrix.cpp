// Python surface of packed matrices and their kernels, for tests, benchmarks and the executor's weight loading.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "bindings.h"
#include "kernels/kernels.h"
#include "packed_matrix.h"
#include "screen_rows.h"
#include "thread_pool.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lpx {
namespace {

using ByteArray = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using RowMap = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using FloatRows = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

template <class T>
nb::object to_numpy(std::unique_ptr<T[]> data, std::initializer_list<size_t> shape) {
    T* p = data.release();
    nb::capsule owner(p, [](void* q) noexcept { delete[] static_cast<T*>(q); });
    return nb::cast(nb::ndarray<nb::numpy, T>(p, shape, owner));
}

std::span<const std::byte> bytes_of(const ByteArray& data) {
    return {reinterpret_cast<const std::byte*>(data.data()), data.size()};
}

std::span<const int32_t> map_of(const std::optional<RowMap>& map) {
    if (!map) return {};
    return {map->data(), map->size()};
}

std::unique_ptr<ThreadPool> make_pool(int threads) {
    return threads > 1 ? std::make_unique<ThreadPool>(threads) : nullptr;
}

struct FreeScratch {
    void operator()(std::byte* p) const { std::free(p); }
};

// Activations padded to whole blocks, as the decoder hands them to the kernels.
struct QuantizedRows {
    std::vector<float> padded, scale;
    std::vector<int8_t> q8;
    std::vector<int16_t> sum;
    std::vector<RefinedQuad> refined;
    Activations view;

    QuantizedRows(const KernelTable& kernels, const float* x, int64_t rows, int64_t cols) {
        const int64_t wide = (cols + kBlockCols - 1) / kBlockCols * kBlockCols;
        padded.resize(static_cast<size_t>(rows * wide));
        for (int64_t r = 0; r < rows; ++r)
            std::memcpy(padded.data() + r * wide, x + r * cols, static_cast<size_t>(cols) * sizeof(float));
        scale.resize(static_cast<size_t>(rows * wide / 32));
        q8.resize(static_cast<size_t>(rows * wide));
        sum.resize(static_cast<size_t>(rows * wide / 16));
        refined.resize(static_cast<size_t>(rows * refined_quads(wide)));
        kernels.quantize_rows(padded.data(), rows, wide, {q8.data(), scale.data(), sum.data(), refined.data()});
        view = {wide, padded.data(), q8.data(), scale.data(), sum.data(), refined.data()};
    }
};

void check_columns(const PackedMatrix& w, const FloatRows& x) {
    if (static_cast<int64_t>(x.shape(1)) != w.cols())
        throw std::invalid_argument("the matrix has " + std::to_string(w.cols()) + " columns, the rows have " +
                                    std::to_string(x.shape(1)));
}

nb::object matmul(const PackedMatrix& w, const FloatRows& x, const std::string& isa, int threads) {
    check_columns(w, x);
    const KernelTable& kernels = kernels_for(isa.c_str());
    const auto rows = static_cast<int64_t>(x.shape(0));
    auto out = std::make_unique<float[]>(static_cast<size_t>(rows * w.rows()));
    {
        nb::gil_scoped_release unlocked;
        const QuantizedRows activations(kernels, x.data(), rows, w.cols());
        ThreadPool pool(threads);
        const int64_t groups = w.groups();
        pool.run([&](int thread) {
            const size_t bytes = (matmul_scratch_bytes(w) + 63) / 64 * 64;
            std::unique_ptr<std::byte, FreeScratch> scratch(static_cast<std::byte*>(std::aligned_alloc(64, bytes)));
            kernels.matmul(w, groups * thread / threads, groups * (thread + 1) / threads, activations.view, rows,
                           out.get(), w.rows(), scratch.get());
        });
    }
    return to_numpy(std::move(out), {static_cast<size_t>(rows), static_cast<size_t>(w.rows())});
}

nb::object screen(const PackedMatrix& w, const FloatRows& x, const std::string& isa, bool refine) {
    if (!w.split()) throw std::invalid_argument("only matrices packed with split=True can be screened");
    check_columns(w, x);
    const KernelTable& kernels = kernels_for(isa.c_str());
    const auto rows = static_cast<int64_t>(x.shape(0));
    const int64_t groups = w.groups();
    const QuantizedRows activations(kernels, x.data(), rows, w.cols());
    ScreenRows prepared(w.padded_cols(), rows);
    for (int64_t r = 0; r < rows; ++r) prepared.prepare(activations.view, r);
    std::vector<float> approximate(static_cast<size_t>(rows * groups * kGroupRows));
    auto upper = std::make_unique<float[]>(static_cast<size_t>(rows * groups));
    const ScreenTask task{.matrix = &w,
                          .group_begin = 0,
                          .group_end = groups,
                          .rows = prepared.data(),
                          .row_count = rows,
                          .approximate = approximate.data(),
                          .approximate_stride = groups * kGroupRows,
                          .upper = upper.get(),
                          .upper_stride = groups};
    if (rows > 0) kernels.screen(task);
    if (refine)
        for (int64_t r = 0; r < rows; ++r)
            for (int64_t g = 0; g < groups; ++g) upper[r * groups + g] = kernels.refine(task, g, r);
    return to_numpy(std::move(upper), {static_cast<size_t>(rows), static_cast<size_t>(groups)});
}

nb::object decode(const PackedMatrix& w, const std::vector<int64_t>& rows) {
    auto out = std::make_unique<float[]>(rows.size() * static_cast<size_t>(w.cols()));
    for (size_t i = 0; i < rows.size(); ++i) {
        if (rows[i] < 0 || rows[i] >= w.rows())
            throw std::out_of_range("row " + std::to_string(rows[i]) + " of " + std::to_string(w.rows()));
        w.decode(rows[i], out.get() + i * static_cast<size_t>(w.cols()));
    }
    return to_numpy(std::move(out), {rows.size(), static_cast<size_t>(w.cols())});
}

nb::object decode_rows(const std::string& type_name, int64_t cols, const ByteArray& data) {
    const WeightType type = weight_type_from_name(type_name);
    const size_t row_bytes = weight_row_bytes(type, cols);
    if (data.size() % row_bytes != 0)
        throw std::invalid_argument(std::to_string(data.size()) + " bytes are no whole number of rows of " +
                                    std::to_string(row_bytes));
    const size_t rows = data.size() / row_bytes;
    auto out = std::make_unique<float[]>(rows * static_cast<size_t>(cols));
    for (size_t r = 0; r < rows; ++r)
        decode_row(type, bytes_of(data).data() + r * row_bytes, cols, out.get() + r * static_cast<size_t>(cols));
    return to_numpy(std::move(out), {rows, static_cast<size_t>(cols)});
}

nb::object quantize_activations(const FloatRows& x, const std::string& isa) {
    const size_t rows = x.shape(0), cols = x.shape(1);
    if (cols % kBlockCols != 0) throw std::invalid_argument("columns must be a multiple of 32");
    auto q8 = std::make_unique<int8_t[]>(rows * cols);
    auto scale = std::make_unique<float[]>(rows * cols / 32);
    auto sum = std::make_unique<int16_t[]>(rows * cols / 16);
    const auto quads = static_cast<size_t>(refined_quads(static_cast<int64_t>(cols)));
    std::vector<RefinedQuad> refined(rows * quads);
    kernels_for(isa.c_str())
        .quantize_rows(x.data(), static_cast<int64_t>(rows), static_cast<int64_t>(cols),
                       {q8.get(), scale.get(), sum.get(), refined.data()});
    auto fine = std::make_unique<int8_t[]>(4 * rows * quads);
    auto fine_scale = std::make_unique<float[]>(rows * quads);
    auto column = std::make_unique<int32_t[]>(rows * quads);
    for (size_t i = 0; i < refined.size(); ++i) {
        std::memcpy(fine.get() + 4 * i, refined[i].q8, 4);
        fine_scale[i] = refined[i].scale;
        column[i] = static_cast<int32_t>(i % quads * kRefineBlocks * kBlockCols) + 4 * refined[i].vector;
    }
    return nb::make_tuple(to_numpy(std::move(q8), {rows, cols}), to_numpy(std::move(scale), {rows, cols / 32}),
                          to_numpy(std::move(sum), {rows, cols / 16}), to_numpy(std::move(fine), {rows, quads, 4}),
                          to_numpy(std::move(fine_scale), {rows, quads}), to_numpy(std::move(column), {rows, quads}));
}

}  // namespace

void bind_matrix(nb::module_& m) {
    nb::class_<PackedMatrix>(m, "PackedMatrix", "A weight matrix in the layout of the kernels.")
        .def_static(
            "pack",
            [](const std::string& type, int64_t rows, int64_t cols, const ByteArray& data,
               const std::optional<RowMap>& row_map, int threads, bool split) {
                const auto pool = make_pool(threads);
                return PackedMatrix::pack(weight_type_from_name(type), rows, cols, bytes_of(data), map_of(row_map),
                                          pool.get(), split);
            },
            "type"_a, "rows"_a, "cols"_a, "data"_a, "row_map"_a = nb::none(), "threads"_a = 1, "split"_a = false,
            "Pack rows in a file's encoding; row i of the result is row row_map[i] of the data. With `split`, a matrix "
            "of Q8_0 can be screened.")
        .def_static(
            "quantize",
            [](int bits, const std::string& type, int64_t rows, int64_t cols, const ByteArray& data,
               const std::optional<RowMap>& row_map, int threads) {
                const auto pool = make_pool(threads);
                return PackedMatrix::quantize(bits, weight_type_from_name(type), rows, cols, bytes_of(data),
                                              map_of(row_map), pool.get());
            },
            "bits"_a, "type"_a, "rows"_a, "cols"_a, "data"_a, "row_map"_a = nb::none(), "threads"_a = 1,
            "Quantize F32, F16 or BF16 rows to 8 or 4 bits in blocks of 32 while packing.")
        .def_static(
            "packed_bytes",
            [](const std::string& type, int64_t rows, int64_t cols, int quantize_bits, bool split) {
                return PackedMatrix::packed_bytes(weight_type_from_name(type), rows, cols, quantize_bits, split);
            },
            "type"_a, "rows"_a, "cols"_a, "quantize_bits"_a = 0, "split"_a = false, "Bytes that packing will allocate.")
        .def_prop_ro("rows", &PackedMatrix::rows)
        .def_prop_ro("cols", &PackedMatrix::cols)
        .def_prop_ro("bytes", &PackedMatrix::bytes)
        .def_prop_ro("float_weights", &PackedMatrix::float_weights)
        .def_prop_ro("format", [](const PackedMatrix& w) { return std::string(w.format_name()); })
        .def("decode", &decode, "rows"_a, "Rows of the matrix as float32 [len(rows), cols].")
        .def("screen", &screen, "x"_a, "isa"_a = "", "refine"_a = false,
             "Upper bounds of the products with x [rows, cols] for each 16 rows of a split matrix: float32 [rows, "
             "groups].")
        .def("matmul", &matmul, "x"_a, "isa"_a = "", "threads"_a = 1,
             "x [rows, cols] float32 times the matrix: float32 [rows, matrix rows].");
    m.def("decode_rows", &decode_rows, "type"_a, "cols"_a, "data"_a,
          "Rows in a file's encoding as float32 [rows, cols], by the scalar decoder.");
    m.def("quantize_activations", &quantize_activations, "x"_a, "isa"_a = "",
          "(int8 codes [rows, cols], float32 scales [rows, cols / 32], int16 sums [rows, cols / 16]), then the quads "
          "that "
          "are carried twice: (int8 codes [rows, quads, 4], float32 scales [rows, quads], int32 first columns).");
    m.def(
        "available_isas",
        [] {
            const IsaList list = available_isas();
            return std::vector<std::string>(list.names, list.names + list.count);
        },
        "Instruction sets that this machine can run, best first.");
}

}  // namespace lpx
