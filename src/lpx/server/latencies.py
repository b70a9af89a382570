"""How long requests take, as clients see it, and how large they are.

Nothing here needs the Prometheus library, which is loaded by the first look at /metrics.
"""

from __future__ import annotations

from lpx.engine.histogram import Histogram
from lpx.engine.outputs import Timings
from lpx.engine.step_times import SECONDS, TOKENS


class Latencies:
    """Of all generating requests since the start; each choice counts."""

    def __init__(self) -> None:
        self.time_to_first_token = Histogram(SECONDS)
        self.inter_token = Histogram(SECONDS)
        self.end_to_end = Histogram(SECONDS)
        # Of what the engine tells at the end of a choice:
        self.queue = Histogram(SECONDS)
        self.prefill = Histogram(SECONDS)
        self.decode = Histogram(SECONDS)
        self.inference = Histogram(SECONDS)  # prefill and decode
        self.per_output_token = Histogram(SECONDS)  # of choices with two tokens or more
        self.prompt_tokens = Histogram(TOKENS)
        self.generation_tokens = Histogram(TOKENS)

    def note_late(self, timings: Timings) -> None:
        """First token and pace of a choice that nobody watched, as the engine saw them."""
        self.time_to_first_token.observe(timings.ttft_ms / 1e3)
        if timings.completion_tokens > 1:
            further = timings.completion_tokens - 1
            self.inter_token.observe(timings.decode_ms / 1e3 / further, further)

    def note_end(self, timings: Timings) -> None:
        """A choice has ended."""
        self.queue.observe(timings.queue_ms / 1e3)
        self.prefill.observe(timings.prefill_ms / 1e3)
        self.decode.observe(timings.decode_ms / 1e3)
        self.inference.observe((timings.prefill_ms + timings.decode_ms) / 1e3)
        if timings.completion_tokens > 1:
            self.per_output_token.observe(timings.decode_ms / 1e3 / (timings.completion_tokens - 1))
        self.prompt_tokens.observe(timings.prompt_tokens)
        self.generation_tokens.observe(timings.completion_tokens)
