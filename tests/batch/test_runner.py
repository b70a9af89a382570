"""What a run does with answers of every kind, on targets that do as they are told."""

from __future__ import annotations

import asyncio
import contextlib
import json
import tracemalloc
from collections import deque
from collections.abc import Awaitable, Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from lpx.batch import http_target
from lpx.batch.errors import TargetGone, TargetUnreachable
from lpx.batch.http_target import HttpTarget, retry_after_s
from lpx.batch.input_file import InputFile
from lpx.batch.line_request import LineRequest
from lpx.batch.output_file import open_output
from lpx.batch.progress import Progress
from lpx.batch.retrying import Backoff
from lpx.batch.runner import BatchRun, RunSettings
from lpx.batch.target import Answer
from tests.batch.answer_server import batch_kills

Ending = Answer | Exception
QUICK = Backoff(first_s=0.001, longest_s=0.002)
GOOD = Answer(200, {"text": "好", "usage": {"prompt_tokens": 2, "completion_tokens": 3}}, "r")


def failing(status: int, retry_after_s: float | None = None) -> Answer:
    return Answer(status, {"error": {"message": "no", "code": "some_code"}}, "r", retry_after_s)


class Told:
    """Answers each prompt with what its list says, the last one for ever."""

    def __init__(self, endings: dict[str, list[Ending]]) -> None:
        self.endings = endings
        self.asked: list[str] = []
        self.at_once = self.most_at_once = 0

    async def send(self, request: LineRequest, request_id: str) -> Answer:
        prompt = request.body["prompt"]
        self.asked.append(prompt)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        endings = self.endings.get(prompt, [GOOD])
        ending = endings.pop(0) if len(endings) > 1 else endings[0]
        if isinstance(ending, Exception):
            raise ending
        return ending


