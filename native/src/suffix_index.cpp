#include "suffix_index.h"

#include <algorithm>
#include <stdexcept>

namespace lpx {

namespace {

// Shorter ends that learn of a new occurrence: enough for what is matched next, and a bound on the work for a token.
constexpr int kNotedEnds = 8;
constexpr int32_t kMostTokens = int32_t{1} << 28;  // states and edges are counted in 32 bits

}  // namespace

SuffixIndex::SuffixIndex() : table_(64, -1) {
    add_state(0, -1, 0);
}

void SuffixIndex::reserve(int64_t tokens) {
    // Never more than two states and three edges a token.
    tokens_.reserve(tokens);
    states_.reserve(2 * tokens + 1);
    edges_.reserve(3 * tokens);
    while (std::ssize(table_) < 6 * tokens) grow_table();
}

void SuffixIndex::clear() {
    tokens_.clear();
    states_.clear();
    edges_.clear();
    std::ranges::fill(table_, -1);
    last_ = add_state(0, -1, 0);
}

int32_t SuffixIndex::add_state(int32_t length, int32_t link, int32_t end) {
    states_.push_back({length, link, end, -1});
    return static_cast<int32_t>(states_.size()) - 1;
}

size_t SuffixIndex::slot(int32_t from, int32_t id) const {
    uint64_t key = static_cast<uint64_t>(static_cast<uint32_t>(from)) << 32 | static_cast<uint32_t>(id);
    key *= 0x9E3779B97F4A7C15u;
    return (key ^ key >> 32) & (table_.size() - 1);
}

SuffixIndex::Edge* SuffixIndex::find(int32_t from, int32_t id) {
    for (size_t i = slot(from, id); table_[i] >= 0; i = (i + 1) & (table_.size() - 1)) {
        Edge& edge = edges_[table_[i]];
        if (edge.from == from && edge.id == id) return &edge;
    }
    return nullptr;
}

void SuffixIndex::add_edge(int32_t from, int32_t id, int32_t to) {
    if (2 * (edges_.size() + 1) > table_.size()) grow_table();
    size_t i = slot(from, id);
    while (table_[i] >= 0) i = (i + 1) & (table_.size() - 1);
    table_[i] = static_cast<int32_t>(edges_.size());
    edges_.push_back({from, id, to, states_[from].followed});
    states_[from].followed = table_[i];
}

void SuffixIndex::grow_table() {
    table_.assign(2 * table_.size(), -1);
    for (size_t e = 0; e < edges_.size(); ++e) {
        size_t i = slot(edges_[e].from, edges_[e].id);
        while (table_[i] >= 0) i = (i + 1) & (table_.size() - 1);
        table_[i] = static_cast<int32_t>(e);
    }
}

void SuffixIndex::append(int32_t id) {
    const auto size = static_cast<int32_t>(tokens_.size());
    if (size >= kMostTokens) throw std::length_error("a suffix index cannot hold more tokens");
    // What the text ended with until now has one more occurrence, of which `repeated` must not tell before: it would
    // be the end itself.
    int32_t noted = states_[last_].link;
    for (int i = 0; noted > 0 && i < kNotedEnds; ++i, noted = states_[noted].link) states_[noted].end = size;

    tokens_.push_back(id);
    const int32_t whole = add_state(size + 1, 0, size + 1);
    int32_t p = last_;
    last_ = whole;
    for (; p >= 0; p = states_[p].link) {
        const Edge* const edge = find(p, id);
        if (edge == nullptr) {
            add_edge(p, id, whole);
            continue;
        }
        const int32_t q = edge->to;
        if (states_[q].length == states_[p].length + 1) {
            states_[whole].link = q;
            return;
        }
        // The shorter texts of q now end at one more position than its longer ones: they get a state of their own.
        const int32_t shorter = add_state(states_[p].length + 1, states_[q].link, states_[q].end);
        for (int32_t e = states_[q].followed; e >= 0; e = edges_[e].next) add_edge(shorter, edges_[e].id, edges_[e].to);
        for (; p >= 0; p = states_[p].link) {
            Edge* const to_q = find(p, id);
            if (to_q == nullptr || to_q->to != q) break;
            to_q->to = shorter;
        }
        states_[q].link = states_[whole].link = shorter;
        return;
    }
}

SuffixIndex::Match SuffixIndex::repeated() const {
    const int32_t state = states_[last_].link;
    return state > 0 ? Match{states_[state].length, states_[state].end} : Match{};
}

void SuffixIndex::follow(Place& place, int32_t id) const {
    auto [state, length] = place;
    // A state may have been divided since.
    while (state > 0 && length <= states_[states_[state].link].length) state = states_[state].link;
    for (;;) {
        if (const Edge* const edge = find(state, id)) {
            place = {edge->to, length + 1};
            return;
        }
        if (state == 0) {
            place = {};
            return;
        }
        state = states_[state].link;
        length = states_[state].length;
    }
}

SuffixIndex::Match SuffixIndex::at(const Place& place) const {
    return place.length > 0 ? Match{place.length, states_[place.state].end} : Match{};
}

}  // namespace lpx
