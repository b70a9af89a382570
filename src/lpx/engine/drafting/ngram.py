"""Plain prompt lookup: drafts what followed the latest earlier occurrence of the last few tokens."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as SequenceOf

from lpx.engine.drafting.odds import CommonOdds, Judgements
from lpx.engine.sequence import Sequence

_ID_BYTES = array("i").itemsize


class NgramDrafter:
    """Implements `Drafter`. Matches `longest` tokens, or fewer down to `shortest`, in prompt and output."""

    name = "ngram"

    def __init__(self, shortest: int, longest: int, most: int) -> None:
        self._shortest = shortest
        self._longest = longest
        self._common = CommonOdds([0.5] * most)
        self._states: dict[Sequence, _State] = {}

    def odds(self, sequence: Sequence, most: int) -> list[float]:
        state = self._states.get(sequence)
        if state is None:
            state = self._states[sequence] = _State(Judgements(len(self._common)))
        state.text.extend(sequence.tokens[len(state.text) :])
        state.draft = self._look_up(state.text, most)
        judged, right = state.judgements.judged, state.judgements.right
        return [self._common.chance(i, judged, right) for i in range(len(state.draft))]

    def propose(self, wanted: list[tuple[Sequence, int]]) -> list[list[int]]:
        return [self._states[sequence].draft[:count] for sequence, count in wanted]

    def judge(self, sequence: Sequence, drafted: SequenceOf[int], accepted: int) -> None:
        self._states[sequence].judgements.add_draft(len(drafted), accepted)

    def measure_costs(self) -> None:
        """Nothing to measure: looking up takes microseconds."""

    def cost_ms(self, sequences: int, longest: int) -> float:
        return 0.0

    def end(self, sequence: Sequence) -> None:
        state = self._states.pop(sequence, None)
        if state is not None:
            self._common.add(state.judgements.judged, state.judgements.right)

    def close(self) -> None:
        self._states.clear()

    def _look_up(self, text: array[int], most: int) -> list[int]:
        held = text.tobytes()
        for length in range(min(self._longest, len(text) - 1), self._shortest - 1, -1):
            key = held[-length * _ID_BYTES :]
            end = len(held) - _ID_BYTES  # the match itself must not be the end of the text
            while (at := held.rfind(key, 0, end)) >= 0:
                if at % _ID_BYTES == 0:
                    begin = at // _ID_BYTES + length
                    return text[begin : begin + most].tolist()
                end = at + len(key) - 1
        return []


class _State:
    def __init__(self, judgements: Judgements) -> None:
        self.judgements = judgements
        self.text: array[int] = array("i")
        self.draft: list[int] = []