Run = Callable[..., "list[dict[str, Any]]"]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run over prompts; the results in the order in which they came."""

    def go(target: Any, prompts: list[str], **settings: Any) -> list[dict[str, Any]]:
        (tmp_path / "out").unlink() if tracemalloc.is_tracing() and (tmp_path / "out").exists() else None
        (tmp_path / "in").write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
        source, output = InputFile(tmp_path / "in"), open_output(tmp_path / "out", resume=True)
        output.load(source)
        go.progress = Progress(total=len(prompts))  # type: ignore[attr-defined]
        each = BatchRun(
            source,
            output,
            target,
            RunSettings(**{"backoff": QUICK, **settings}),
            go.progress,  # type: ignore[attr-defined]
        )
        go.run = each  # type: ignore[attr-defined]
        if tracemalloc.is_tracing():
            target.asked = deque(maxlen=1)
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
        try:
            asyncio.run(each.run())
        finally:
            output.close()
        if tracemalloc.is_tracing():
            go.peak = tracemalloc.get_traced_memory()[1] - before  # type: ignore[attr-defined]
        return [json.loads(line) for line in (tmp_path / "out").read_bytes().splitlines()]

    return go


@pytest.mark.parametrize(
    "ending", [failing(429), failing(500), failing(503), failing(429, 0.0), TargetUnreachable("reset")]
)
def test_what_may_pass_is_tried_again(run: Run, ending: Ending) -> None:
    target = Told({"a": [ending, ending, GOOD]})
    (result,) = run(target, ["a"], retries=2)
    assert result["response"]["body"]["text"] == "好"
    assert result["error"] is None
    assert result["lpx"]["attempts"] == 3
    assert run.progress.retries == 2  # type: ignore[attr-defined]
    assert run.progress.completion_tokens == 3  # type: ignore[attr-defined]


@pytest.mark.parametrize("status", [400, 401, 404, 413, 422])
def test_a_refusal_is_final_and_has_its_error(run: Run, status: int) -> None:
    target = Told({"a": [failing(status), GOOD]})
    results = run(target, ["a", "b"])
    assert target.asked.count("a") == 1
    bad = next(result for result in results if result["lpx"]["index"] == 0)
    assert bad["response"]["status_code"] == status
    assert bad["error"] == {"code": "some_code", "message": "no"}


def test_attempts_come_to_an_end(run: Run) -> None:
    endings: dict[str, list[Ending]] = {"a": [failing(500)], "b": [TargetUnreachable("it took too long")]}
    results = run(Told(endings), ["a", "b"], retries=3)
    by_index = {result["lpx"]["index"]: result for result in results}
    assert by_index[0]["response"]["status_code"] == 500
    assert by_index[1]["response"] is None
    assert by_index[1]["error"] == {"code": "no_answer", "message": "it took too long"}
    assert [each["lpx"]["attempts"] for each in results] == [4, 4]


def test_an_error_in_an_answer_of_200_is_no_success(run: Run) -> None:
    endings: dict[str, list[Ending]] = {
        "a": [Answer(200, {"error": {"message": "m"}}, "r")],
        "b": [Answer(200, 7, "r")],
    }
    assert all(result["error"] for result in run(Told(endings), ["a", "b"]))
    assert run.progress.failed == 2  # type: ignore[attr-defined]


def test_waiting_as_told_uses_no_attempt_up(run: Run) -> None:
    target = Told({"a": [*[failing(429, 0.01)] * 8, GOOD], "b": [failing(429, 99.0)]})
    first, second = run(target, ["a", "b"], retries=1, patience_s=10.0)
    assert (second["error"], second["lpx"]["attempts"]) == (None, 9)
    assert (first["response"]["status_code"], first["lpx"]["attempts"]) == (429, 2)  # more than anybody waits


def test_so_many_run_at_once_and_no_more(run: Run) -> None:
    target = Told({})
    run(target, [f"{index}" for index in range(50)], max_inflight=7)
    assert target.most_at_once == 7


def test_a_server_that_is_gone_stops_the_run(run: Run, tmp_path: Path) -> None:
    gone = Told({f"{index}": [TargetUnreachable("no connection can be made")] for index in range(5, 100)})
    with pytest.raises(TargetGone, match="--resume"):
        run(gone, [f"{index}" for index in range(100)], max_inflight=2, retries=1)
    written = (tmp_path / "out").read_bytes().count(b"\n")
    assert 5 <= written < 30
    again = run(Told({}), [f"{index}" for index in range(100)])
    assert sorted(result["lpx"]["index"] for result in again) == list(range(100))


def test_a_stopped_run_finishes_what_runs(run: Run) -> None:
    class Stopping(Told):
        async def send(self, request: LineRequest, request_id: str) -> Answer:
            if len(self.asked) == 10:
                run.run.stop()  # type: ignore[attr-defined]
            return await super().send(request, request_id)

    target = Stopping({})
    results = run(target, [f"{index}" for index in range(50)], max_inflight=4)
    assert len(results) == len(target.asked)
    assert 10 <= len(results) <= 15


def test_memory_does_not_grow_with_the_lines(run: Run) -> None:
    peaks = []
    for count in (200, 1400):
        tracemalloc.start()
        run(Told({}), [f"{index} {'x' * 300}" for index in range(count)])
        peaks.append(run.peak)  # type: ignore[attr-defined]
        tracemalloc.stop()
    assert peaks[1] - peaks[0] < 8 * 1400 + 40_000


# --- over HTTP ----------------------------------------------------------------------------------------------------


def test_a_server_that_fails_at_random_answers_everything_in_the_end(run: Run) -> None:
    server = batch_kills.AnswerServer(0.4, seed=3)

    class Opened:
        """The client lives as long as the loop that it was made on."""

        target: HttpTarget | None = None

        async def send(self, request: LineRequest, request_id: str) -> Answer:
            if self.target is None:
                self.target = HttpTarget(server.url + "/v1/", model="m")
            return await self.target.send(request, request_id)

    results = run(Opened(), [f"问题 {index}" for index in range(60)], retries=30)
    server.shutdown()
    server.server_close()
    assert all(result["error"] is None for result in results)
    assert sorted(result["lpx"]["index"] for result in results) == list(range(60))
    assert run.progress.retries > 0  # type: ignore[attr-defined]


@pytest.mark.parametrize("url", ["", "127.0.0.1:8080", "ftp://x/v1", "http://", "http://u:p@x/v1", "http://x/?a=b"])
def test_wrong_addresses_are_told(url: str) -> None:
    with pytest.raises(Exception, match="--url"):
        HttpTarget(url)


def test_the_only_model_is_named_where_a_line_names_none() -> None:
    server = batch_kills.AnswerServer()

    async def ask() -> tuple[str | None, Answer]:
        async with HttpTarget(server.url) as target:
            return await target.look(), await target.send(LineRequest(None, "/v1/completions", {"prompt": "x"}), "id")

    model, answer = asyncio.run(ask())
    server.shutdown()
    server.server_close()
    assert model == answer.body["model"] == "answers"


def from_server(
    answer: bytes, then: Callable[[asyncio.StreamWriter], Awaitable[None]] | None = None, **more: Any
) -> Any:
    """What `send` makes of a server that answers any request with these bytes, and then goes on so."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            writer.write(answer)
            await writer.drain()
            if then is not None:
                await then(writer)
        writer.close()

    async def ask() -> Any:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            async with HttpTarget(url, **more) as target:
                return await target.send(LineRequest(None, "/v1/completions", {"prompt": "x"}), "id")
        finally:
            server.close()

    return asyncio.run(ask())


