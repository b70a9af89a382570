"""A thousand random requests through the real server on a small KV pool: every end is clean, every text is faithful.

LPX_LOAD_REQUESTS sets how many requests the real model gets (1000), LPX_LOAD_SEED which ones.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import socket
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from lpx.engine.async_engine import AsyncEngine
from lpx.engine.engine import Engine
from lpx.options import EngineOptions
from tests.engine.fake_executor import FakeExecutor
from tests.server.conftest import fake_engine
from tests.server.live_server import LiveServer, eventually, parse_events

TOKENS = ("prompt_tokens", "completion_tokens", "total_tokens")
REAL_REQUESTS = int(os.environ.get("LPX_LOAD_REQUESTS", "1000"))
SEED = int(os.environ.get("LPX_LOAD_SEED", "1"))
CONCURRENCY = 24
GROWTH_BYTES = 48 * 2**20  # of the whole process, test client included

WORDS = [
    "the",
    "of",
    "and",
    "sun",
    "猫",
    "数据",
    "😸",
    "def",
    "return",
    "x",
    "=",
    "1\n",
    "é",
    "naïve,",
    "2024",
    "<|im_end|>",
    "\t",
    "ok.",
    "",
]


@dataclass
class Load:
    """What to send, decided by one seed, and what came of it."""

    rng: random.Random
    longest_prompt: int  # words
    longest_answer: int  # tokens
    counts: dict[str, int] = field(default_factory=dict)

    def request(self) -> tuple[str, dict[str, Any], str]:
        """Path, body and fate: "whole", "stream", or one of the ways to leave."""
        rng = self.rng
        path = rng.choice(["/generate", "/v1/completions", "/v1/completions", "/v1/chat/completions"])
        longest = self.longest_answer if rng.random() < 0.9 else 5 * self.longest_answer
        body: dict[str, Any] = {
            "max_tokens": rng.randint(1, longest),
            "temperature": rng.choice([0, 0, 0.3, 1.0, 1.5]),
            "seed": rng.getrandbits(32),
        }
        for name, value in (
            ("top_k", rng.randint(1, 50)),
            ("top_p", rng.uniform(0.1, 1)),
            ("min_p", rng.uniform(0, 0.3)),
            ("repetition_penalty", rng.uniform(0.8, 1.5)),
            ("presence_penalty", rng.uniform(-1, 1)),
            ("frequency_penalty", rng.uniform(-1, 1)),
            ("stop", rng.sample([".", "the", " a", "\n", "猫", "e", "in"], rng.randint(1, 3))),
            ("ignore_eos", True),
            ("min_tokens", 1),
            ("logit_bias", {str(rng.randint(0, 200)): rng.uniform(-100, 5)}),
            ("stop_token_ids", [rng.randint(0, 200)]),
        ):
            if rng.random() < 0.15:
                body[name] = value
        if path == "/v1/chat/completions":
            body["messages"] = [{"role": "user", "content": self._text()}]
            if rng.random() < 0.3:
                body |= {"logprobs": True, "top_logprobs": rng.randint(0, 3)}
        elif path == "/v1/completions":
            body["prompt"] = rng.choice(
                [self._text, lambda: [self._text() for _ in range(rng.randint(1, 3))], lambda: self._ids()]
            )()
            if rng.random() < 0.2:
                body["logprobs"] = rng.randint(0, 3)
            body["echo"] = rng.random() < 0.2
        else:
            body["prompt"] = self._text()
        if path != "/generate" and rng.random() < 0.2:
            body["n"] = rng.randint(2, 3)
        fate = rng.choices(
            ["whole", "stream", "leave whole", "leave early", "leave inside", "leave by FIN"], [2, 5, 1, 1, 1, 1]
        )
        return path, body, fate[0]

    def _text(self) -> str:
        long = self.rng.random() < 0.1
        words = self.rng.choices(WORDS, k=self.rng.randint(1, self.longest_prompt if long else 12))
        return " ".join(words) or "x"

    def _ids(self) -> list[int]:
        return [self.rng.randint(0, 255) for _ in range(self.rng.randint(1, 20))]

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1


# --- a client that can be rude ------------------------------------------------------------------------------------


def encoded(path: str, body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    return (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\n\r\n"
    ).encode() + data


def close_with_reset(writer: asyncio.StreamWriter) -> None:
    connection: socket.socket = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def exchange(port: int, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
    """Status and body of one request."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(encoded(path, body))
        answer = await reader.read()
    finally:
        writer.close()
    head, _, rest = answer.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" in head.lower():
        content = b""
        while rest:
            size, _, rest = rest.partition(b"\r\n")
            length = int(size, 16)
            content += rest[:length]
            assert rest[length : length + 2] == b"\r\n", "the chunked body is cut"
            rest = rest[length + 2 :]
            if not length:
                break
        rest = content
    return int(head.split()[1]), rest


