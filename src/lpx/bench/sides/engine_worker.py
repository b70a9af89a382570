"""An engine in a process of its own: `python -m lpx.bench.sides.engine_worker`, commands in and replies out as JSON.

A line is a command `{"op": …, …}` and is answered by one line. While it waits for the next one, the process sleeps and
uses no processor time, so that other engines can be measured. It ends with its stdin, so it never outlives whoever
started it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import traceback
from time import perf_counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lpx.bench.streams import Streams
    from lpx.engine.engine import Engine


class EngineCommands:
    """What can be asked: load once, then whole answers, or streams whose decoding comes in pieces."""

    def __init__(self) -> None:
        self._engine: Engine | None = None
        self._streams: Streams | None = None
        self._answers = 0

    def load(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Load an engine; replies with its facts, the version of LPX and the seconds that it took."""
        from lpx import __version__
        from lpx.bench.engine_settings import options_from
        from lpx.engine.engine import Engine

        started = perf_counter()
        self._engine = Engine.load(options_from(settings))
        info = dataclasses.asdict(self._engine.info)
        return {"info": info, "version": __version__, "seconds": perf_counter() - started}

    def answer(
        self, prompt: str | list[dict[str, str]], max_tokens: int, ignore_eos: bool, chat: bool
    ) -> dict[str, Any]:
        """One greedy answer: text, ids, seconds to the first token, and of decoding the tokens after it.

        No answer profits from an earlier one to the same question: it shares neither blocks nor drafts with it.
        """
        from lpx.engine.sampling_params import SamplingParams

        engine = self._loaded()
        self._answers += 1
        params = SamplingParams(
            temperature=0.0, max_tokens=max_tokens, ignore_eos=ignore_eos, cache_salt=f"answer-{self._answers}"
        )
        text, ids, first, with_first, drafted = "", [], 0.0, 0, 0
        started = perf_counter()
        try:
            prompt_ids = (
                engine.encode_chat(prompt, add_generation_prompt=True)
                if isinstance(prompt, list)
                else engine.encode_chat([{"role": "user", "content": prompt}], add_generation_prompt=True)
                if chat
                else engine.encode_prompt(prompt)
            )
            engine.add_request(prompt_ids, params)
            finish = None
            while engine.has_work:
                for delta in engine.step():
                    if delta.error is not None:
                        raise delta.error
                    text += delta.text
                    ids += delta.token_ids
                    finish = delta.finish_reason
                    if delta.timings is not None:
                        drafted = delta.timings.drafted_tokens
                    if ids and not first:
                        first, with_first = perf_counter(), len(ids)
        finally:
            engine.abort_all()
        ended = perf_counter()
        return {
            "text": text,
            "drafted_tokens": drafted,
            "tokens": len(ids),
            "prompt_tokens": len(prompt_ids),
            "finish_reason": finish,
            "first_s": first - started if first else None,
            "decode_s": ended - first if first else 0.0,
            "decode_tokens": len(ids) - with_first,
            "total_s": ended - started,
        }

    def prefill(self, prompts: list[list[int]]) -> dict[str, Any]:
        """Begin streams, in place of those before; seconds until all have their first token."""
        from lpx.bench.streams import Streams

        self.release()
        self._streams = Streams(self._loaded(), prompts)
        return {"seconds": self._streams.prefill()}

    def decode(self, steps: int) -> dict[str, Any]:
        """So many steps of the streams, fewer at the end of their context."""
        if self._streams is None:
            raise RuntimeError("there are no streams to decode")
        done = self._streams.decode(steps)
        return {"steps": done.steps, "seconds": done.seconds}

    def release(self) -> dict[str, Any]:
        """End the streams."""
        if self._streams is not None:
            self._streams.__exit__()
            self._streams = None
        return {}

    def _loaded(self) -> Engine:
        if self._engine is None:
            raise RuntimeError("no engine is loaded")
        return self._engine


def main() -> None:
    from lpx.errors import ConfigError, LpxError

    # What else writes to stdout goes to stderr: it must not get between the replies.
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    commands = EngineCommands()
    for line in sys.stdin.buffer:
        command = json.loads(line)
        try:
            reply = getattr(commands, command.pop("op"))(**command)
        except LpxError as error:
            reply = {"error": str(error), "config": isinstance(error, ConfigError), "code": error.help_code}
        except Exception as error:
            traceback.print_exc()
            reply = {"error": f"{type(error).__name__}: {error}", "config": False}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


if __name__ == "__main__":
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in lpx.cli
    main()
