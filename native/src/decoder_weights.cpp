#include "decoder_weights.h"

#include <algorithm>
#include <stdexcept>

namespace lpx {

DecoderWeights::DecoderWeights(const DecoderConfig& c) : tied_head_(c.tied_head), layers_(c.layers.size()) {
    add("embedding", embedding_, c.vocab_size, c.hidden_size);
    if (!c.tied_head) add("head", head_, c.vocab_size, c.hidden_size);
    add("final_norm", final_norm_, c.hidden_size, true);
    for (size_t i = 0; i < layers_.size(); ++i) {
        LayerWeights& w = layers_[i];
        const std::string prefix = "layers." + std::to_string(i) + ".";
        add(prefix + "attn_norm", w.attn_norm, c.hidden_size, true);
        add(prefix + "q", w.q, c.query_size(), c.hidden_size);
        add(prefix + "k", w.k, c.kv_size(), c.hidden_size);
        add(prefix + "v", w.v, c.kv_size(), c.hidden_size);
        add(prefix + "o", w.o, c.hidden_size, c.query_size());
        add(prefix + "q_bias", w.q_bias, c.query_size(), false);
        add(prefix + "k_bias", w.k_bias, c.kv_size(), false);
        add(prefix + "v_bias", w.v_bias, c.kv_size(), false);
        add(prefix + "o_bias", w.o_bias, c.hidden_size, false);
        add(prefix + "q_norm", w.q_norm, c.head_dim, false);
        add(prefix + "k_norm", w.k_norm, c.head_dim, false);
        add(prefix + "attn_post_norm", w.attn_post_norm, c.hidden_size, false);
        add(prefix + "ffn_norm", w.ffn_norm, c.hidden_size, true);
        add(prefix + "gate", w.gate, c.intermediate_size, c.hidden_size);
        add(prefix + "up", w.up, c.intermediate_size, c.hidden_size);
        add(prefix + "down", w.down, c.hidden_size, c.intermediate_size);
        add(prefix + "ffn_post_norm", w.ffn_post_norm, c.hidden_size, false);
    }
}

void DecoderWeights::add(const std::string& name, PackedMatrix& matrix, int64_t rows, int64_t cols) {
    slots_[name] = {.matrix = &matrix, .vector = nullptr, .rows = rows, .cols = cols, .required = true};
}

void DecoderWeights::add(const std::string& name, WeightVector& vector, int64_t size, bool required) {
    slots_[name] = {.matrix = nullptr, .vector = &vector, .rows = 1, .cols = size, .required = required};
}

void DecoderWeights::set(const std::string& name, WeightType type, int64_t rows, int64_t cols,
                         std::span<const std::byte> data, std::span<const int32_t> row_map, int quantize_bits,
                         ThreadPool* pool) {
    const auto found = slots_.find(name);
    if (found == slots_.end()) throw std::invalid_argument("tensor '" + name + "' has no place in this decoder");
    Slot& slot = found->second;
    if (slot.set) throw std::invalid_argument("tensor '" + name + "' was given twice");
    if (rows != slot.rows || cols != slot.cols)
        throw std::invalid_argument("tensor '" + name + "' is [" + std::to_string(rows) + ", " + std::to_string(cols) +
                                    "], not [" + std::to_string(slot.rows) + ", " + std::to_string(slot.cols) + "]");
    if (slot.matrix != nullptr) {
        *slot.matrix = quantize_bits == 0
                           ? PackedMatrix::pack(type, rows, cols, data, row_map, pool)
                           : PackedMatrix::quantize(quantize_bits, type, rows, cols, data, row_map, pool);
    } else {
        if (data.size() != weight_row_bytes(type, cols))
            throw std::invalid_argument("tensor '" + name + "' has " + std::to_string(data.size()) + " bytes, not " +
                                        std::to_string(weight_row_bytes(type, cols)));
        WeightVector values(cols);
        decode_row(type, data.data(), cols, values.data());
        // A row map of a vector (a bias whose matrix is re-ordered) names elements.
        slot.vector->resize(cols);
        for (int64_t i = 0; i < cols; ++i) {
            const int64_t source = row_map.empty() ? i : row_map[i];
            if (source < 0 || source >= cols) throw std::invalid_argument("tensor '" + name + "' has a bad row map");
            (*slot.vector)[i] = values[source];
        }
    }
    slot.set = true;
}

void DecoderWeights::check_complete() const {
    std::vector<std::string> missing;
    for (const auto& [name, slot] : slots_)
        if (slot.required && !slot.set) missing.push_back(name);
    if (missing.empty()) return;
    std::sort(missing.begin(), missing.end());
    std::string list;
    for (const std::string& name : missing) list += (list.empty() ? "" : ", ") + name;
    throw std::invalid_argument("missing tensors: " + list);
}

size_t DecoderWeights::bytes() const {
    size_t total = 0;
    for_each_matrix([&](const PackedMatrix& m) { total += m.bytes(); });
    for (const auto& [name, slot] : slots_)
        if (slot.vector != nullptr) total += slot.vector->size() * sizeof(float);
    return total;
}

size_t DecoderWeights::bytes_per_row_step() const {
    const size_t embedding_row = embedding_.empty() ? 0 : embedding_.bytes() / embedding_.rows();
    return bytes() + embedding_row - (tied_head_ ? 0 : embedding_.bytes());
}

}  // namespace lpx
