// What a decoder is, in numbers: the native side of lpx.model.config.ModelConfig, where each field is explained.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/kv_layout.h"

namespace lpx {

enum class GateActivation : uint8_t { Silu, GeluTanh };

struct RotaryConfig {
    std::vector<double> inv_freq;
    double attention_factor = 1.0;
};

struct LayerConfig {
    int64_t window = 0;  // 0: all
    int64_t rotary = 0;  // index into DecoderConfig::rotaries
};

struct DecoderConfig {
    int64_t hidden_size = 0;
    int64_t intermediate_size = 0;
    int64_t num_heads = 0;
    int64_t num_kv_heads = 0;
    int64_t head_dim = 0;
    int64_t vocab_size = 0;
    float norm_eps = 0.0f;
    GateActivation activation = GateActivation::Silu;
    float embedding_scale = 1.0f;
    float attention_scale = 0.0f;
    float attention_softcap = 0.0f;
    float logit_softcap = 0.0f;
    bool tied_head = false;
    bool split_head = false;  // a head of Q8_0 is laid out for screening, see PackedMatrix::split
    std::vector<RotaryConfig> rotaries;
    std::vector<LayerConfig> layers;

    // Throws std::invalid_argument for what the kernels cannot do.
    void check() const;

    int64_t query_size() const { return num_heads * head_dim; }
    int64_t kv_size() const { return num_kv_heads * head_dim; }
    int64_t group() const { return num_heads / num_kv_heads; }
};

// What is allocated once, when a decoder is made.
struct DecoderLimits {
    int64_t max_rows = 0;       // token rows of one step
    int64_t max_model_len = 0;  // positions
    int64_t kv_blocks = 0;
    KvTypes kv_types;
};

}  // namespace lpx
