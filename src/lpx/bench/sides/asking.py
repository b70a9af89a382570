"""One answer after another from a side, whatever it is: its text, and how long it took."""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import dataclass, replace
from typing import Protocol

from lpx.bench.measurement import Subject
from lpx.bench.sides.spec import EngineSide, ServerSide, Side
from lpx.bench.sides.worker import EngineWorker, SideError


@dataclass(frozen=True, slots=True)
class Reply:
    """One greedy answer. None where the side does not tell: how many tokens, or when the first came."""

    text: str
    tokens: int | None
    ttft_ms: float | None
    tpot_ms: float | None  # of the tokens behind those that came first
    e2el_ms: float


@dataclass(frozen=True, slots=True)
class Question:
    """What every side is asked."""

    max_tokens: int
    chat: bool  # as a message of a user, through the chat template
    ignore_eos: bool


class AskedSide(Protocol):
    """A side that is ready; while another one is asked it does nothing."""

    @property
    def name(self) -> str: ...

    @property
    def subject(self) -> Subject: ...

    def ask(self, prompt: str) -> Reply:
        """Raises SideError when no whole answer comes."""
        ...

    def close(self) -> None: ...


def open_side(side: Side, question: Question, api_key: str | None = None) -> AskedSide:
    """Load the engine, or find the server. Raises ConfigError, SideError and ServerUnreachableError."""
    return AskedEngine(side, question) if isinstance(side, EngineSide) else AskedServer(side, question, api_key)


class AskedEngine:
    """LPX in a process of its own."""

    def __init__(self, side: EngineSide, question: Question) -> None:
        self.name, self._question = side.name, question
        self._worker = EngineWorker(side.name, side.settings, side.python)
        self.subject = self._worker.subject

    def ask(self, prompt: str) -> Reply:
        question = self._question
        reply = self._worker.ask(
            "answer", prompt=prompt, max_tokens=question.max_tokens, ignore_eos=question.ignore_eos, chat=question.chat
        )
        behind = reply["decode_tokens"]
        return Reply(
            text=reply["text"],
            tokens=reply["tokens"],
            ttft_ms=None if reply["first_s"] is None else 1e3 * reply["first_s"],
            tpot_ms=1e3 * reply["decode_s"] / behind if behind else None,
            e2el_ms=1e3 * reply["total_s"],
        )

    def close(self) -> None:
        self._worker.close()


class AskedServer:
    """A server that somebody else runs, over one connection."""

    def __init__(self, side: ServerSide, question: Question, api_key: str | None = None) -> None:
        from lpx.bench.load.http_client import HttpClient
        from lpx.bench.load.run import checked_key
        from lpx.bench.load.server_facts import read_facts
        from lpx.bench.load.settings import LoadSettings

        self.name, self._question = side.name, question
        self._settings = LoadSettings(
            base_url=side.url,
            model=side.model,
            endpoint_type="openai-chat" if question.chat else side.endpoint_type,
            ignore_eos=question.ignore_eos,
        )
        self._loop = asyncio.new_event_loop()
        self._client = HttpClient(self._settings.base_url, time.perf_counter, api_key=checked_key(api_key))
        try:
            facts = self._loop.run_until_complete(read_facts(self._client, self._settings))
        except BaseException:
            self.close()
            raise
        self._model, self.subject = facts.model, facts.subject

    def ask(self, prompt: str) -> Reply:
        from lpx.bench.load.answer import read_answer
        from lpx.bench.load.http_client import RequestFailedError
        from lpx.bench.load.timings import timings_of

        body = self.body(prompt)
        try:
            answer = read_answer(self._loop.run_until_complete(self._client.post(self._settings.path, body)))
        except RequestFailedError as error:
            raise SideError(f"{self.name}: {self._settings.base_url}: {error.kind}: {error.detail}") from None
        timings = timings_of(answer)
        return Reply(
            answer.hidden + answer.content, answer.output_tokens, timings.ttft_ms, timings.tpot_ms, timings.e2el_ms
        )

    def body(self, prompt: str) -> bytes:
        """The request. Nothing that LPX keeps of earlier answers makes this one faster: the same question comes again
        in every round."""
        from lpx.bench.load.prompt import Prompt, request_body

        settings = self._settings
        if self.subject.engine == "lpx":
            settings = replace(settings, extra_body={"cache_salt": secrets.token_hex(8)})
        return request_body(settings, self._model, Prompt(prompt, self._question.max_tokens))

    def close(self) -> None:
        if not self._loop.is_closed():
            self._loop.run_until_complete(self._client.close())
            self._loop.close()
