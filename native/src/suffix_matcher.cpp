#include "suffix_matcher.h"

#include <algorithm>
#include <bit>
#include <stdexcept>

namespace lpx {

namespace {

constexpr float kFade = 15.0f / 16.0f;
// Tokens of a text that are followed again when the shared texts have changed: longer matches build up by themselves.
constexpr int64_t kFollowedAgain = 64;

int length_class(int64_t length) {
    if (length <= 4) return static_cast<int>(length) - 1;
    return std::min<int>(std::bit_width(static_cast<uint64_t>(length)) + 1, SuffixMatcher::kLengthClasses - 1);
}

}  // namespace

SharedTexts::SharedTexts(int64_t most_tokens, int64_t most_texts) : most_tokens_(most_tokens), most_texts_(most_texts) {
    if (most_tokens < 2 || most_tokens > INT32_MAX / 8 || most_texts < 1)
        throw std::invalid_argument("shared texts need room for at least two tokens and one text");
    index_.reserve(most_tokens);
}

void SharedTexts::add(std::span<const int32_t> ids) {
    if (ids.empty()) return;
    ids = ids.last(std::min<size_t>(ids.size(), most_tokens_ / 2));
    make_room(std::ssize(ids) + 1);
    starts_.push_back(std::ssize(index_.tokens()));
    for (const int32_t id : ids) index_.append(id);
    // Each separator comes once, so that no match and no draft goes beyond a text.
    index_.append(next_separator_--);
}

void SharedTexts::make_room(int64_t size) {
    const auto held = std::ssize(index_.tokens());
    if (held + size <= most_tokens_ && std::ssize(starts_) < most_texts_) return;
    int64_t first = held;
    size_t kept = starts_.size();
    while (kept > 0 && held - starts_[kept - 1] <= most_tokens_ / 2 &&
           std::ssize(starts_) - static_cast<int64_t>(kept) < most_texts_ / 2) {
        first = starts_[--kept];
    }
    const auto later = index_.tokens().subspan(first);
    const std::vector<int32_t> kept_ids(later.begin(), later.end());
    index_.clear();
    for (const int32_t id : kept_ids) index_.append(id);
    starts_.erase(starts_.begin(), starts_.begin() + static_cast<std::ptrdiff_t>(kept));
    for (int64_t& start : starts_) start -= first;
    ++generation_;
}

SuffixMatcher::SuffixMatcher(std::shared_ptr<const SharedTexts> shared) : shared_(std::move(shared)) {}

void SuffixMatcher::judge(const SuffixIndex::Match& match, std::span<const int32_t> tokens, int first_class,
                          int32_t id) {
    if (match.length == 0 || match.end >= std::ssize(tokens) || tokens[match.end] < 0) return;
    const int c = first_class + length_class(match.length);
    judged_[c] = judged_[c] * kFade + 1.0f;
    right_[c] = right_[c] * kFade + (tokens[match.end] == id ? 1.0f : 0.0f);
}

void SuffixMatcher::renew_place() {
    if (!shared_ || generation_ == shared_->generation()) return;
    generation_ = shared_->generation();
    place_ = {};
    const auto own = own_.tokens();
    for (const int32_t id : own.last(std::min<size_t>(own.size(), kFollowedAgain))) shared_->index().follow(place_, id);
}

void SuffixMatcher::extend(std::span<const int32_t> ids, bool judge_them) {
    renew_place();
    for (const int32_t id : ids) {
        if (id < 0) throw std::invalid_argument("token ids are not negative");
        if (judge_them) {
            judge(own_.repeated(), own_.tokens(), 0, id);
            if (shared_) judge(shared_->index().at(place_), shared_->index().tokens(), kLengthClasses, id);
        }
        own_.append(id);
        if (shared_) shared_->index().follow(place_, id);
    }
}

SuffixMatcher::Draft SuffixMatcher::propose(const Bounds& bounds, std::span<const float> common, float common_weight) {
    if (common.size() != kClasses) throw std::invalid_argument("there is one chance for each class");
    renew_place();
    SuffixIndex::Match match = own_.repeated();
    std::span<const int32_t> tokens = own_.tokens();
    int first_class = 0;
    if (shared_) {
        const SuffixIndex::Match other = shared_->index().at(place_);
        const auto texts = shared_->index().tokens();
        if (other.length > match.length && other.end < std::ssize(texts) && texts[other.end] >= 0) {
            match = other;
            tokens = texts;
            first_class = kLengthClasses;
        }
    }
    Draft draft;
    if (match.length == 0) return draft;
    float worth = 1.0f;
    for (int64_t i = 0; i < bounds.most; ++i) {
        const int64_t at = match.end + i;
        int32_t id;
        if (at < std::ssize(tokens))
            id = tokens[at];
        else if (first_class == 0)
            id = draft.ids[at - std::ssize(tokens)];  // the text repeats what is drafted here
        else
            break;
        if (id < 0) break;
        const int c = first_class + length_class(match.length + i);
        const float chance = (right_[c] + common_weight * common[c]) / (judged_[c] + common_weight);
        worth *= chance;
        if (chance < bounds.least_chance || worth < bounds.least_worth) break;
        draft.ids.push_back(id);
        draft.chances.push_back(chance);
    }
    return draft;
}

}  // namespace lpx
