// What happens to the logits of a step: sampling, log-probabilities and prompt scores, row by row.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/kernels.h"
#include "sampler.h"
#include "step_input.h"

namespace lpx {

struct SamplingInput {
    // Per row of StepInput::logit_rows:
    std::span<const int32_t> sampling;   // index of its settings; -1: nothing is sampled
    std::span<const int32_t> drafted;    // how many drafted ids count as output before this row
    std::span<const int64_t> positions;  // of the token to sample
    std::span<const int32_t> targets;    // id to score; -1: the sampled one, if log-probabilities are wanted
    std::span<const int32_t> top;        // how many likeliest ids to report; -1: no log-probabilities
    std::span<const int32_t> mask;       // index of its mask; -1: every id is allowed. Empty: no row has one

    // Per settings:
    static constexpr int kNumbers = 6;   // temperature, top_p, min_p, repetition, presence, frequency penalty
    std::span<const float> numbers;      // [settings][kNumbers]
    std::span<const int32_t> top_k;      // [settings]
    std::span<const uint64_t> seeds;     // [settings]
    static constexpr int kIdLists = 5;   // biased, banned, prompt, output, drafted
    std::span<const int32_t> ids;        // list after list, settings after settings
    std::span<const int32_t> ids_begin;  // [settings * kIdLists + 1] into ids
    std::span<const float> bias_values;  // of the biased ids of all settings in turn

    std::span<const uint32_t> masks;  // [masks][mask_words]: see SampleSettings::allowed
    int64_t mask_words = 0;

    int64_t rows() const { return std::ssize(sampling); }
    int64_t settings() const { return std::ssize(seeds); }
};

// Throws std::invalid_argument for sizes that do not match, ids outside the vocabulary and numbers that make no sense.
void check(const SamplingInput& input, int64_t rows, int64_t vocab);

// Whether only some ids are allowed in a row.
bool is_masked(const SamplingInput& input, int64_t row);

// Whether a row's settings look back at ids of prompt or output.
bool has_history(const SamplingInput& input, int64_t row);

class SamplingSink final : public LogitSink {
  public:
    // `scratch`: one per thread. The input is checked.
    SamplingSink(const KernelTable& kernels, const SamplingInput& input, std::span<SamplerScratch> scratch);

    void take(int64_t row, std::span<float> logits, int thread) noexcept override;
    bool wants_largest_alone(int64_t row) const noexcept override;
    void take_largest(int64_t row, int32_t id) noexcept override { sampled[row] = id; }

    std::vector<uint8_t> finite;     // [rows]: 0 when the row had NaN or infinite logits, and no result
    std::vector<int32_t> sampled;    // [rows], -1 where nothing was sampled
    std::vector<TokenScore> scores;  // [rows], id -1 where nothing was scored
    std::vector<TokenScore> top;     // [rows][most_top]
    int64_t most_top = 0;

  private:
    SampleSettings settings_of(int64_t row) const;

    const KernelTable& kernels_;
    const SamplingInput& input_;
    std::span<SamplerScratch> scratch_;
    std::vector<int64_t> bias_begin_;  // per settings, into bias_values
};

}  // namespace lpx
