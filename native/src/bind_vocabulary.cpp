// Vocabularies hold hundreds of thousands of strings: the loops over them that Python would be slow at.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings.h"
#include "piece_merges.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lpx {
namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// `count` strings of GGUF from `pos` on, each after its length in 8 bytes, and where they end. Stops before the first
// that is not UTF-8 or reaches beyond the data.
nb::tuple read_strings(const Bytes& data, uint64_t pos, uint64_t count) {
    const auto* const begin = reinterpret_cast<const char*>(data.data());
    const uint64_t size = data.size();
    nb::list strings;
    for (uint64_t i = 0; i < count && pos <= size && size - pos >= 8; ++i) {
        uint64_t length;
        std::memcpy(&length, begin + pos, 8);
        if (length > size - pos - 8) break;
        PyObject* const text = PyUnicode_DecodeUTF8(begin + pos + 8, static_cast<Py_ssize_t>(length), nullptr);
        if (text == nullptr) {
            PyErr_Clear();
            break;
        }
        strings.append(nb::steal(text));
        pos += 8 + length;
    }
    return nb::make_tuple(strings, pos);
}

// All strings after each other as UTF-8, and where each one starts and the last ends.
nb::tuple join_strings(const nb::list& strings) {
    const size_t count = nb::len(strings);
    auto starts = std::make_unique<uint32_t[]>(count + 1);
    std::string joined;
    for (size_t i = 0; i < count; ++i) {
        starts[i] = static_cast<uint32_t>(joined.size());
        const nb::object encoded = nb::steal(PyUnicode_AsUTF8String(nb::handle(strings[i]).ptr()));
        if (!encoded.is_valid()) nb::raise_python_error();
        joined.append(PyBytes_AS_STRING(encoded.ptr()), static_cast<size_t>(PyBytes_GET_SIZE(encoded.ptr())));
        if (joined.size() > UINT32_MAX) throw std::invalid_argument("the strings take more than 4 GiB");
    }
    starts[count] = static_cast<uint32_t>(joined.size());
    uint32_t* const p = starts.release();
    nb::capsule owner(p, [](void* q) noexcept { delete[] static_cast<uint32_t*>(q); });
    return nb::make_tuple(nb::bytes(joined.data(), joined.size()),
                          nb::ndarray<nb::numpy, uint32_t>(p, {count + 1}, owner));
}

// The token (as it stands in `tokens`) that characters [start, end) of `line` spell; null when it is not in `vocab`.
PyObject* known_token(PyObject* line, Py_ssize_t start, Py_ssize_t end, PyObject* vocab, PyObject* tokens) {
    const nb::object text = nb::steal(PyUnicode_Substring(line, start, end));
    if (!text.is_valid()) nb::raise_python_error();
    PyObject* const id = PyDict_GetItemWithError(vocab, text.ptr());
    if (id == nullptr) {
        if (PyErr_Occurred()) nb::raise_python_error();
        return nullptr;
    }
    PyObject* const token = PyList_GetItem(tokens, PyLong_AsSsize_t(id));
    if (token == nullptr) nb::raise_python_error();
    return token;
}

// (left, right) of every line "left right". Stops before the first that is anything but two tokens of `vocab` (text ->
// position in `tokens`) that join to a third.
nb::list split_merges(const nb::list& lines, const nb::dict& vocab, const nb::list& tokens) {
    nb::list pairs;
    for (const nb::handle line : lines) {
        if (!PyUnicode_Check(line.ptr())) break;
        const Py_ssize_t length = PyUnicode_GetLength(line.ptr());
        const Py_ssize_t space = PyUnicode_FindChar(line.ptr(), ' ', 0, length, 1);
        if (space <= 0 || PyUnicode_FindChar(line.ptr(), ' ', space + 1, length, 1) >= 0) break;
        PyObject* const left = known_token(line.ptr(), 0, space, vocab.ptr(), tokens.ptr());
        PyObject* const right = known_token(line.ptr(), space + 1, length, vocab.ptr(), tokens.ptr());
        if (left == nullptr || right == nullptr) break;
        const nb::object joined = nb::steal(PyUnicode_Concat(left, right));
        if (!joined.is_valid()) nb::raise_python_error();
        const int known = PyDict_Contains(vocab.ptr(), joined.ptr());
        if (known < 0) nb::raise_python_error();
        if (known == 0) break;
        pairs.append(nb::steal(PyTuple_Pack(2, left, right)));
    }
    return pairs;
}

// (left, right) of the merges of SentencePiece pieces, which come by falling score.
nb::list merge_pieces(const nb::list& pieces) {
    std::vector<std::string_view> texts;
    for (const nb::handle piece : pieces) {
        Py_ssize_t size = 0;
        const char* const text = PyUnicode_AsUTF8AndSize(piece.ptr(), &size);
        if (text == nullptr) nb::raise_python_error();
        texts.emplace_back(text, static_cast<size_t>(size));
    }
    std::vector<std::pair<uint32_t, uint32_t>> merges;
    {
        const nb::gil_scoped_release unlocked;
        merges = piece_merges(texts);
    }
    nb::list pairs;
    for (const auto& [left, right] : merges) pairs.append(nb::make_tuple(pieces[left], pieces[right]));
    return pairs;
}

}  // namespace

void bind_vocabulary(nb::module_& m) {
    m.def("read_strings", &read_strings, "data"_a, "pos"_a, "count"_a);
    m.def("merge_pieces", &merge_pieces, "pieces"_a);
    m.def("join_strings", &join_strings, "strings"_a);
    m.def("split_merges", &split_merges, "lines"_a, "vocab"_a, "tokens"_a);
}

}  // namespace lpx
