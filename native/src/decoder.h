// One generic decoder, driven by its config: from the token rows of a step to the logits of those that want them.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "aligned_buffer.h"
#include "attention_stage.h"
#include "decoder_config.h"
#include "decoder_weights.h"
#include "kernels/kernels.h"
#include "kv_cache.h"
#include "step_input.h"
#include "thread_pool.h"

namespace lpx {

enum class Phase : uint8_t { Begin, Norm, Qkv, Attention, Output, GateUp, Down, Head, Sample, Wait, Count };
inline constexpr std::array<const char*, static_cast<size_t>(Phase::Count)> kPhaseNames = {
    "begin", "norm", "qkv", "attention", "output", "gate_up", "down", "head", "sample", "wait"};

// Not thread-safe: one caller at a time.
class Decoder {
  public:
    // Throws std::invalid_argument for a config or an instruction set that cannot be used.
    Decoder(DecoderConfig config, DecoderLimits limits, int threads, const char* isa);
    ~Decoder();

    const DecoderConfig& config() const { return config_; }
    const DecoderLimits& limits() const { return limits_; }
    const KernelTable& kernels() const { return kernels_; }
    int threads() const { return pool_.size(); }
    ThreadPool& pool() { return pool_; }
    DecoderWeights& weights() { return weights_; }
    // To be called after the last weight: checks them and allocates KV cache and work buffers.
    void finish();

    // Runs one step: writes the KV rows, adds to the pools, then hands the logits to `sink`. Throws
    // std::invalid_argument for tokens, positions or blocks out of range, before anything is written.
    void step(const StepInput& input, LogitSink& sink);

    const KvCache* kv_cache() const { return cache_.get(); }  // null before finish()
    // Rows so far whose largest logit was found without computing all.
    int64_t screened_rows() const { return screened_rows_; }
    size_t kv_bytes() const { return cache_ ? cache_->bytes() : 0; }
    // Bytes of work buffers, a function of the numbers alone: known before anything is loaded.
    static size_t work_bytes(const DecoderConfig& config, const DecoderLimits& limits, int threads);

    // Nanoseconds that thread 0 spent per phase since profiling was switched on. Wait is what it spent at barriers and,
    // at the end of a step, until the other threads were done.
    void set_profiling(bool on);
    std::array<int64_t, static_cast<size_t>(Phase::Count)> profile() const { return profile_; }

  private:
    struct Quantized;
    struct Buffers;
    struct Worker;
    using Clock = std::chrono::steady_clock;

    void check(const StepInput& input) const;
    void add_time(Phase phase, Clock::duration time) {
        profile_[static_cast<size_t>(phase)] += std::chrono::nanoseconds(time).count();
    }

    DecoderConfig config_;
    DecoderLimits limits_;
    const KernelTable& kernels_;
    ThreadPool pool_;
    DecoderWeights weights_;
    std::unique_ptr<KvCache> cache_;
    std::unique_ptr<RotaryRows> rotary_;
    std::unique_ptr<AttentionStage> attention_;
    std::unique_ptr<Buffers> buffers_;
    // Steps that still compute all logits because a screen did not pay, and how many it will be the next time.
    int screen_pause_ = 0, next_screen_pause_;
    int64_t screened_rows_ = 0;
    bool profiling_ = false;
    std::array<int64_t, static_cast<size_t>(Phase::Count)> profile_{};
};

}  // namespace lpx
