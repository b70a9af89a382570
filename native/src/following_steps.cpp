#include "following_steps.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace lpx {

void check(const FollowingSteps& following, const StepInput& step, const SamplingInput& sampling,
           int64_t max_model_len) {
    const auto fail = [](const std::string& what) { throw std::invalid_argument(what); };
    if (following.count < 0) fail("a negative number of steps cannot follow");
    if (following.count == 0) return;
    const int64_t sequences = step.sequences();
    if (step.pools() > 0) fail("no steps can follow where rows are pooled");
    if (step.rows() != sequences || std::ssize(step.logit_rows) != sequences)
        fail("steps can follow only where each sequence has one row and samples from it");
    for (int64_t i = 0; i < sequences; ++i)
        if (step.logit_rows[i] != i || sampling.sampling[i] < 0 || sampling.top[i] >= 0 || has_history(sampling, i) ||
            is_masked(sampling, i))
            fail("steps can follow only where every row samples, without log-probabilities, penalties and masks");
    if (std::ssize(step.table_begin) != sequences + 1) fail("offsets of block tables do not match the sequences");
    for (int64_t i = 0; i < sequences; ++i) {
        const int64_t end = int64_t{step.start_position[i]} + 1 + following.count;
        const int64_t table = int64_t{step.table_begin[i + 1]} - step.table_begin[i];
        if (end > max_model_len || table * kKvBlock < end)
            fail("the block table or the context does not reach position " + std::to_string(end - 1));
    }
    if (std::ssize(following.stop_begin) != sequences + 1 || following.stop_begin.front() != 0 ||
        following.stop_begin.back() != std::ssize(following.stop_ids) ||
        !std::is_sorted(following.stop_begin.begin(), following.stop_begin.end()))
        fail("offsets of stop ids are out of order");
}

std::unique_ptr<SamplingSink> run_steps(Decoder& decoder, StepInput step, SamplingInput sampling,
                                        const FollowingSteps& following, std::span<SamplerScratch> scratch,
                                        std::vector<int32_t>& sampled) {
    std::vector<int32_t> starts(step.start_position.begin(), step.start_position.end());
    std::vector<int64_t> positions(sampling.positions.begin(), sampling.positions.end());
    std::unique_ptr<SamplingSink> sink, previous;
    for (int i = 0;; ++i) {
        sink = std::make_unique<SamplingSink>(decoder.kernels(), sampling, scratch);
        decoder.step(step, *sink);
        sampled.insert(sampled.end(), sink->sampled.begin(), sink->sampled.end());
        if (i == following.count || std::count(sink->finite.begin(), sink->finite.end(), 0) > 0) return sink;
        for (int64_t s = 0; s < step.sequences(); ++s) {
            const auto stops = following.stop_ids.subspan(following.stop_begin[s],
                                                          following.stop_begin[s + 1] - following.stop_begin[s]);
            if (std::find(stops.begin(), stops.end(), sink->sampled[s]) != stops.end()) return sink;
            ++starts[s];
            ++positions[s];
        }
        previous = std::move(sink);  // its ids are the rows of the next step
        step.token_ids = previous->sampled;
        step.start_position = starts;
        sampling.positions = positions;
    }
}

}  // namespace lpx
