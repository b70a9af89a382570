#include "sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>

namespace lpx {

namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();
// What a mask takes out has the lowest finite value, which is also the maximum of a block without anything: infinities
// would make the pass over a row look for NaN.
constexpr float kLowest = std::numeric_limits<float>::lowest();

// The finalizer of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).
uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

constexpr uint64_t kGolden = 0x9e3779b97f4a7c15u;

// One SplitMix64 stream per (seed, position); token id i takes its i-th number.
uint64_t noise_key(uint64_t seed, int64_t position) {
    return mix(mix(seed + kGolden) + static_cast<uint64_t>(position) * kGolden);
}

// Uniform in (0, 1), both ends excluded: an odd multiple of 2^-53.
double uniform(uint64_t key, int32_t id) {
    const uint64_t bits = mix(key + (static_cast<uint64_t>(id) + 1) * kGolden);
    return (static_cast<double>(bits >> 12) + 0.5) * 0x1p-52;
}

double gumbel(double u) {
    return -std::log(-std::log(u));
}

// What `u` must reach for gumbel(u) >= noise, a little less so that rounding cannot rule out a winner.
double least_uniform(double noise) {
    return std::exp(-std::exp(-(noise - 1e-6))) - 1e-12;
}

bool is_allowed(std::span<const uint32_t> allowed, int32_t id) {
    return allowed[id / 32] >> (id % 32) & 1;
}

// Whether an id is allowed that is not among `banned`, which holds no id twice.
bool leaves_any(std::span<const uint32_t> allowed, std::span<const int32_t> banned) {
    int64_t left = 0;
    for (const uint32_t word : allowed) left += std::popcount(word);
    for (const int32_t id : banned) left -= is_allowed(allowed, id);
    return left > 0;
}

int32_t first_allowed(std::span<const uint32_t> allowed) {
    for (size_t word = 0; word < allowed.size(); ++word)
        if (allowed[word] != 0) return static_cast<int32_t>(word * 32) + std::countr_zero(allowed[word]);
    return 0;
}

template <class C>
bool likelier(const C& a, const C& b) {
    return a.value > b.value || (a.value == b.value && a.id < b.id);
}

}  // namespace

double gumbel_noise(uint64_t seed, int64_t position, int32_t id) {
    return gumbel(uniform(noise_key(seed, position), id));
}

SamplerScratch::SamplerScratch(int64_t vocab) {
    const int64_t blocks = (vocab + kMaximaBlock - 1) / kMaximaBlock;
    maxima_.resize(blocks);
    sorted_maxima_.reserve(blocks);
    candidates_.reserve(vocab);
    occurrences_.resize(vocab);
}

size_t SamplerScratch::bytes_for(int64_t vocab) {
    const int64_t blocks = (vocab + kMaximaBlock - 1) / kMaximaBlock;
    return blocks * 2 * sizeof(float) + vocab * (sizeof(Candidate) + sizeof(int32_t));
}

Sampler::Sampler(const KernelTable& kernels, std::span<float> logits, SamplerScratch& scratch)
    : kernels_(kernels), logits_(logits), scratch_(scratch) {
    scratch_.maxima_.resize((logits.size() + kMaximaBlock - 1) / kMaximaBlock);
    find_maxima();
}

void Sampler::find_maxima() {
    const bool comparable = kernels_.block_maxima(logits_.data(), std::ssize(logits_), scratch_.maxima_.data());
    highest_ = *std::max_element(scratch_.maxima_.begin(), scratch_.maxima_.end());
    finite_ = comparable && highest_ < std::numeric_limits<float>::infinity();
}

int32_t Sampler::sample(const SampleSettings& settings, int64_t position, bool last) {
    apply_changes(settings, last);
    int32_t id = 0;
    if (highest_ <= kLowest && !settings.allowed.empty()) {
        id = first_allowed(settings.allowed);
    } else if (settings.temperature <= 0.0f || !finite_ || highest_ <= kLowest) {
        id = argmax();  // a bias of +infinity, or everything banned, leaves no distribution
    } else {
        const uint64_t key = noise_key(settings.seed, position);
        float threshold = kNothing;
        bool everything = true;
        if (settings.min_p > 0.0f) {
            threshold = static_cast<float>(highest_ + static_cast<double>(settings.temperature) *
                                                          std::log(static_cast<double>(settings.min_p)));
            everything = false;
        }
        const bool has_top_k = settings.top_k > 0 && settings.top_k < std::ssize(logits_);
        if (has_top_k) {
            threshold = std::max(threshold, reached_by(settings.top_k));
            everything = false;
        }
        // What is banned or masked cannot win: it need not be looked at.
        if (!everything) collect(std::max(threshold, std::nextafter(kLowest, 0.0f)));
        if (has_top_k) keep_top_k(settings.top_k);
        if (settings.top_p < 1.0f) {
            keep_top_p(settings, everything);
            everything = false;
        }
        id = everything ? choose_any(settings, key) : choose_candidate(settings, key);
    }
    if (!last) restore();
    scratch_.changes_.clear();
    return id;
}

