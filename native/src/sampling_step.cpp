#include "sampling_step.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

namespace lpx {

namespace {

enum IdList { kBiased, kBanned, kPrompt, kOutput, kDrafted };

std::span<const int32_t> ids_of(const SamplingInput& input, int64_t settings, IdList list) {
    const int64_t i = settings * SamplingInput::kIdLists + list;
    return input.ids.subspan(input.ids_begin[i], input.ids_begin[i + 1] - input.ids_begin[i]);
}

}  // namespace

void check(const SamplingInput& in, int64_t rows, int64_t vocab) {
    const auto fail = [](const std::string& what) { throw std::invalid_argument(what); };
    const int64_t settings = in.settings();
    if (in.rows() != rows || std::ssize(in.drafted) != rows || std::ssize(in.positions) != rows ||
        std::ssize(in.targets) != rows || std::ssize(in.top) != rows)
        fail("sampling arrays do not have one entry per row of logits");
    if (std::ssize(in.numbers) != settings * SamplingInput::kNumbers || std::ssize(in.top_k) != settings ||
        std::ssize(in.ids_begin) != settings * SamplingInput::kIdLists + 1)
        fail("sampling settings do not match in number");
    if (in.ids_begin.front() != 0 || in.ids_begin.back() != std::ssize(in.ids) ||
        !std::is_sorted(in.ids_begin.begin(), in.ids_begin.end()))
        fail("offsets of sampling ids are out of order");
    for (const int32_t id : in.ids)
        if (id < 0 || id >= vocab) fail("id " + std::to_string(id) + " is outside the vocabulary");
    int64_t biased = 0;
    for (int64_t s = 0; s < settings; ++s) {
        biased += std::ssize(ids_of(in, s, kBiased));
        const auto numbers = in.numbers.subspan(s * SamplingInput::kNumbers, SamplingInput::kNumbers);
        for (const float number : numbers)
            if (!std::isfinite(number)) fail("a sampling setting is not finite");
        if (numbers[0] < 0.0f) fail("temperature is negative");
        if (numbers[3] <= 0.0f) fail("repetition penalty is not positive");
        if (in.top_k[s] < 0) fail("top_k is negative");
    }
    if (std::ssize(in.bias_values) != biased) fail("bias values do not match their ids");
    for (const float value : in.bias_values)
        if (std::isnan(value)) fail("a bias is NaN");
    for (int64_t row = 0; row < rows; ++row) {
        const int32_t s = in.sampling[row];
        if (s < -1 || s >= settings) fail("a row names settings that do not exist");
        if (in.targets[row] < -1 || in.targets[row] >= vocab) fail("a target to score is outside the vocabulary");
        if (in.drafted[row] < 0 ||
            (in.drafted[row] > 0 && (s < 0 || in.drafted[row] > std::ssize(ids_of(in, s, kDrafted)))))
            fail("a row counts more drafted ids than there are");
    }
    if (in.mask.empty()) return;
    if (std::ssize(in.mask) != rows || in.mask_words != (vocab + 31) / 32 || std::ssize(in.masks) % in.mask_words != 0)
        fail("masks do not match the rows or the vocabulary");
    const int64_t masks = std::ssize(in.masks) / in.mask_words;
    for (const int32_t m : in.mask)
        if (m < -1 || m >= masks) fail("a row names a mask that does not exist");
}

bool is_masked(const SamplingInput& input, int64_t row) {
    return !input.mask.empty() && input.mask[row] >= 0;
}

bool has_history(const SamplingInput& input, int64_t row) {
    const int32_t s = input.sampling[row];
    return !ids_of(input, s, kPrompt).empty() || !ids_of(input, s, kOutput).empty() ||
           !ids_of(input, s, kDrafted).empty();
}

SamplingSink::SamplingSink(const KernelTable& kernels, const SamplingInput& input, std::span<SamplerScratch> scratch)
    : finite(input.rows(), 1),
      sampled(input.rows(), -1),
      scores(input.rows()),
      kernels_(kernels),
      input_(input),
      scratch_(scratch) {
    for (const int32_t n : input.top) most_top = std::max<int64_t>(most_top, n);
    top.resize(input.rows() * most_top);
    int64_t begin = 0;
    for (int64_t s = 0; s < input.settings(); ++s) {
        bias_begin_.push_back(begin);
        begin += std::ssize(ids_of(input, s, kBiased));
    }
}

SampleSettings SamplingSink::settings_of(int64_t row) const {
    const int32_t s = input_.sampling[row];
    const auto numbers = input_.numbers.subspan(s * SamplingInput::kNumbers, SamplingInput::kNumbers);
    const auto biased = ids_of(input_, s, kBiased);
    return {.temperature = numbers[0],
            .top_k = input_.top_k[s],
            .top_p = numbers[1],
            .min_p = numbers[2],
            .seed = input_.seeds[s],
            .repetition_penalty = numbers[3],
            .presence_penalty = numbers[4],
            .frequency_penalty = numbers[5],
            .bias_ids = biased,
            .bias_values = input_.bias_values.subspan(bias_begin_[s], biased.size()),
            .banned_ids = ids_of(input_, s, kBanned),
            .prompt_ids = ids_of(input_, s, kPrompt),
            .output_ids = ids_of(input_, s, kOutput),
            .drafted_ids = ids_of(input_, s, kDrafted).first(input_.drafted[row]),
            .allowed = is_masked(input_, row)
                           ? input_.masks.subspan(input_.mask[row] * input_.mask_words, input_.mask_words)
                           : std::span<const uint32_t>()};
}

bool SamplingSink::wants_largest_alone(int64_t row) const noexcept {
    const int32_t s = input_.sampling[row];
    if (s < 0 || input_.top[row] >= 0 || is_masked(input_, row)) return false;
    const float temperature = input_.numbers[static_cast<size_t>(s) * SamplingInput::kNumbers];
    // Lists of ids change logits: bias, bans and penalties. Without history there are no penalties.
    return temperature == 0.0f &&
           input_.ids_begin[s * SamplingInput::kIdLists] == input_.ids_begin[(s + 1) * SamplingInput::kIdLists];
}

void SamplingSink::take(int64_t row, std::span<float> logits, int thread) noexcept {
    Sampler sampler(kernels_, logits, scratch_[thread]);
    if (!sampler.finite()) {
        finite[row] = 0;
        return;
    }
    const bool scored = input_.top[row] >= 0;
    if (input_.sampling[row] >= 0) sampled[row] = sampler.sample(settings_of(row), input_.positions[row], !scored);
    if (!scored) return;
    const int32_t id = input_.targets[row] >= 0 ? input_.targets[row] : sampled[row];
    if (id >= 0) scores[row] = sampler.score(id);
    sampler.top(input_.top[row], std::span(top).subspan(row * most_top, most_top));
}

}  // namespace lpx
