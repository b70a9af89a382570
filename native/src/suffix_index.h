// Where the end of a growing text stood before: the longest such end is found at no more than constant cost a token.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace lpx {

// A suffix automaton (Blumer et al., "The smallest automaton recognizing the subwords of a text", 1985) over token ids.
// Takes about 110 bytes a token.
class SuffixIndex {
  public:
    // An end of some text that stands in the indexed one, too.
    struct Match {
        int32_t length = 0;  // tokens; 0: no match
        int32_t end = 0;     // position after an occurrence: of the token that followed there
    };
    // How far another text has been followed: to be handed to `follow` token after token.
    struct Place {
        int32_t state = 0;
        int32_t length = 0;
    };

    SuffixIndex();

    // Takes the room for so many tokens at once, so that memory does not come and go while the text grows.
    void reserve(int64_t tokens);
    // Forgets the text and keeps the room.
    void clear();
    void append(int32_t id);
    std::span<const int32_t> tokens() const { return tokens_; }
    // The longest end of the indexed text that stands earlier in it; occurrences noted lately are preferred.
    Match repeated() const;
    void follow(Place& place, int32_t id) const;
    // The longest end of the text followed that stands in the indexed one.
    Match at(const Place& place) const;

  private:
    // All texts that end at the same positions; the longest has `length` tokens, the next shorter ones are at `link`.
    struct State {
        int32_t length, link;
        int32_t end;       // position after one occurrence
        int32_t followed;  // first of its edges; -1: none
    };
    struct Edge {
        int32_t from, id, to;
        int32_t next;  // of the same state
    };

    int32_t add_state(int32_t length, int32_t link, int32_t end);
    Edge* find(int32_t from, int32_t id);
    const Edge* find(int32_t from, int32_t id) const { return const_cast<SuffixIndex*>(this)->find(from, id); }
    void add_edge(int32_t from, int32_t id, int32_t to);
    void grow_table();
    size_t slot(int32_t from, int32_t id) const;

    std::vector<int32_t> tokens_;
    std::vector<State> states_;
    std::vector<Edge> edges_;
    std::vector<int32_t> table_;  // hash table of indices into edges_; -1: free
    int32_t last_ = 0;            // state of the whole text
};

}  // namespace lpx