void Sampler::apply_changes(const SampleSettings& s, bool last) {
    if (s.repetition_penalty != 1.0f || s.presence_penalty != 0.0f || s.frequency_penalty != 0.0f) {
        auto& occurrences = scratch_.occurrences_;
        auto& penalized = scratch_.penalized_;
        const auto note = [&](std::span<const int32_t> ids, int32_t count) {
            for (const int32_t id : ids) {
                if (occurrences[id] == 0) {
                    occurrences[id] = 1;
                    penalized.push_back(id);
                }
                occurrences[id] += count;
            }
        };
        note(s.prompt_ids, 0);
        note(s.output_ids, 1);
        note(s.drafted_ids, 1);
        for (const int32_t id : penalized) {
            const auto count = static_cast<float>(occurrences[id] - 1);
            float value = logits_[id];
            value = value > 0.0f ? value / s.repetition_penalty : value * s.repetition_penalty;
            value -= s.frequency_penalty * count;
            if (count > 0) value -= s.presence_penalty;
            change(id, value);
            occurrences[id] = 0;
        }
        penalized.clear();
    }
    for (size_t i = 0; i < s.bias_ids.size(); ++i) change(s.bias_ids[i], logits_[s.bias_ids[i]] + s.bias_values[i]);
    if (s.allowed.empty() || leaves_any(s.allowed, s.banned_ids))
        for (const int32_t id : s.banned_ids) change(id, kNothing);
    scratch_.unmasked_.clear();
    if (!s.allowed.empty()) keep_allowed(s.allowed, last);
    if (!scratch_.changes_.empty() || !s.allowed.empty()) find_maxima();
}

// Takes out what is not allowed. Most words of a mask are full or empty.
void Sampler::keep_allowed(std::span<const uint32_t> allowed, bool last) {
    if (!last) scratch_.unmasked_.assign(logits_.begin(), logits_.end());
    const int64_t n = std::ssize(logits_);
    for (int64_t begin = 0; begin < n; begin += 32) {
        const uint32_t word = allowed[begin / 32];
        if (word == ~uint32_t{0}) continue;
        const int64_t end = std::min(n, begin + 32);
        if (word == 0) {
            std::fill(logits_.begin() + begin, logits_.begin() + end, kLowest);
            continue;
        }
        for (int64_t i = begin; i < end; ++i)
            if ((word >> (i - begin) & 1) == 0) logits_[i] = kLowest;
    }
}

void Sampler::change(int32_t id, float value) {
    scratch_.changes_.push_back({id, logits_[id]});
    logits_[id] = value;
}

void Sampler::restore() {
    auto& changes = scratch_.changes_;
    auto& unmasked = scratch_.unmasked_;
    if (changes.empty() && unmasked.empty()) return;
    if (!unmasked.empty()) std::copy(unmasked.begin(), unmasked.end(), logits_.begin());
    for (auto c = changes.rbegin(); c != changes.rend(); ++c) logits_[c->id] = c->original;
    changes.clear();
    find_maxima();
}

int32_t Sampler::argmax() const {
    const auto& maxima = scratch_.maxima_;
    const auto block = std::find(maxima.begin(), maxima.end(), highest_);
    // Not found: an infinite bias made a NaN, or everything is banned.
    if (block == maxima.end() || highest_ <= kLowest) return 0;
    const auto begin = logits_.begin() + (block - maxima.begin()) * kMaximaBlock;
    return static_cast<int32_t>(std::find(begin, logits_.end(), highest_) - logits_.begin());
}

float Sampler::reached_by(int64_t k) {
    if (k > std::ssize(scratch_.maxima_)) return kNothing;
    auto& sorted = scratch_.sorted_maxima_;
    sorted.assign(scratch_.maxima_.begin(), scratch_.maxima_.end());
    std::nth_element(sorted.begin(), sorted.begin() + (k - 1), sorted.end(), std::greater<>());
    return sorted[k - 1];
}

void Sampler::collect(float threshold) {
    auto& candidates = scratch_.candidates_;
    candidates.clear();
    const int64_t n = std::ssize(logits_);
    for (int64_t block = 0; block < std::ssize(scratch_.maxima_); ++block) {
        if (scratch_.maxima_[block] < threshold) continue;
        const int64_t end = std::min(n, (block + 1) * kMaximaBlock);
        for (int64_t i = block * kMaximaBlock; i < end; ++i)
            if (logits_[i] >= threshold) candidates.push_back({logits_[i], static_cast<int32_t>(i)});
    }
}

