"""The native loops over a vocabulary, against plain Python."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from lpx import _native
from lpx.model.token_texts import TokenTexts

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)
PIECES = st.lists(st.text("abé☃", min_size=1, max_size=7), unique=True, max_size=60)


@given(st.lists(TEXT))
def test_token_texts_are_the_list_they_were_made_of(texts: list[str]) -> None:
    held = TokenTexts(texts)
    assert list(held) == texts
    assert held[1:] == texts[1:]
    assert texts == [] or held[-1] == texts[-1]


def reached_cut(piece: str, rank: dict[str, int]) -> tuple[str, str] | None:
    """The last merge when the characters of `piece` are merged, the best pair first and the leftmost of equals."""
    symbols = list(piece)
    while len(symbols) > 1:
        pairs = [
            (rank[left + right], at)
            for at, (left, right) in enumerate(pairwise(symbols))
            if {left, right, left + right} <= rank.keys()
        ]
        if not pairs:
            return None
        at = min(pairs)[1]
        if len(symbols) == 2:
            return symbols[0], symbols[1]
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
    return None


@given(PIECES)
def test_pieces_are_merged_by_the_cut_that_is_reached(pieces: list[str]) -> None:
    rank = {piece: index for index, piece in enumerate(pieces)}
    assert _native.merge_pieces(pieces) == [cut for piece in pieces if (cut := reached_cut(piece, rank))]


@given(PIECES, st.lists(st.tuples(st.text("abé ", max_size=3), st.text("abé ", max_size=3)), max_size=8))
def test_merges_are_split_up_to_the_first_that_is_not_of_the_vocabulary(
    tokens: list[str], lines: list[tuple[str, str]]
) -> None:
    vocab = {token: index for index, token in enumerate(tokens)}
    wanted = []
    for left, right in lines:
        if f"{left} {right}".count(" ") != 1 or not {left, right, left + right} <= vocab.keys():
            break
        wanted.append((left, right))
    assert _native.split_merges([" ".join(line) for line in lines], vocab, tokens) == wanted
