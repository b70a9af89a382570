"""What of whole answers is kept until the load is over, and the bound on it."""

from __future__ import annotations

import sys
from array import array
from dataclasses import dataclass, field, replace

from lpx.bench.load.report import Result

MOST_TEXT_BYTES = 256 * 1024 * 1024  # of all answers together
MOST_GAPS = 16 * 1024 * 1024  # times between pieces, 8 bytes each


@dataclass(slots=True)
class KeptAnswers:
    """Counts what is kept. Figures of an answer are always kept; its text and gaps while there is room for them."""

    most_text_bytes: int = field(default_factory=lambda: MOST_TEXT_BYTES)
    most_gaps: int = field(default_factory=lambda: MOST_GAPS)
    text_bytes: int = 0
    gaps: int = 0
    without_text: int = 0  # answers
    without_gaps: int = 0

    def bounded(self, result: Result) -> Result:
        """`result` as it is kept: without its text, or the gaps between pieces, where memory for them is used up."""
        size = sys.getsizeof(result.text) + sys.getsizeof(result.hidden)
        if self.text_bytes + size > self.most_text_bytes:
            self.without_text += 1
            result = replace(result, text=None, hidden=None)
        else:
            self.text_bytes += size
        count = len(result.timings.itl_ms)
        if self.gaps + count > self.most_gaps:
            self.without_gaps += 1
            result = replace(result, timings=replace(result.timings, itl_ms=array("d")))
        else:
            self.gaps += count
        return result