void Sampler::keep_top_k(int64_t k) {
    auto& candidates = scratch_.candidates_;
    if (k >= std::ssize(candidates)) return;
    std::nth_element(candidates.begin(), candidates.begin() + k, candidates.end(), likelier<Candidate>);
    candidates.resize(k);
}

// Keeps the likeliest until their mass reaches top_p of the mass of all that came through so far.
void Sampler::keep_top_p(const SampleSettings& settings, bool everything) {
    auto& candidates = scratch_.candidates_;
    const double scale = 1.0 / settings.temperature;
    const auto weight = [&](const Candidate& c) { return std::exp((static_cast<double>(c.value) - highest_) * scale); };
    double mass = 0.0;
    if (everything) {
        mass = kernels_.sum_exp(logits_.data(), highest_, static_cast<float>(scale), std::ssize(logits_));
    } else {
        for (const Candidate& c : candidates) mass += weight(c);
    }
    const double wanted = mass * settings.top_p;
    // Most of the mass is near the top: sort no more than is needed.
    for (const double depth : {5.0, 10.0, std::numeric_limits<double>::infinity()}) {
        if (everything) collect(static_cast<float>(highest_ - depth * settings.temperature));
        std::sort(candidates.begin(), candidates.end(), likelier<Candidate>);
        double sum = 0.0;
        size_t kept = 0;
        while (kept < candidates.size() && (kept == 0 || sum < wanted)) sum += weight(candidates[kept++]);
        if (sum >= wanted || !everything || candidates.size() == logits_.size()) {
            candidates.resize(kept);
            return;
        }
    }
}

int32_t Sampler::choose_candidate(const SampleSettings& settings, uint64_t key) const {
    double best = -std::numeric_limits<double>::infinity();
    int32_t best_id = -1;
    for (const Candidate& c : scratch_.candidates_) {
        if (c.value == kNothing) continue;  // banned
        const double value =
            (static_cast<double>(c.value) - highest_) / settings.temperature + gumbel(uniform(key, c.id));
        if (value > best || (value == best && c.id < best_id)) {
            best = value;
            best_id = c.id;
        }
    }
    return best_id;
}

// As choose_candidate over all ids, without the two logarithms for ids whose noise cannot lift them to the best so far.
int32_t Sampler::choose_any(const SampleSettings& settings, uint64_t key) const {
    const int64_t n = std::ssize(logits_);
    int32_t best_id = argmax();
    double best = gumbel(uniform(key, best_id));
    for (int64_t block = 0; block < std::ssize(scratch_.maxima_); ++block) {
        if (scratch_.maxima_[block] <= kLowest) continue;
        const double block_highest = (static_cast<double>(scratch_.maxima_[block]) - highest_) / settings.temperature;
        const double least = least_uniform(best - block_highest);
        if (least >= 1.0) continue;
        const int64_t end = std::min(n, (block + 1) * kMaximaBlock);
        for (int64_t i = block * kMaximaBlock; i < end; ++i) {
            const auto id = static_cast<int32_t>(i);
            const double u = uniform(key, id);
            if (u < least || logits_[i] <= kLowest) continue;
            const double value = (static_cast<double>(logits_[i]) - highest_) / settings.temperature + gumbel(u);
            if (value > best || (value == best && id < best_id)) {
                best = value;
                best_id = id;
            }
        }
    }
    return best_id;
}

float Sampler::log_sum_exp() {
    if (!has_log_sum_exp_) {
        const float sum = kernels_.sum_exp(logits_.data(), highest_, 1.0f, std::ssize(logits_));
        log_sum_exp_ = static_cast<float>(highest_ + std::log(static_cast<double>(sum)));
        has_log_sum_exp_ = true;
    }
    return log_sum_exp_;
}

TokenScore Sampler::score(int32_t id) {
    const float value = logits_[id];
    int32_t rank = 1;
    const int64_t n = std::ssize(logits_);
    for (int64_t block = 0; block < std::ssize(scratch_.maxima_); ++block) {
        if (scratch_.maxima_[block] < value) continue;
        const int64_t end = std::min(n, (block + 1) * kMaximaBlock);
        for (int64_t i = block * kMaximaBlock; i < end; ++i)
            rank += logits_[i] > value || (logits_[i] == value && i < id);
    }
    return {id, std::max(value - log_sum_exp(), kLogprobFloor), rank};
}

void Sampler::top(int count, std::span<TokenScore> out) {
    const int64_t k = std::min<int64_t>(count, std::ssize(logits_));
    if (k <= 0) return;
    collect(reached_by(k));
    keep_top_k(k);
    auto& candidates = scratch_.candidates_;
    std::sort(candidates.begin(), candidates.end(), likelier<Candidate>);
    for (int32_t i = 0; const Candidate& c : candidates) {
        out[i] = {c.id, std::max(c.value - log_sum_exp(), kLogprobFloor), i + 1};
        ++i;
    }
}

}  // namespace lpx