async def leave(port: int, path: str, body: dict[str, Any], fate: str, bytes_first: int) -> None:
    """Begin a request and go away."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(encoded(path, {**body, "stream": fate != "leave whole"}))
    await writer.drain()
    if fate == "leave inside":
        received = 0
        while received < bytes_first and (piece := await reader.read(4096)):
            received += len(piece)
    if fate == "leave by FIN":
        writer.close()
    else:
        close_with_reset(writer)


# --- what must hold -----------------------------------------------------------------------------------------------


def choices_of(path: str, answer: dict[str, Any]) -> dict[int, tuple[str, Any, Any]]:
    """Text, finish reason and stop reason of each choice of a whole answer."""
    if path == "/generate":
        return {0: (answer["text"], answer["finish_reason"], answer["stop_reason"])}
    return {
        choice["index"]: (
            choice["message"]["content"] if "message" in choice else choice["text"],
            choice["finish_reason"],
            choice["stop_reason"],
        )
        for choice in answer["choices"]
    }


def joined(path: str, events: list[Any]) -> dict[int, tuple[str, Any, Any]]:
    """The same of a stream, whose every choice must end once."""
    found: dict[int, tuple[str, Any, Any]] = {}
    for event in events:
        assert "error" not in event, event
        for choice in [event] if path == "/generate" else event["choices"]:
            index = choice.get("index", 0)
            text, reason, _ = found.get(index, ("", None, None))
            assert reason is None, "a choice goes on after its end"
            news = choice["delta"].get("content", "") if "delta" in choice else choice["text"]
            found[index] = (text + news, choice.get("finish_reason"), choice.get("stop_reason"))
    assert all(reason in ("stop", "length") for _, reason, _ in found.values())
    return found


async def run_one(load: Load, port: int, path: str, body: dict[str, Any], fate: str, bytes_first: int) -> None:
    load.count(fate)
    if fate.startswith("leave"):
        await leave(port, path, body, fate, bytes_first)
        return
    status, whole = await exchange(port, path, body)
    assert status == 200, whole
    answer = json.loads(whole)
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    if fate == "whole":
        return
    options = {} if path == "/generate" else {"stream_options": {"include_usage": True}}
    status, data = await exchange(port, path, {**body, "stream": True, **options})
    assert status == 200, data
    *events, done = parse_events(data)
    assert done == "[DONE]"
    assert joined(path, events) == choices_of(path, answer), f"{path} {body}"
    again = events[-1]["usage"]
    assert [again[name] for name in TOKENS] == [usage[name] for name in TOKENS]
    cached = [figures["prompt_tokens_details"]["cached_tokens"] for figures in (usage, again)]
    assert 0 <= min(cached) <= max(cached) < max(usage["prompt_tokens"], 1)


async def run_all(load: Load, port: int, count: int) -> None:
    # Decided in order, so that a seed means the same requests however they interleave.
    waiting = [(*load.request(), load.rng.randint(1, 3000)) for _ in range(count)]
    waiting.reverse()

    async def worker() -> None:
        while waiting:
            await run_one(load, port, *waiting.pop())

    await asyncio.wait_for(asyncio.gather(*(worker() for _ in range(CONCURRENCY))), 1800)


async def run_burst(load: Load, port: int) -> None:
    """Short prompts, long answers, all at once: they outgrow the pool together, and some must be preempted."""
    bodies = [{"prompt": "x", "max_tokens": 96, "ignore_eos": True, "seed": seed} for seed in range(10)]
    await asyncio.gather(*(run_one(load, port, "/v1/completions", body, "stream", 0) for body in bodies))


def check_load(server: LiveServer, load: Load, count: int) -> None:
    assert isinstance(server.engine, AsyncEngine)
    process = psutil.Process()
    asyncio.run(run_all(load, server.port, count // 2))
    asyncio.run(run_burst(load, server.port))
    eventually(lambda: server.idle, "an idle engine")
    gc.collect()
    before = process.memory_info().rss
    asyncio.run(run_all(load, server.port, count - count // 2))
    eventually(lambda: server.idle, "an idle engine")
    eventually(lambda: not server.app.state.service.active, "the end of all calls")
    gc.collect()
    assert process.memory_info().rss - before < GROWTH_BYTES
    stats = server.engine.stats()
    assert stats.free_blocks == stats.total_blocks
    assert stats.finished_total["error"] == 0
    assert stats.finished_total["abort"] > 0
    assert stats.preemptions_total > 0, "the pool was not small enough to matter"
    assert set(load.counts) == {"whole", "stream", "leave whole", "leave early", "leave inside", "leave by FIN"}
    assert server.get("/health").status_code == 200


def test_random_requests_on_a_fake_model() -> None:
    executor = FakeExecutor(num_blocks=60, block_size=4)
    server = LiveServer(fake_engine(executor, max_model_len=160, max_num_seqs=12, max_num_batched_tokens=32))
    try:
        check_load(server, Load(random.Random(SEED), longest_prompt=12, longest_answer=24), 200)
    finally:
        server.close()


@pytest.mark.model
def test_a_thousand_random_requests_on_a_real_model(smollm2_path: Path) -> None:
    options = EngineOptions(
        model=str(smollm2_path),
        kv_cache_memory=12 * 2**20,  # about 540 tokens: less than what may run at once needs
        max_model_len=512,
        max_num_seqs=24,
        max_num_batched_tokens=256,
    )
    server = LiveServer(AsyncEngine.start(Engine.load(options)))
    try:
        check_load(server, Load(random.Random(SEED), longest_prompt=80, longest_answer=16), REAL_REQUESTS)
    finally:
        server.close()
