// Decode steps one after the other without a caller in between: the ids that one samples are the rows of the next.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "decoder.h"
#include "sampling_step.h"

namespace lpx {

struct FollowingSteps {
    int count = 0;                        // steps after the first
    std::span<const int32_t> stop_ids;    // sampling one of a sequence's ends them, sequence after sequence
    std::span<const int32_t> stop_begin;  // [sequences + 1] into stop_ids; unused when count is 0
};

// Throws std::invalid_argument when steps are to follow one that they cannot: each sequence must have one row and
// sample from it, without log-probabilities, masks and a history that grows, and its block table and the context must
// reach the positions of the steps.
void check(const FollowingSteps& following, const StepInput& step, const SamplingInput& sampling,
           int64_t max_model_len);

// Runs `step` and what follows it, up to the count, a stop id or logits that are not finite. Appends the sampled ids to
// `sampled`, step after step, and returns the sink of the last step. Everything is checked.
std::unique_ptr<SamplingSink> run_steps(Decoder& decoder, StepInput step, SamplingInput sampling,
                                        const FollowingSteps& following, std::span<SamplerScratch> scratch,
                                        std::vector<int32_t>& sampled);

}  // namespace lpx
