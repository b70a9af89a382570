#include "decoder_weights.h"

#include <algorithm>
#include <stdexcept>

namespace lpx {

namespace {

void set_vector(const NamedSource& tensor, WeightVector& out) {
    const auto& [name, source] = tensor;
    const int64_t cols = source.cols;
    if (source.data.size() != weight_row_bytes(source.type, cols))
        throw std::invalid_argument("tensor '" + name + "' has " + std::to_string(source.data.size()) + " bytes, not " +
                                    std::to_string(weight_row_bytes(source.type, cols)));
    // A row map of a vector (a bias whose matrix is re-ordered) names elements.
    if (!source.row_map.empty() && std::ssize(source.row_map) != cols)
        throw std::invalid_argument("tensor '" + name + "' has a bad row map");
    WeightVector values(cols);
    decode_row(source.type, source.data.data(), cols, values.data());
    out.resize(cols);
    for (int64_t i = 0; i < cols; ++i) {
        const int64_t from = source.row_map.empty() ? i : source.row_map[i];
        if (from < 0 || from >= cols) throw std::invalid_argument("tensor '" + name + "' has a bad row map");
        out[i] = values[from];
    }
}

}  // namespace

DecoderWeights::DecoderWeights(const DecoderConfig& c) : tied_head_(c.tied_head), layers_(c.layers.size()) {
    add("embedding", embedding_, c.vocab_size, c.hidden_size, c.tied_head && c.split_head);
    if (!c.tied_head) add("head", head_, c.vocab_size, c.hidden_size, c.split_head);
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

void DecoderWeights::add(const std::string& name, PackedMatrix& matrix, int64_t rows, int64_t cols, bool split) {
    slots_[name] = {.matrix = &matrix, .vector = nullptr, .rows = rows, .cols = cols, .required = true, .split = split};
}

void DecoderWeights::add(const std::string& name, WeightVector& vector, int64_t size, bool required) {
    slots_[name] = {.matrix = nullptr, .vector = &vector, .rows = 1, .cols = size, .required = required};
}

DecoderWeights::Slot& DecoderWeights::slot_for(const NamedSource& tensor) {
    const auto& [name, source] = tensor;
    const auto found = slots_.find(name);
    if (found == slots_.end()) throw std::invalid_argument("tensor '" + name + "' has no place in this decoder");
    Slot& slot = found->second;
    if (slot.set) throw std::invalid_argument("tensor '" + name + "' was given twice");
    if (source.rows != slot.rows || source.cols != slot.cols)
        throw std::invalid_argument("tensor '" + name + "' is [" + std::to_string(source.rows) + ", " +
                                    std::to_string(source.cols) + "], not [" + std::to_string(slot.rows) + ", " +
                                    std::to_string(slot.cols) + "]");
    return slot;
}

void DecoderWeights::set(std::span<const NamedSource> tensors, ThreadPool* pool) {
    std::vector<MatrixPacking> matrices;
    std::vector<PackedMatrix*> places;
    for (const NamedSource& tensor : tensors) {
        Slot& slot = slot_for(tensor);
        if (slot.matrix != nullptr) {
            MatrixSource source = tensor.source;
            source.split = slot.split;
            matrices.emplace_back(source);
            places.push_back(slot.matrix);
        } else {
            set_vector(tensor, *slot.vector);
        }
        slot.set = true;
    }
    pack_all(matrices, pool);
    for (size_t i = 0; i < matrices.size(); ++i) *places[i] = matrices[i].take();
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
