#include "piece_merges.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <optional>
#include <tuple>

namespace lpx {
namespace {

constexpr uint32_t kNone = UINT32_MAX;

// Text -> index; open addressing, at most half full.
class PieceIndex {
  public:
    explicit PieceIndex(std::span<const std::string_view> pieces)
        : pieces_(pieces), slots_(std::bit_ceil(2 * pieces.size() + 1), kNone) {
        for (uint32_t i = 0; i < pieces.size(); ++i) slots_[slot_of(pieces[i])] = i;
    }
    uint32_t find(std::string_view text) const { return slots_[slot_of(text)]; }

  private:
    size_t slot_of(std::string_view text) const {
        const size_t mask = slots_.size() - 1;
        size_t at = std::hash<std::string_view>{}(text)&mask;
        while (slots_[at] != kNone && pieces_[slots_[at]] != text) at = (at + 1) & mask;
        return at;
    }

    std::span<const std::string_view> pieces_;
    std::vector<uint32_t> slots_;
};

// Merges the characters of one text as an encoder does.
class Merging {
  public:
    explicit Merging(const PieceIndex& index) : index_(index) {}

    // The two pieces that the last merge joins to `text`; nothing when the merges end before.
    std::optional<std::pair<uint32_t, uint32_t>> last_merge(std::string_view text) {
        split(text);
        for (uint32_t i = 0; i + 1 < symbols_.size(); ++i) offer(text, i);
        size_t left = symbols_.size();
        while (!candidates_.empty()) {
            const auto [rank, at, size] = candidates_.front();
            std::pop_heap(candidates_.begin(), candidates_.end(), std::greater<>());
            candidates_.pop_back();
            Symbol& first = symbols_[at];
            if (first.size == 0 || first.next == kNone) continue;
            Symbol& second = symbols_[first.next];
            if (first.size + second.size != size) continue;  // an earlier merge has taken one of the two
            if (--left == 1) return {{first.piece, second.piece}};
            first.piece = rank;
            first.size = size;
            second.size = 0;
            first.next = second.next;
            if (first.next != kNone) symbols_[first.next].previous = at;
            offer(text, at);
            if (first.previous != kNone) offer(text, first.previous);
        }
        return {};
    }

  private:
    struct Symbol {
        size_t begin, size;  // bytes; size 0: merged into the one before
        uint32_t piece, previous, next;
    };
    using Candidate = std::tuple<uint32_t, uint32_t, size_t>;  // rank, symbol, bytes of both

    void split(std::string_view text) {
        symbols_.clear();
        candidates_.clear();
        for (size_t begin = 0; begin < text.size();) {
            size_t end = begin + 1;
            while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) ++end;
            const auto i = static_cast<uint32_t>(symbols_.size());
            symbols_.push_back({begin, end - begin, index_.find(text.substr(begin, end - begin)), i - 1, i + 1});
            begin = end;
        }
        if (!symbols_.empty()) symbols_.back().next = kNone;
    }

    void offer(std::string_view text, uint32_t at) {
        const Symbol& first = symbols_[at];
        if (first.next == kNone || first.piece == kNone) return;
        const Symbol& second = symbols_[first.next];
        if (second.piece == kNone) return;
        const size_t size = first.size + second.size;
        const uint32_t rank = index_.find(text.substr(first.begin, size));
        if (rank == kNone) return;
        candidates_.emplace_back(rank, at, size);
        std::push_heap(candidates_.begin(), candidates_.end(), std::greater<>());
    }

    const PieceIndex& index_;
    std::vector<Symbol> symbols_;
    std::vector<Candidate> candidates_;  // a heap, the best first
};

}  // namespace

std::vector<std::pair<uint32_t, uint32_t>> piece_merges(std::span<const std::string_view> pieces) {
    const PieceIndex index(pieces);
    Merging merging(index);
    std::vector<std::pair<uint32_t, uint32_t>> merges;
    for (const std::string_view piece : pieces)
        if (const auto merge = merging.last_merge(piece)) merges.push_back(*merge);
    return merges;
}

}  // namespace lpx
