"""How many rows of prompts may run in a step that streams wait for, learned from the steps that ran.

A step takes about the time of its decode rows plus a time for each prompt row. The first is what steps without prompts
took lately; the second is what the latest steps with prompts took beyond that, divided by their prompt rows. Where more
streams decode than in the last step without prompts, for under load none may be left, each of them counts as a prompt
row. The median keeps disturbed steps out of the second, and the lower quartile out of the first: too small a value
there only makes prompt rows look dearer. The median of the latest three steps counts where it is larger. So the line
through the present point of work is followed, and what is not linear, such as attention in a long prompt, corrects
itself within a few steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from statistics import median

# Without a target: streams wait for a step with prompts three times as long as for one without, or for two frames of a
# screen, which still is 30 tokens a second. With less, most of the step is the decode rows and what every step costs,
# and the prompts of a loaded server wait for seconds.
DEFAULT_STRETCH = 3.0
LEAST_DEFAULT_MS = 32.0

FIRST_ROWS = 16  # before anything is measured, and when a deadline is about to pass
LEAST_ROWS = 4  # prompts always advance, whatever the target; where memory is the limit, four rows cost little
AIM = 0.85  # of the target: the times of equal steps scatter, and most of them should be within it
_GROWTH = 2  # times the rows of the last chunk, at most: one wrong estimate does not stop the streams
_KEPT = 9  # steps of each kind that count
_LATEST = 3
_KEPT_FOR_RATE = 16


class PrefillPace:
    """`observe` every step; `rows_beside` says how large the next chunk may be. `target_ms` None: see above."""

    def __init__(self, target_ms: float | None = None) -> None:
        self._target_ms = target_ms
        self._decode_ms: deque[tuple[int, float]] = deque(maxlen=_KEPT)  # rows and time of steps without prompts
        self._decode_rows = 1  # of the latest step
        self._row_ms: deque[float] = deque(maxlen=_KEPT)  # of a prompt row beside decode rows
        self._alone_row_ms: deque[float] = deque(maxlen=_KEPT)  # of a prompt row without streams, its share of all
        self._last_rows = FIRST_ROWS
        self._prompt_steps: deque[tuple[float, int]] = deque(maxlen=_KEPT_FOR_RATE)  # milliseconds, prompt rows

    def observe(self, decode_rows: int, prompt_rows: int, ms: float) -> None:
        """Take in a step that ran: its rows that streams waited for, its rows of prompts, and its time."""
        self._decode_rows = max(decode_rows, 1)
        if not prompt_rows:
            self._decode_ms.append((decode_rows, ms))
            return
        self._prompt_steps.append((ms, prompt_rows))
        if not decode_rows:
            self._alone_row_ms.append(ms / prompt_rows)
        elif not self._decode_ms:  # prompts came from the first step on: what a row took alone tells
            if self._alone_row_ms:
                self._decode_ms.append((decode_rows, max(ms - prompt_rows * median(self._alone_row_ms), 0.0)))
        else:
            rows, plain_ms = _usual(self._decode_ms)
            further = prompt_rows + max(decode_rows - rows, 0)
            self._row_ms.append(max(ms - plain_ms, 0.0) / further)
            self._last_rows = prompt_rows

    def rows_beside(self, decode_rows: int, most: int) -> int:
        """Prompt rows for a step with decode rows, at most `most`; at least `LEAST_ROWS` if `most` allows it."""
        self._decode_rows = max(decode_rows, 1)
        row_ms = self._usual_row_ms
        if not self._decode_ms or row_ms is None:
            return min(FIRST_ROWS, most)
        room_ms = AIM * self.target_ms - self._usual_decode_ms
        rows = int(room_ms / row_ms) if row_ms > 0 else most
        return min(max(min(rows, _GROWTH * self._last_rows), LEAST_ROWS), most)

    def rows_within(self, ms: float, most: int) -> int:
        """Prompt rows, at most `most`, that a step may have so that it ends about `ms` from now, if that is known."""
        rate = self.rows_per_second
        return most if rate is None else min(max(int(1e-3 * rate * ms), FIRST_ROWS), most)

    @property
    def target_ms(self) -> float:
        """The longest that a step with streams and prompts should take."""
        if self._target_ms is not None:
            return self._target_ms
        return max(LEAST_DEFAULT_MS, DEFAULT_STRETCH * self._usual_decode_ms) if self._decode_ms else LEAST_DEFAULT_MS

    @property
    def _usual_row_ms(self) -> float | None:
        costs = self._row_ms or self._alone_row_ms
        if not costs:
            return None
        # A machine that has become slower shows in two of the latest three; streams should not wait for more of them.
        return max(median(costs), median(list(costs)[-_LATEST:]))

    @property
    def _usual_decode_ms(self) -> float:
        """Of a step without prompts and with as many decode rows as the latest."""
        rows, ms = _usual(self._decode_ms)
        return ms + max(self._decode_rows - rows, 0) * (self._usual_row_ms or 0.0)

    @property
    def rows_per_second(self) -> float | None:
        """Prompt rows that steps computed lately, beside streams or not; None before the first."""
        steps = sorted(self._prompt_steps, key=lambda step: step[0] / step[1])
        if len(steps) > 2:
            steps.pop()  # the slowest for its size, which may have been disturbed
        ms = sum(step_ms for step_ms, _ in steps)
        return 1e3 * sum(rows for _, rows in steps) / ms if ms > 0 else None


def _usual(steps: Collection[tuple[int, float]]) -> tuple[int, float]:
    """Rows and time of the step at the lower quartile of times."""
    return sorted(steps, key=lambda step: step[1])[len(steps) // 4]
