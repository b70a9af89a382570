// Drafts from text: what followed the last time when a text, or another one, went on like this.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "suffix_index.h"

namespace lpx {

// The latest texts of one owner, searched together. Bounded: when it is full, the older half goes.
class SharedTexts {
  public:
    SharedTexts(int64_t most_tokens, int64_t most_texts);

    // Of a text longer than half of the room the end is kept.
    void add(std::span<const int32_t> ids);
    const SuffixIndex& index() const { return index_; }
    int64_t texts() const { return std::ssize(starts_); }
    // Grows when texts go: places in the index are void then.
    int64_t generation() const { return generation_; }

  private:
    void make_room(int64_t size);

    int64_t most_tokens_, most_texts_;
    SuffixIndex index_;
    std::deque<int64_t> starts_;  // of each text in index_.tokens()
    int32_t next_separator_ = -1;
    int64_t generation_ = 0;
};

// Follows one text token by token, predicts the next, and counts how often it was right.
class SuffixMatcher {
  public:
    // Predictions are judged by the length of the match behind them, in classes: 1, 2, 3, 4, 5 to 7, 8 to 15, 16 to 31
    // and 32 or more tokens; first those from the text itself, then those from shared texts.
    static constexpr int kLengthClasses = 8;
    static constexpr int kClasses = 2 * kLengthClasses;
    using Counts = std::array<float, kClasses>;

    // Where a draft ends, besides at `most` ids.
    struct Bounds {
        int64_t most;
        float least_chance;  // of an id, should those before it be right
        float least_worth;   // the chance of an id and all before it
    };
    struct Draft {
        std::vector<int32_t> ids;
        std::vector<float> chances;  // of each id, should those before it be right
    };

    // `shared` may be null.
    explicit SuffixMatcher(std::shared_ptr<const SharedTexts> shared);

    // Goes on by `ids`; with `judge`, each is compared with its prediction.
    void extend(std::span<const int32_t> ids, bool judge);
    // Ids that followed the longest match. Their chances are what this text has shown for their classes, and what other
    // texts have: `common` [kClasses], which counts for `common_weight` judgements.
    Draft propose(const Bounds& bounds, std::span<const float> common, float common_weight);
    int64_t size() const { return std::ssize(own_.tokens()); }
    // Older judgements fade: each new one takes 1/16 of the weight of those of its class.
    const Counts& judged() const { return judged_; }
    const Counts& right() const { return right_; }

  private:
    void judge(const SuffixIndex::Match& match, std::span<const int32_t> tokens, int first_class, int32_t id);
    void renew_place();

    SuffixIndex own_;
    std::shared_ptr<const SharedTexts> shared_;
    SuffixIndex::Place place_;
    int64_t generation_ = -1;
    Counts judged_{}, right_{};
};

}  // namespace lpx