def ok(body: bytes, *fields: str) -> bytes:
    return "\r\n".join(["HTTP/1.1 200 OK", f"content-length: {len(body)}", *fields, "", ""]).encode() + body


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999"])
def test_an_answer_with_a_number_that_is_none_is_no_answer(number: str) -> None:
    with pytest.raises(TargetUnreachable, match="no JSON"):
        from_server(ok(f'{{"choices": [], "x": {number}}}'.encode()))


@pytest.mark.parametrize("tokens", [10**400, 2**70, -5, True, 1.5])
def test_token_counts_that_cannot_be_are_not_added_up(tokens: object) -> None:
    progress = Progress()
    progress.note_usage({"usage": {"prompt_tokens": tokens, "completion_tokens": 7}})
    assert (progress.prompt_tokens, progress.completion_tokens) == (0, 7)


def test_an_answer_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_target, "MAX_ANSWER_BYTES", 100_000)

    async def flood(writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(b"1000\r\n" + b"x" * 0x1000 + b"\r\n")
            await writer.drain()

    with pytest.raises(TargetUnreachable, match="larger than"):
        from_server(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", flood)


def test_a_byte_now_and_then_does_not_hold_an_attempt_open() -> None:
    async def drip(writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(b" ")
            await writer.drain()
            await asyncio.sleep(0.02)

    with pytest.raises(TargetUnreachable, match="too long"):
        from_server(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n", drip, timeout_s=0.3)


def test_nobody_there_is_told_before_anything_is_sent() -> None:
    async def ask() -> None:
        async with HttpTarget("http://127.0.0.1:9") as target:
            await target.look()

    with pytest.raises(TargetGone, match="does not answer"):
        asyncio.run(ask())


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("3", 3.0),
        (" 0.5 ", 0.5),
        ("Thu, 01 Jan 2026 00:00:20 GMT", 20.0),
        ("Wed, 31 Dec 2025 00:00:00 GMT", 0.0),
        ("soon", None),
        ("-1", None),
        ("9" * 400, None),
    ],
)
def test_retry_after_is_read_as_number_and_as_date(value: str | None, seconds: float | None) -> None:
    assert retry_after_s(value, datetime(2026, 1, 1, tzinfo=timezone.utc)) == seconds


def test_pauses_grow_and_are_never_alike() -> None:
    backoff = Backoff()
    pauses = [backoff.pause_s(retry) for retry in (1, 2, 3, 4, 20, 2000)]
    for pause, most in zip(pauses, (0.5, 1, 2, 4, 30, 30), strict=True):
        assert most / 2 <= pause <= most
    assert len({backoff.pause_s(1) for _ in range(10)}) > 1
