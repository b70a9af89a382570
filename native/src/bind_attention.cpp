// Python surface of the KV cache and of attention over one KV head, for tests.
#include "bind_attention.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "aligned_buffer.h"
#include "bindings.h"
#include "kernels/kernels.h"
#include "kv_cache.h"
#include "new_array.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lpx {

KvTypes kv_types(const std::string& key_type, const std::string& value_type) {
    return {kv_type_from_name(key_type), kv_type_from_name(value_type)};
}

nb::tuple stored_block(const KvCache& cache, int64_t block, int64_t layer, int64_t kv_head) {
    const size_t head_dim = static_cast<size_t>(cache.layout().head_dim);
    std::vector<float> keys(kKvBlock * head_dim), values(kKvBlock * head_dim);
    for (int slot = 0; slot < kKvBlock; ++slot)
        cache.read(block, layer, kv_head, slot, keys.data() + slot * head_dim, values.data() + slot * head_dim);
    const auto array = [&](const std::vector<float>& from) {
        return new_array<float>({static_cast<size_t>(kKvBlock), head_dim},
                                [&](float* out) { std::copy(from.begin(), from.end(), out); });
    };
    return nb::make_tuple(array(keys), array(values));
}

namespace {

using FloatRows = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// Keys and values of one KV head in blocks, and attention of query rows over them.
class KvHead {
  public:
    KvHead(const std::string& key_type, const std::string& value_type, int64_t head_dim, int64_t blocks,
           const std::string& isa)
        : kernels_(kernels_for(isa.c_str())),
          cache_(blocks, 1, 1, make_kv_layout(kv_types(key_type, value_type), head_dim)) {}

    // Tokens from `position` on.
    void store(const FloatRows& keys, const FloatRows& values, int64_t position, const std::vector<int32_t>& table) {
        check_rows(keys);
        check_rows(values);
        if (keys.shape(0) != values.shape(0)) throw std::invalid_argument("keys and values differ in number");
        const auto tokens = static_cast<int64_t>(keys.shape(0));
        check_table(table, position, position + tokens);
        for (int64_t t = 0; t < tokens; ++t)
            kernels_.store_kv({.key = keys.data() + t * layout().head_dim,
                               .value = values.data() + t * layout().head_dim,
                               .layout = &layout(),
                               .block = cache_.at(0, 0) + table[(position + t) / kKvBlock] * cache_.block_pitch(),
                               .slot = static_cast<int>((position + t) % kKvBlock)});
    }

    nb::tuple block(int64_t index) const {
        if (index < 0 || index >= cache_.blocks()) throw std::invalid_argument("no such KV block");
        return stored_block(cache_, index, 0, 0);
    }

