// BPE merges of a SentencePiece vocabulary, which files describe by scores only.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace lpx {

// For each piece that can be reached from characters, in order: the indices of the two pieces that it is merged from.
// `pieces` are different UTF-8 texts by falling score.
//
// SentencePiece merges the neighbours whose joined text has the best score, the leftmost of equals. Inside a span of
// text that ends as one piece, the merges run in the same order wherever the span stands: so the cut of a piece that is
// reached when it is alone is the only one ever reached.
std::vector<std::pair<uint32_t, uint32_t>> piece_merges(std::span<const std::string_view> pieces);

}  // namespace lpx
