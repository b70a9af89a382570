"""What servers may send instead of an answer: packed, endless, deep, or with the key of whoever asks in it."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from lpx.batch import http_target
from lpx.batch.errors import TargetGone, TargetUnreachable
from lpx.batch.http_target import HttpTarget, retry_after_s
from lpx.batch.json_text import MAX_DEPTH, read_json
from lpx.errors import ConfigError
from tests.batch.test_runner import Run, Told, failing, from_server, ok, run  # noqa: F401

KEY = "sk-SECRET-0123456789"


@pytest.mark.parametrize("encoding", ["gzip", "gzip, gzip", "deflate", "br", "zstd", "GZIP", "x-unknown"])
def test_a_packed_answer_is_never_unpacked(encoding: str) -> None:
    packed = gzip.compress(gzip.compress(b'{"choices": []}'))
    with pytest.raises(TargetUnreachable, match="packed"):
        from_server(ok(packed, f"content-encoding: {encoding}"))


def test_no_packed_answer_is_asked_for() -> None:
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(ok(b'{"data": [{"id": "m"}]}', "content-encoding: identity", "connection: close"))
        writer.close()

    assert look(serve) == "m"
    assert b"accept-encoding: identity\r\n" in asked[0].lower()


def look(serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> str | None:
    async def ask() -> str | None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        try:
            async with HttpTarget(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}") as target:
                return await target.look()
        finally:
            server.close()

    return asyncio.run(ask())


def test_the_first_look_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n")
        while not writer.is_closing():
            writer.write(b" ")
            await asyncio.sleep(0.01)

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        while not writer.is_closing():
            writer.write(b"1000\r\n" + b"x" * 0x1000 + b"\r\n")
            await writer.drain()

    monkeypatch.setattr(http_target, "_LOOK_S", 0.2)
    with pytest.raises(TargetGone, match="too long"):
        look(drip)
    monkeypatch.setattr(http_target, "_LOOK_S", 60)
    monkeypatch.setattr(http_target, "MAX_ANSWER_BYTES", 100_000)
    with pytest.raises(TargetGone, match="larger than"):
        look(flood)


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 900, 960, 980, 990, 1000, 100_000])
@pytest.mark.parametrize("shape", ['{"a":', "["])
def test_deep_json_is_refused_and_never_met_by_the_parser(depth: int, shape: str) -> None:
    end = {"[": "]"}.get(shape, "}")
    with pytest.raises(ValueError, match=f"deeper than {MAX_DEPTH}"):
        read_json((shape * depth + "1" + end * depth).encode())


def test_brackets_in_texts_are_no_depth() -> None:
    assert read_json(json.dumps({"prompt": '[{"' * 5000}).encode()) == {"prompt": '[{"' * 5000}
    assert read_json(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH)


@pytest.mark.parametrize("status", ["200 OK", "401 Unauthorized", "500 Internal Server Error"])
def test_a_key_that_the_server_repeats_is_written_nowhere(status: str) -> None:
    told = "x" * 1990 + KEY
    bodies = [
        json.dumps({"error": {"message": told, KEY: [told], "code": KEY}}),
        json.dumps({"error": told.replace("S", "<S>")}).replace("<S>", "\\u0053"),
        told,
    ]
    for body in bodies[: 2 if status == "200 OK" else 3]:
        head = ok(body.encode(), f"x-request-id: {KEY}").replace(b"200 OK", status.encode())
        answer = from_server(head, api_key=KEY)
        assert "SK-" not in json.dumps([answer.body, answer.request_id]).upper()


@pytest.mark.parametrize("key", ["schlüssel", "a b", "a\r\nX-Evil: 1", "\udcff", "键"])
def test_a_key_that_no_header_can_hold_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match="characters that no key has"):
        HttpTarget("http://127.0.0.1:9", api_key=key)


@pytest.mark.parametrize(
    "value",
    [
        *("-5", "+5", "1e9", "0x10", "NaN", "inf", "１２", "9" * 10, "9" * 5000, "soon", "\x00", ""),
        *("Mon, 32 Foo 99999 99:99:99 GMT", "Fri, 31 Dec 9999 23:59:59 -2359", "Mon, 01 Jan 0001 00:00:00 +2359"),
    ],
)
def test_nonsense_in_retry_after_is_no_wait(value: str) -> None:
    seconds = retry_after_s(value)
    assert seconds is None or 0 <= seconds < 1e12


def test_to_come_again_at_once_is_a_retry_like_any_other(run: Run) -> None:  # noqa: F811
    (result,) = run(Told({"a": [failing(429, 0.0)]}), ["a"], retries=2, patience_s=10.0)
    assert result["lpx"]["attempts"] == 3


@pytest.mark.parametrize("asked", [99.0, None])
def test_a_stopped_run_waits_for_nobody(run: Run, tmp_path: Path, asked: float | None) -> None:  # noqa: F811
    from lpx.batch.retrying import Backoff

    class Stopping(Told):
        async def send(self, request: object, request_id: str) -> object:  # type: ignore[override]
            answer = await super().send(request, request_id)  # type: ignore[arg-type]
            asyncio.get_running_loop().call_soon(run.run.stop)  # type: ignore[attr-defined]
            return answer

    slow = Backoff(first_s=60.0, longest_s=60.0)
    assert run(Stopping({"a": [failing(429, asked)]}), ["a", "b"], max_inflight=1, backoff=slow) == []


def test_failures_are_counted_by_reason(run: Run) -> None:  # noqa: F811
    target = Told({"a": [failing(400)], "b": [failing(404)], "c": [TargetUnreachable("no")], "e": [failing(400)]})
    run(target, ["x", "a", "b", "c", "e"], retries=0, max_inflight=1)
    assert run.progress.failures.as_json() == [  # type: ignore[attr-defined]
        {"code": "some_code", "status": 400, "count": 2, "line": 2},
        {"code": "some_code", "status": 404, "count": 1, "line": 3},
        {"code": "no_answer", "status": None, "count": 1, "line": 4},
    ]


def test_reasons_that_a_server_makes_up_take_no_room() -> None:
    from lpx.batch.failures import Failures

    failures = Failures()
    for number in range(5000):
        failures.note(f"made-up-\x1b[31m{number}" + "x" * 1000, 400, number + 1)
    told = failures.as_json()
    assert len(told) == 101
    assert told[0] == {"code": "other", "status": None, "count": 4900, "line": 101}
    assert all(len(reason["code"]) <= 64 and reason["code"].isprintable() for reason in told)
