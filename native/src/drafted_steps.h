// Decode steps of one sequence, one after the other without a caller in between, that verify drafts from its text.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "following_steps.h"
#include "suffix_matcher.h"

namespace lpx {

// How many tokens are worth their rows. What drafts bring and cost is counted in tokens: those that came beside the
// sampled ones, and those that would have come in the time.
struct DraftPolicy {
    std::vector<double> step_ms;  // of a step of 1, 2, ... rows, one row for each drafted token beside the first
    double least_gain;            // times the speed without drafts
    double balance;               // what drafts have brought the sequence, less what they have cost it
    double allowance;             // what they may cost it beyond that,
    double allowance_share;       // and more with every token
};

struct DraftChoice {
    int64_t count;  // of drafted tokens
    double cost;
};

// The draft with the most expected tokens for the time; `chances` are those of each token, should those before it be
// right. It may not cost more than balance and allowance, but for one token while nothing is lost yet.
DraftChoice choose_draft(std::span<const float> chances, const DraftPolicy& policy);

struct Drafting {
    std::shared_ptr<SuffixMatcher> matcher;  // knows the text up to the first row
    std::vector<float> common;               // see SuffixMatcher::propose
    float common_weight;
    float least_worth;  // the chance of a token and all before it
    DraftPolicy policy;
    double most_ms;  // no step begins that is expected to end later
};

struct DraftedStep {
    int64_t drafted, accepted;
    bool found;  // something could be drafted
    double ms;
};

// Throws std::invalid_argument when drafts cannot be verified in `step` and what follows it, which is checked.
void check(const Drafting& drafting, const StepInput& step, int64_t most_rows);

// Runs `step` and what follows it, up to following.count tokens more, the time, a stop id or logits that are not
// finite. Appends the tokens to `sampled` and what became of drafts to `steps`, takes the tokens into the matcher, and
// keeps the balance. Returns the sink of the last step.
std::unique_ptr<SamplingSink> run_drafted_steps(Decoder& decoder, StepInput step, SamplingInput sampling,
                                                const FollowingSteps& following, Drafting& drafting,
                                                std::span<SamplerScratch> scratch, std::vector<int32_t>& sampled,
                                                std::vector<DraftedStep>& steps);

}  // namespace lpx
