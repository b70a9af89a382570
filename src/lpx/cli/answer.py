"""Generate one answer on the calling thread, piece by piece, until it ends or the user interrupts it."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lpx.engine.engine import Engine
    from lpx.engine.outputs import FinishReason, Timings
    from lpx.engine.sampling_params import SamplingParams

# Control characters could drive the terminal (move the cursor, set the title): a model's text must not.
_TERMINAL_SAFE = {code: "\ufffd" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}


@dataclass(slots=True)
class Answer:
    """What one request gave."""

    prompt_tokens: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    timings: Timings | None = None
    interrupted: bool = False

    def statistics(self) -> str:
        """The answer's figures as one line."""
        parts = [f"{len(self.token_ids)} tokens"]
        if self.timings is not None:
            parts.append(f"{self.timings.decode_tokens_per_second:.1f} tokens/s")
            cached = f", {self.timings.cached_tokens} of them cached," if self.timings.cached_tokens else ""
            rate = self.timings.prefill_tokens_per_second
            parts.append(f"prompt {self.prompt_tokens} tokens{cached} at {rate:.0f} tokens/s")
            if self.timings.drafted_tokens:
                share = 100 * self.timings.accepted_tokens / self.timings.drafted_tokens
                parts.append(f"{self.timings.drafted_tokens} drafted, {share:.0f} % accepted")
            parts.append(f"first token {self.timings.ttft_ms:.0f} ms")
        if self.interrupted:
            parts.append("interrupted")
        elif self.finish_reason == "length":
            parts.append("cut by the length limit")
        return " · ".join(parts)


def generate_answer(
    engine: Engine, prompt_ids: list[int], params: SamplingParams, write: Callable[[str], None]
) -> Answer:
    """Run one request to its end; `write` gets the text as it comes. Ctrl-C ends the answer, not the program.

    Raises the error that the engine reports for the request.
    """
    answer = Answer(prompt_tokens=len(prompt_ids))
    request_id = engine.add_request(prompt_ids, params)
    try:
        with _interrupts_noted() as interrupted:
            while engine.has_work:
                for delta in engine.abort_request(request_id) if interrupted() else engine.step():
                    if delta.error is not None:
                        raise delta.error
                    answer.text += delta.text
                    answer.token_ids += delta.token_ids
                    answer.finish_reason = delta.finish_reason
                    answer.stop_reason = delta.stop_reason
                    answer.timings = delta.timings
                    if delta.text:
                        write(delta.text)
            answer.interrupted = interrupted()
    finally:
        engine.abort_request(request_id)  # when writing failed: the blocks go back
    return answer


def write_text(text: str) -> None:
    """Show a piece of an answer at once, without letting it drive a terminal."""
    sys.stdout.write(text.translate(_TERMINAL_SAFE) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def write_note(text: str) -> None:
    """A line about the answer, kept apart from it: on stderr, dim on a terminal."""
    sys.stdout.flush()
    print(f"\033[2m{text}\033[0m" if sys.stderr.isatty() else text, file=sys.stderr)


@contextmanager
def _interrupts_noted() -> Iterator[Callable[[], bool]]:
    """Note the first Ctrl-C, so that a step is never cut in the middle; a second one interrupts at once."""
    noted = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal noted
        if noted:
            raise KeyboardInterrupt
        noted = True

    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: noted
    finally:
        signal.signal(signal.SIGINT, before)
