#include "drafted_steps.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <stdexcept>

namespace lpx {

DraftChoice choose_draft(std::span<const float> chances, const DraftPolicy& policy) {
    const double plain_ms = policy.step_ms.front();
    const auto most = std::min(std::ssize(chances), std::ssize(policy.step_ms) - 1);
    double expected = 1.0, worth = 1.0, best = policy.least_gain / plain_ms;
    DraftChoice choice{0, 0.0};
    for (int64_t count = 1; count <= most; ++count) {
        worth *= chances[count - 1];
        expected += worth;
        const double ms = policy.step_ms[count], cost = ms / plain_ms - 1.0;
        if (cost > policy.balance + policy.allowance && (count > 1 || policy.balance < 0.0)) break;
        if (expected / ms > best) {
            best = expected / ms;
            choice = {count, cost};
        }
    }
    return choice;
}

void check(const Drafting& drafting, const StepInput& step, int64_t most_rows) {
    const auto fail = [](const char* what) { throw std::invalid_argument(what); };
    const std::vector<double>& ms = drafting.policy.step_ms;
    if (step.sequences() != 1 || step.rows() != 1) fail("drafts are verified between steps of one row alone");
    if (!drafting.matcher || drafting.matcher->size() != step.start_position[0] + 1)
        fail("the matcher does not know the text up to the row");
    if (drafting.common.size() != SuffixMatcher::kClasses) fail("there is one chance for each class");
    if (ms.empty() || std::ssize(ms) > most_rows || !std::all_of(ms.begin(), ms.end(), [](double t) { return t > 0; }))
        fail("steps of one and more rows, as many as the decoder takes, have a positive time");
}

std::unique_ptr<SamplingSink> run_drafted_steps(Decoder& decoder, StepInput step, SamplingInput sampling,
                                                const FollowingSteps& following, Drafting& drafting,
                                                std::span<SamplerScratch> scratch, std::vector<int32_t>& sampled,
                                                std::vector<DraftedStep>& steps) {
    using Clock = std::chrono::steady_clock;
    const auto ms_since = [](Clock::time_point t) {
        return std::chrono::duration<double, std::milli>(Clock::now() - t).count();
    };
    DraftPolicy& policy = drafting.policy;
    const auto most_rows = std::ssize(policy.step_ms);
    // What the rows of a step have in common, for as many as there can be.
    const std::vector<int32_t> settings(most_rows, sampling.sampling[0]), zeros(most_rows, 0), none(most_rows, -1);
    std::vector<int32_t> logit_rows(most_rows);
    std::iota(logit_rows.begin(), logit_rows.end(), 0);

    std::vector<int32_t> ids(step.token_ids.begin(), step.token_ids.end());
    int32_t position = step.start_position[0];
    int64_t left = following.count + 1;
    std::unique_ptr<SamplingSink> sink;
    const auto begin = Clock::now();
    for (;;) {
        const SuffixMatcher::Draft draft = drafting.matcher->propose(
            {.most = std::min(left, most_rows) - 1, .least_chance = 0.0f, .least_worth = drafting.least_worth},
            drafting.common, drafting.common_weight);
        const auto [drafted, cost] = choose_draft(draft.chances, policy);
        if (sink && ms_since(begin) + policy.step_ms[drafted] > drafting.most_ms) return sink;
        ids.insert(ids.end(), draft.ids.begin(), draft.ids.begin() + drafted);
        const int64_t rows = drafted + 1;
        const int32_t row_begin[] = {0, static_cast<int32_t>(rows)};
        std::vector<int64_t> positions(rows);
        std::iota(positions.begin(), positions.end(), int64_t{position} + 1);
        step.token_ids = ids;
        step.row_begin = row_begin;
        step.start_position = std::span(&position, 1);
        step.logit_rows = std::span(logit_rows).first(rows);
        sampling.sampling = std::span(settings).first(rows);
        sampling.drafted = std::span(zeros).first(rows);
        sampling.positions = positions;
        sampling.targets = sampling.top = std::span(none).first(rows);
        sampling.mask = {};

        const auto started = Clock::now();
        sink = std::make_unique<SamplingSink>(decoder.kernels(), sampling, scratch);
        decoder.step(step, *sink);
        if (std::count(sink->finite.begin(), sink->finite.end(), 0) > 0) return sink;
        int64_t accepted = 0;
        while (accepted < drafted && sink->sampled[accepted] == draft.ids[accepted]) ++accepted;
        std::span<const int32_t> held = std::span(sink->sampled).first(accepted + 1);
        const auto stop =
            std::find_first_of(held.begin(), held.end(), following.stop_ids.begin(), following.stop_ids.end());
        const bool stops = stop != held.end();
        if (stops) held = held.first(stop - held.begin() + 1);
        accepted = std::ssize(held) - 1;

        sampled.insert(sampled.end(), held.begin(), held.end());
        drafting.matcher->extend(held, true);
        steps.push_back({drafted, accepted, !draft.ids.empty(), ms_since(started)});
        policy.balance += static_cast<double>(accepted) - cost;
        policy.allowance += policy.allowance_share * static_cast<double>(accepted + 1);
        left -= accepted + 1;
        if (stops || left == 0) return sink;
        position += static_cast<int32_t>(accepted) + 1;
        ids.assign(1, held.back());
    }
}

}  // namespace lpx