    // Row r belongs to position first_position + r / group. All rows are one tile.
    nb::object attend(const FloatRows& query, int group, int64_t first_position, const std::vector<int32_t>& table,
                      int64_t window, float softcap) const {
        check_rows(query);
        const auto rows = static_cast<int64_t>(query.shape(0));
        if (rows < 1 || group < 1 || rows % group != 0) throw std::invalid_argument("rows are no whole groups");
        const int64_t end = first_position + rows / group, head_dim = layout().head_dim, padded = layout().padded;
        check_table(table, first_position, end);
        AlignedBuffer<float> prepared(rows * padded), scores(rows * (kKvBlock + 1)), scales(rows * layout().groups),
            sums(rows * layout().groups);
        AlignedBuffer<int16_t> codes(rows * padded);
        for (int64_t r = 0; r < rows; ++r)
            std::copy_n(query.data() + r * head_dim, head_dim, prepared.data() + r * padded);
        AlignedBuffer<float> part[3] = {AlignedBuffer<float>(rows), AlignedBuffer<float>(rows),
                                        AlignedBuffer<float>(rows * padded)};
        AlignedBuffer<float> total[3] = {AlignedBuffer<float>(rows), AlignedBuffer<float>(rows),
                                         AlignedBuffer<float>(rows * padded)};
        AttentionTask task{.query = prepared.data(),
                           .rows = static_cast<int>(rows),
                           .group = group,
                           .first_position = first_position,
                           .begin = 0,
                           .end = 0,
                           .window = window,
                           .layout = &layout(),
                           .softcap = softcap,
                           .cache = cache_.at(0, 0),
                           .block_pitch = cache_.block_pitch(),
                           .block_table = table.data(),
                           .upcoming = {cache_.at(0, 0), cache_.at(0, 0)},
                           .store_kv = kernels_.store_kv,
                           .writes = nullptr,
                           .write_count = 0,
                           .write_position = 0,
                           .max = part[0].data(),
                           .sum = part[1].data(),
                           .weighted = part[2].data(),
                           .scratch = scores.data(),
                           .coded = {.codes = codes.data(), .scales = scales.data(), .sums = sums.data()}};
        if (has_codes(layout().types.key)) kernels_.code_queries(task);
        const int64_t lowest = window > 0 ? std::max<int64_t>(0, first_position - window + 1) : 0;
        const int64_t first_split = lowest / kSplitTokens;
        for (int64_t split = first_split; split * kSplitTokens < end; ++split) {
            task.begin = split * kSplitTokens;
            task.end = task.begin + kSplitTokens;
            kernels_.attend(task);
            kernels_.merge_split({.rows = task.rows,
                                  .head_dim = padded,
                                  .first = split == first_split,
                                  .max = part[0].data(),
                                  .sum = part[1].data(),
                                  .weighted = part[2].data(),
                                  .total_max = total[0].data(),
                                  .total_sum = total[1].data(),
                                  .total_weighted = total[2].data()});
        }
        return new_array<float>({query.shape(0), query.shape(1)}, [&](float* out) {
            for (int64_t r = 0; r < rows; ++r)
                for (int64_t d = 0; d < head_dim; ++d) *out++ = total[2][r * padded + d] / total[1][r];
        });
    }

  private:
    const KvLayout& layout() const { return cache_.layout(); }
    void check_rows(const FloatRows& rows) const {
        if (static_cast<int64_t>(rows.shape(1)) != layout().head_dim)
            throw std::invalid_argument("the head has " + std::to_string(layout().head_dim) + " dimensions, not " +
                                        std::to_string(rows.shape(1)));
    }
    void check_table(const std::vector<int32_t>& table, int64_t begin, int64_t end) const {
        if (begin < 0 || std::ssize(table) * kKvBlock < end)
            throw std::invalid_argument("the block table does not reach position " + std::to_string(end - 1));
        for (const int32_t block : table)
            if (block < 0 || block >= cache_.blocks()) throw std::invalid_argument("no such KV block");
    }

    const KernelTable& kernels_;
    KvCache cache_;
};

}  // namespace

void bind_attention(nb::module_& m) {
    m.attr("KV_BLOCK_SIZE") = kKvBlock;
    m.attr("SPLIT_TOKENS") = kSplitTokens;

    nb::class_<KvHead>(m, "KvHead", "One KV head of a cache, to try kernels on.")
        .def(nb::init<const std::string&, const std::string&, int64_t, int64_t, const std::string&>(), "key_type"_a,
             "value_type"_a, "head_dim"_a, "blocks"_a, "isa"_a = "")
        .def("store", &KvHead::store, "keys"_a, "values"_a, "position"_a, "block_table"_a,
             "Keep keys and values [tokens, head_dim] of the positions from `position` on.")
        .def("block", &KvHead::block, "index"_a,
             "(keys, values) as they are kept: float32 [KV_BLOCK_SIZE, head_dim] each.")
        .def("attend", &KvHead::attend, "query"_a, "group"_a, "first_position"_a, "block_table"_a, "window"_a = 0,
             "softcap"_a = 0.0f, "Attention of [tokens * group, head_dim] scaled queries: float32 of the same shape.");
}

}  // namespace lpx
