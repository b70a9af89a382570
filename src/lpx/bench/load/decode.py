"""Prefill and decode of any server, told apart without its help.

Requests that differ only in the length of their answers are sent; what one more token costs is the slope of their
times, and what remains at length zero is the prompt, the queue and the network. No stream and no timings are needed.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from statistics import fmean
from typing import Any

from lpx.bench.headline import BAD_FIT
from lpx.bench.load.answer import read_answer
from lpx.bench.load.http_client import Clock, HttpClient, RequestFailedError
from lpx.bench.load.prompt import Prompt, request_body
from lpx.bench.load.run import LoadProgress, Tell, checked_key, unless
from lpx.bench.load.server_facts import ServerUnreachableError, read_facts
from lpx.bench.load.settings import MAX_INPUT_LEN, MAX_OUTPUT_LEN, LoadSettings, check_whole
from lpx.bench.load.slope import Slope, fit_slope
from lpx.bench.load.token_counter import TokenCounter, find_counter
from lpx.bench.load.words import draw_words, sized_text
from lpx.bench.measurement import Measurement, Subject
from lpx.errors import ConfigError

OUTPUT_LENS = (16, 48, 96, 160)
_MOST_STREAMS, _MOST_REPEATS = 100_000, 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeSettings:
    """What is asked of a server. Raises ConfigError for values that make no sense."""

    base_url: str
    model: str | None = None
    endpoint_type: str = "openai-completions"
    endpoint: str | None = None
    concurrency: int = 1
    input_len: int = 128
    output_lens: tuple[int, ...] = OUTPUT_LENS
    repeats: int = 5
    ignore_eos: bool = True
    seed: int = 0
    nonce: str | None = None  # None: new prompts every time
    tokenizer: str | None = None
    request_timeout_s: float = 600.0
    insecure: bool = False
    extra_body: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "output_lens", tuple(sorted(set(self.output_lens))))
        if len(self.output_lens) < 2 or self.output_lens[0] < 1:
            raise ConfigError("--output-lens needs two or more different lengths from 1 on, such as 16,64,128")
        for name, value, most in (
            ("--concurrency", self.concurrency, _MOST_STREAMS),
            ("--input-len", self.input_len, MAX_INPUT_LEN),
            ("--output-lens", self.output_lens[-1], MAX_OUTPUT_LEN),
            ("--repeats", self.repeats, _MOST_REPEATS),
        ):
            check_whole(name, value, 1, most)
        self.request_settings()

    def request_settings(self) -> LoadSettings:
        """How single requests are made: whole answers, greedy."""
        return LoadSettings(
            base_url=self.base_url,
            model=self.model,
            endpoint_type=self.endpoint_type,
            endpoint=self.endpoint,
            ignore_eos=self.ignore_eos,
            request_timeout_s=self.request_timeout_s,
            insecure=self.insecure,
            extra_body=self.extra_body,
            stream=False,
        )

    def as_json(self) -> dict[str, Any]:
        """JSON values."""
        return {**dataclasses.asdict(self), "output_lens": list(self.output_lens)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> DecodeSettings:
        """The settings that `as_json` gave. Raises ConfigError for members that are none of them."""
        try:
            return cls(**values)
        except TypeError as error:
            raise ConfigError(f"these are no settings of bench decode: {error}") from None


@dataclass(frozen=True, slots=True)
class DecodePoint:
    """One round: as many requests as run at once, all for the same length."""

    tokens: float  # of an answer, the mean
    seconds: float  # from request to answer, the mean


@dataclass(frozen=True, slots=True)
class DecodeReport:
    """What one level of concurrency gave."""

    settings: DecodeSettings
    subject: Subject
    started: datetime
    seconds: float
    points: tuple[DecodePoint, ...]
    slope: Slope | None
    prompt_tokens: float | None  # by the server's count, the mean
    problems: tuple[str, ...]  # why the figures are not to be trusted; empty: they are
    notes: tuple[str, ...]
    interrupted: bool = False

    @property
    def figures(self) -> dict[str, float]:
        """Of all streams together, `tpot_ms` and `prefill_ms` apart."""
        slope = self.slope
        if slope is None or slope.seconds_per_token.estimate <= 0:
            return {}
        streams, each = self.settings.concurrency, slope.seconds_per_token
        figures = {
            "decode_tokens_per_second": streams / each.estimate,
            "decode_tokens_per_second_low": streams / each.high,
            "tpot_ms": 1e3 * each.estimate,
            "tpot_ms_low": 1e3 * each.low,
            "tpot_ms_high": 1e3 * each.high,
            "prefill_ms": 1e3 * slope.intercept_s,
        }
        if each.low > 0:
            figures["decode_tokens_per_second_high"] = streams / each.low
        if slope.intercept_s > 0 and self.prompt_tokens:
            figures["prefill_tokens_per_second"] = streams * self.prompt_tokens / slope.intercept_s
        return {name: value for name, value in figures.items() if abs(value) != float("inf")}

    def measurement(self) -> Measurement:
        """For the ledger, `compare` and `gate`."""
        return Measurement(
            kind="decode",
            subject=self.subject,
            settings=self.settings.as_json(),
            figures={**self.figures, BAD_FIT: 1.0} if self.problems else self.figures,
            samples={
                "answer_tokens": tuple(point.tokens for point in self.points),
                "answer_seconds": tuple(point.seconds for point in self.points),
            },
            batch_size=self.settings.concurrency,
            input_len=None if self.prompt_tokens is None else round(self.prompt_tokens),
            output_len=max(self.settings.output_lens),
            started=self.started,
            seconds=self.seconds,
        )

    def as_json(self) -> dict[str, Any]:
        """Everything as JSON values."""
        return {
            "started": self.started.isoformat(),
            "seconds": self.seconds,
            "subject": dataclasses.asdict(self.subject),
            "settings": self.settings.as_json(),
            "figures": self.figures,
            "points": [dataclasses.asdict(point) for point in self.points],
            "left_out": 0 if self.slope is None else self.slope.left_out,
            "good_fit": not self.problems,
            "problems": list(self.problems),
            "notes": list(self.notes),
            "interrupted": self.interrupted,
        }


async def measure_decode(
    settings: DecodeSettings,
    progress: Tell | None = None,
    *,
    api_key: str | None = None,
    clock: Clock = time.perf_counter,
    stopping: asyncio.Event | None = None,
) -> DecodeReport | None:
    """Send the requests and fit the line.

    When `stopping` is set, the report is of the rounds until then; None: there was none.

    Raises ServerUnreachableError when a request fails, ConfigError when the settings do not fit the server.
    """
    tell = progress or (lambda state: None)
    client = HttpClient(
        settings.request_settings().base_url,
        clock,
        api_key=checked_key(api_key),
        insecure=settings.insecure,
        timeout_s=settings.request_timeout_s,
    )
    try:
        decode = _Decode(settings, client, tell, clock)
        stopping = stopping or asyncio.Event()
        whole = await unless(stopping, decode.prepare()) and await unless(stopping, decode.run())
        return decode.report(interrupted=not whole)
    except RequestFailedError as error:
        raise ServerUnreachableError(
            f"a request failed, so nothing was measured: {error.kind}: {error.detail}"
        ) from None
    finally:
        await client.close()


def measure_decode_again(settings: Mapping[str, Any]) -> Measurement:
    """Measure what the settings of a Measurement describe. Raises as `measure_decode` does."""
    report = asyncio.run(measure_decode(DecodeSettings.from_json(settings)))
    assert report is not None  # nothing stops it
    return report.measurement()


class _Decode:
    def __init__(self, settings: DecodeSettings, client: HttpClient, tell: Tell, clock: Clock) -> None:
        self._settings, self._client, self._tell, self._clock = settings, client, tell, clock
        self._requests = settings.request_settings()
        self._nonce = settings.nonce or secrets.token_hex(4)
        self._subject: Subject | None = None
        self._counter: TokenCounter | None = None
        self._model: str | None = None
        self._started, self._begun = datetime.now(timezone.utc), clock()
        self._points: list[DecodePoint] = []
        self._prompt_number = 0
        self._prompt_tokens: list[int] = []
        self._short = 0  # answers that ended before their length
        self._uncounted = 0
        self._answers = 0

    async def prepare(self) -> None:
        """The server's facts, and the warm-up."""
        facts = await read_facts(self._client, self._requests)
        self._model, self._subject = facts.model, facts.subject
        self._counter = await find_counter(self._client, self._model, self._settings.tokenizer)
        self._tell(LoadProgress("warm-up"))
        await self._round(self._settings.output_lens[0])
        self._prompt_tokens.clear()
        self._short = self._uncounted = self._answers = 0

    async def run(self) -> None:
        """All rounds."""
        settings, order = self._settings, random.Random(self._settings.seed)
        rounds = [
            length
            for _ in range(settings.repeats)
            for length in order.sample(settings.output_lens, k=len(settings.output_lens))
        ]
        self._started, self._begun = datetime.now(timezone.utc), self._clock()
        for number, length in enumerate(rounds):
            seconds = self._clock() - self._begun
            self._tell(LoadProgress("load", number, len(rounds), settings.concurrency, seconds=seconds))
            self._points.append(await self._round(length))

    def report(self, interrupted: bool) -> DecodeReport | None:
        """What the rounds so far give."""
        if self._subject is None or not self._points:
            return None
        slope = fit_slope([point.tokens for point in self._points], [point.seconds for point in self._points])
        return DecodeReport(
            settings=self._settings,
            subject=self._subject,
            started=self._started,
            seconds=self._clock() - self._begun,
            points=tuple(self._points),
            slope=slope,
            prompt_tokens=fmean(self._prompt_tokens) if self._prompt_tokens else None,
            problems=self._problems(slope),
            notes=self._notes(),
            interrupted=interrupted,
        )

    async def _round(self, length: int) -> DecodePoint:
        """So many requests at once, all with new prompts."""
        prompts = [await self._prompt(length) for _ in range(self._settings.concurrency)]
        answers = await asyncio.gather(*map(self._ask, prompts))
        return DecodePoint(fmean(tokens for tokens, _ in answers), fmean(seconds for _, seconds in answers))

    async def _prompt(self, length: int) -> Prompt:
        self._prompt_number += 1
        words = draw_words(random.Random(f"{self._nonce}:{self._settings.seed}:{self._prompt_number}"))
        special = self._settings.endpoint_type != "openai-chat"
        text = await sized_text(words, self._settings.input_len, self._counter, special=special)
        await asyncio.sleep(0)  # where nothing is asked of a server, Ctrl-C would wait for the last prompt
        return Prompt(text.text, length, self._settings.input_len)

    async def _ask(self, prompt: Prompt) -> tuple[int, float]:
        """Tokens and seconds of one answer."""
        exchange = await self._client.post(self._requests.path, request_body(self._requests, self._model, prompt))
        answer = read_answer(exchange)
        self._answers += 1
        if answer.prompt_tokens is not None:
            self._prompt_tokens.append(answer.prompt_tokens)
        tokens = answer.output_tokens
        if tokens is None:
            self._uncounted += 1
            tokens = prompt.output_len
            if answer.finish_reason == "stop" and self._counter is not None:
                tokens = await self._counter.count(answer.content, special=False) + 1  # and the end token
        if answer.finish_reason == "stop" or tokens < prompt.output_len:
            self._short += 1
        return tokens, exchange.ended_s - exchange.sent_s

    def _problems(self, slope: Slope | None) -> tuple[str, ...]:
        found = ["all answers have the same length, so there is no slope"] if slope is None else list(slope.problems)
        if self._short:
            found.append(
                f"{self._short} of {self._answers} answers ended before the length that was asked for"
                + ("" if self._settings.ignore_eos else ": leave out --no-ignore-eos")
            )
        return tuple(found)

    def _notes(self) -> tuple[str, ...]:
        if not self._uncounted:
            return ()
        return (
            f"the server does not count tokens: {self._uncounted} answers are taken to be as long as was asked for",
        )
