// From one row of logits to one token id and log-probabilities; every function here looks at its row alone (I1, I2).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/kernels.h"

namespace lpx {

// The meaning and the order of the steps are those of lpx.runtime.step.SamplerSettings.
struct SampleSettings {
    float temperature = 0.0f;  // 0: argmax
    int32_t top_k = 0;         // 0: off
    float top_p = 1.0f;
    float min_p = 0.0f;
    uint64_t seed = 0;
    float repetition_penalty = 1.0f;
    float presence_penalty = 0.0f;
    float frequency_penalty = 0.0f;
    std::span<const int32_t> bias_ids;
    std::span<const float> bias_values;
    std::span<const int32_t> banned_ids;
    std::span<const int32_t> prompt_ids;  // history for penalties
    std::span<const int32_t> output_ids;
    std::span<const int32_t> drafted_ids;  // follow output_ids: rows before this one that verify drafts
    // One bit for each id, 32 a word from the lowest on: only ids whose bit is set may come out. Empty: all may. When
    // bans would leave none of them, the bans do not hold.
    std::span<const uint32_t> allowed;
};

struct TokenScore {
    int32_t id = -1;
    float logprob = 0.0f;
    int32_t rank = 0;  // 1: the likeliest; equal logits rank by id
};

// Buffers of one thread, for rows of at most `vocab` logits.
class SamplerScratch {
  public:
    explicit SamplerScratch(int64_t vocab);
    static size_t bytes_for(int64_t vocab);

  private:
    friend class Sampler;
    struct Candidate {
        float value;
        int32_t id;
    };
    struct Change {
        int32_t id;
        float original;
    };
    std::vector<float> maxima_;  // see KernelTable::block_maxima
    std::vector<float> sorted_maxima_;
    std::vector<Candidate> candidates_;
    std::vector<int32_t> penalized_;    // ids with an entry in occurrences_
    std::vector<int32_t> occurrences_;  // per id: 1 + how often in the output; 0 when neither there nor in the prompt
    std::vector<Change> changes_;       // logits as they were before penalties, bias and bans, oldest first
    std::vector<float> unmasked_;       // the whole row before what is not allowed was taken out; empty: it was not
};

// One row, for as long as it takes to sample and score it. The logits are changed while sample() runs, and restored
// unless nothing follows.
class Sampler {
  public:
    Sampler(const KernelTable& kernels, std::span<float> logits, SamplerScratch& scratch);

    // False when a logit is NaN or +infinity: then nothing else may be called.
    bool finite() const { return finite_; }

    // The id for the token at `position`; ties go to the lowest id. Ids in `settings` must be inside the vocabulary,
    // and `allowed` must have a word for all of it. With `last`, nothing else is called for this row.
    int32_t sample(const SampleSettings& settings, int64_t position, bool last = false);

    // Log-softmax of the unmodified logits (float32). The lowest value is kLogprobFloor, never -infinity.
    TokenScore score(int32_t id);
    // The `count` likeliest, likeliest first; equal logits by id. Fewer when the vocabulary is smaller.
    void top(int count, std::span<TokenScore> out);

    static constexpr float kLogprobFloor = -9999.0f;

  private:
    using Candidate = SamplerScratch::Candidate;

    void find_maxima();
    void apply_changes(const SampleSettings& settings, bool last);
    void keep_allowed(std::span<const uint32_t> allowed, bool last);
    void change(int32_t id, float value);
    void restore();
    int32_t argmax() const;
    // A value that at least k logits reach, not far below the k-th largest.
    float reached_by(int64_t k);
    // Gathers the logits that are at least `threshold`, in ascending order of id.
    void collect(float threshold);
    void keep_top_k(int64_t k);
    void keep_top_p(const SampleSettings& settings, bool everything);
    int32_t choose_candidate(const SampleSettings& settings, uint64_t key) const;
    int32_t choose_any(const SampleSettings& settings, uint64_t key) const;
    float log_sum_exp();

    const KernelTable& kernels_;
    std::span<float> logits_;
    SamplerScratch& scratch_;
    bool finite_ = true;
    float highest_ = 0.0f;
    bool has_log_sum_exp_ = false;
    float log_sum_exp_ = 0.0f;
};

// Standard Gumbel noise of token `id` at `position`: a pure function of its arguments.
double gumbel_noise(uint64_t seed, int64_t position, int32_t id);

}  // namespace lpx
