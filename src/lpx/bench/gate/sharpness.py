"""How small a change a stored baseline lets a gate judge."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from lpx.bench.gate.adjusted import compare_pieces
from lpx.bench.gate.pieces import Piece, by_session, figures_of, pieces_with
from lpx.bench.gate.trial import LAST_CONFIDENCE, LEAST_SESSIONS


def smallest_changes(pieces: Sequence[Piece], usual_share: Callable[[str], tuple[float, float]]) -> dict[str, float]:
    """For each figure: how far from its limit a change lies that a gate judges in nearly all cases, as a share.

    The baseline is compared with itself by the gate's own rule, so this is for a gate with as many sessions, as much
    noise and the same weather. Half of the interval keeps a change at the limit undecided; twice that puts the interval
    on one side of the limit with the confidence of the interval. Figures with too few sessions are left out.
    """
    found = {}
    for figure in figures_of(pieces):
        own = pieces_with(pieces, figure)
        if len(by_session(own)) < LEAST_SESSIONS:
            continue
        ratio = compare_pieces(own, own, figure, LAST_CONFIDENCE, usual_share(figure)).ratio
        if ratio.low > 0:
            found[figure] = 1 - math.exp(2 * math.log(ratio.low))
    return found
