// The weights of a decoder under their canonical names (lpx.model.config.WeightTensor).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "decoder_config.h"
#include "packed_matrix.h"

namespace lpx {

class ThreadPool;

using WeightVector = std::vector<float>;  // empty: the model has none

struct LayerWeights {
    WeightVector attn_norm, q_norm, k_norm, attn_post_norm, ffn_norm, ffn_post_norm;
    WeightVector q_bias, k_bias, v_bias, o_bias;
    PackedMatrix q, k, v, o, gate, up, down;
};

struct NamedSource {
    std::string name;
    MatrixSource source;
};

class DecoderWeights {
  public:
    explicit DecoderWeights(const DecoderConfig& config);
    DecoderWeights(const DecoderWeights&) = delete;
    DecoderWeights& operator=(const DecoderWeights&) = delete;

    // Packs tensors; vectors have one row. Throws std::invalid_argument for unknown names, wrong shapes and tensors
    // set twice; the decoder is of no use then.
    void set(std::span<const NamedSource> tensors, ThreadPool* pool);
    // Throws std::invalid_argument that lists required tensors that are missing.
    void check_complete() const;

    const PackedMatrix& embedding() const { return embedding_; }
    const PackedMatrix& head() const { return tied_head_ ? embedding_ : head_; }
    const WeightVector& final_norm() const { return final_norm_; }
    const std::vector<LayerWeights>& layers() const { return layers_; }

    size_t bytes() const;
    // Weight bytes that a step of one row reads: everything but the embedding, of which it reads one row.
    size_t bytes_per_row_step() const;
    // Calls f(matrix) for every matrix, the tied one once.
    template <class F>
    void for_each_matrix(F f) const {
        f(embedding_);
        if (!tied_head_) f(head_);
        for (const LayerWeights& w : layers_)
            for (const PackedMatrix* m : {&w.q, &w.k, &w.v, &w.o, &w.gate, &w.up, &w.down}) f(*m);
    }

  private:
    struct Slot {
        PackedMatrix* matrix;  // or
        WeightVector* vector;
        int64_t rows, cols;
        bool required;
        bool split = false;  // a matrix that is screened
        bool set = false;
    };
    Slot& slot_for(const NamedSource& tensor);
    void add(const std::string& name, PackedMatrix& matrix, int64_t rows, int64_t cols, bool split = false);
    void add(const std::string& name, WeightVector& vector, int64_t size, bool required);

    bool tied_head_;
    PackedMatrix embedding_, head_;
    WeightVector final_norm_;
    std::vector<LayerWeights> layers_;
    std::unordered_map<std::string, Slot> slots_;
};

}  // namespace lpx
