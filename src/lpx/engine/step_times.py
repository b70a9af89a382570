"""Where the time of the engine's steps goes, and how many tokens they compute."""

from __future__ import annotations

from lpx.engine.histogram import Histogram

# 1, 2 and 5 of each power of ten, from 0.1 ms, since small models make thousands of tokens a second.
SECONDS = tuple(float(f"{digit}e{power}") for power in range(-4, 3) for digit in (1, 2, 5))
TOKENS = tuple(float(2**power) for power in range(18))


class StepTimes:
    """Counters since the start; one thread writes. Phases add up to the time inside `Engine.step`."""

    def __init__(self) -> None:
        self.schedule_ns = 0  # choosing rows, blocks and chunks
        self.draft_ns = 0
        self.forward_ns = 0  # the executor: model and sampling
        self.accept_ns = 0  # tokens to text, stops, ends
        self.decode_seconds = Histogram(SECONDS)  # of steps without prompt rows, each of several in one call
        self.prompt_seconds = Histogram(SECONDS)  # of steps with some
        self.tokens = Histogram(TOKENS)  # rows of a step

    def phases(self) -> dict[str, float]:
        """Seconds by phase."""
        return {
            "schedule": self.schedule_ns / 1e9,
            "draft": self.draft_ns / 1e9,
            "forward": self.forward_ns / 1e9,
            "accept": self.accept_ns / 1e9,
        }

    def note(self, stamps_ns: tuple[int, int, int, int, int], steps: int, rows: int, with_prompts: bool) -> None:
        """One call of the executor: when it was scheduled, drafted, run and accepted, and what it held.

        `stamps_ns` are the ends of these phases behind the begin of the first.
        """
        begin, scheduled, drafted, ran, accepted = stamps_ns
        self.schedule_ns += scheduled - begin
        self.draft_ns += drafted - scheduled
        self.forward_ns += ran - drafted
        self.accept_ns += accepted - ran
        seconds = self.prompt_seconds if with_prompts else self.decode_seconds
        seconds.observe((accepted - begin) / 1e9 / steps, steps)
        self.tokens.observe(rows, steps)
