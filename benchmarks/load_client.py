"""What the client of `lpx bench serve` takes from the server it measures: python benchmarks/load_client.py MODEL.gguf

`lpx serve` answers the same number of streams for three clients in alternating rounds on the same processors: one that
reads sockets and looks for nothing but the end (the least a client can do), `stream_client.py`, and `lpx.bench.load`.
Each round takes new prompts of the same lengths. Wanted: at 16 streams the server keeps 97 % of what it gives to the
least client. `--url` measures a server that runs already.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import sys
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, TypeVar
from urllib.parse import urlsplit

from serving import free_port, running
from stream_client import StreamClient

from lpx.bench.load import LoadSettings, measure_load
from lpx.bench.load.words import WORDS
from lpx.bench.statistics import alternating_ratio

T = TypeVar("T")
OUTPUT_LEN_OPTIONS = {"temperature": 0, "ignore_eos": True}


class BareReader(asyncio.Protocol):
    """Sends a request and waits for the chunk that ends its answer."""

    def __init__(self) -> None:
        self._over: asyncio.Future[bytes] | None = None
        self._tail = b""
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if not self._tail and not data.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"no stream: {data[:200]!r}")
        self._tail = (self._tail + data)[-2048:]
        if self._tail.endswith(b"\r\n0\r\n\r\n") and self._over is not None:
            self._over.set_result(self._tail)

    async def ask(self, request: bytes) -> bytes:
        """The last bytes of the answer."""
        self._tail, self._over = b"", asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._over

    def close(self) -> None:
        self._transport.close()


def prompts(args: argparse.Namespace) -> list[str]:
    import random

    rng = random.Random(secrets.token_hex(8))
    return [" ".join(rng.choices(WORDS, k=args.input_len)) for _ in range(args.streams * args.requests)]


async def over_streams(args: argparse.Namespace, one: Callable[[str], Awaitable[int]], texts: list[str]) -> float:
    """Tokens a second, with so many requests under way at once."""
    waiting = list(texts)
    tokens = 0

    async def stream() -> None:
        nonlocal tokens
        while waiting:
            got = await one(waiting.pop())
            tokens += got

    start = perf_counter()
    await asyncio.gather(*(stream() for _ in range(args.streams)))
    return tokens / (perf_counter() - start)


async def bare(args: argparse.Namespace) -> float:
    loop = asyncio.get_running_loop()
    idle = [(await loop.create_connection(BareReader, "127.0.0.1", args.port))[1] for _ in range(args.streams)]

    async def one(text: str) -> int:
        body = {"prompt": text, "max_tokens": args.output_len, "stream": True, **OUTPUT_LEN_OPTIONS}
        data = json.dumps({**body, "stream_options": {"include_usage": True}}).encode()
        head = "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        head = f"{head}Content-Length: {len(data)}"
        connection = idle.pop()
        tail = await connection.ask(head.encode() + b"\r\n\r\n" + data)
        idle.append(connection)
        return int(tail.rpartition(b'"completion_tokens":')[2].split(b",")[0].strip(b" }"))

    rate = await over_streams(args, one, prompts(args))
    for connection in idle:
        connection.close()
    return rate


async def small(args: argparse.Namespace) -> float:
    idle = [StreamClient(args.port) for _ in range(args.streams)]

    async def one(text: str) -> int:
        connection = idle.pop()
        answer = await connection.complete({"prompt": text, "max_tokens": args.output_len, **OUTPUT_LEN_OPTIONS})
        idle.append(connection)
        return answer.tokens

    rate = await over_streams(args, one, prompts(args))
    for connection in idle:
        await connection.close()
    return rate


async def ours(args: argparse.Namespace) -> float:
    settings = LoadSettings(
        base_url=f"http://127.0.0.1:{args.port}",
        dataset_name="random",
        num_prompts=args.streams * args.requests,
        max_concurrency=args.streams,
        input_len=args.input_len,
        output_len=args.output_len,
        num_warmups=0,
        ignore_eos=True,
    )
    report = await measure_load(settings)
    if report.errors:
        raise RuntimeError(f"requests failed: {dict(report.errors)}")
    return report.figures["output_tokens_per_second"]


CLIENTS: dict[str, Callable[[argparse.Namespace], Coroutine[Any, Any, float]]] = {
    "bare sockets": bare,
    "stream_client.py": small,
    "lpx bench serve": ours,
}


def run(main: Coroutine[Any, Any, T]) -> T:
    """On uvloop's loop, which `lpx bench serve` uses, too."""
    import uvloop

    loop = uvloop.new_event_loop()
    try:
        return loop.run_until_complete(main)
    finally:
        loop.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?")
    parser.add_argument("--url", help="a server that runs already")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--requests", type=int, default=2, help="of each stream in a round")
    parser.add_argument("--input-len", type=int, default=32)
    parser.add_argument("--output-len", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if (args.model is None) == (args.url is None):
        parser.error("give either a model or --url")

    rates: dict[str, list[float]] = {name: [] for name in CLIENTS}
    seconds: dict[str, float] = dict.fromkeys(CLIENTS, 0.0)
    with ExitStack() as stack:
        if args.url:
            args.port = urlsplit(args.url).port
        else:
            args.port = free_port()
            command = [sys.executable, "-m", "lpx", "serve", "--model", args.model, "--port", str(args.port)]
            command += ["--threads", str(args.threads), "--max-model-len", "1024"]
            command += ["--speculative-config", '{"method": "off"}']
            stack.enter_context(running("lpx serve", command, args.port, "/health", {}))
        for number in range(-1, args.rounds):  # the first one warms up
            for name in list(CLIENTS) if number % 2 else reversed(CLIENTS):
                used = process_time()
                rate = run(CLIENTS[name](args))
                print(f"round {number}: {name} {rate:.1f} tokens/s", file=sys.stderr)
                if number >= 0:
                    rates[name].append(rate)
                    seconds[name] += process_time() - used
    least = "bare sockets"
    ratios = {name: alternating_ratio(values, rates[least]) for name, values in rates.items()}
    if args.json:
        kept = {name: [ratio.estimate, ratio.low, ratio.high] for name, ratio in ratios.items()}
        print(json.dumps({"tokens_per_second": rates, "of_least": kept, "client_seconds": seconds}))
        return
    what = Path(args.model).name if args.model else args.url
    print(f"{what}, {args.streams} streams of {args.output_len} tokens, {args.rounds} rounds in alternation")
    print(f"{'client':18}{'tokens/s':>10}{'of the least client, 95 %':>30}{'client, µs a token':>22}")
    tokens = args.streams * args.requests * args.output_len * args.rounds
    for name, values in rates.items():
        ratio = ratios[name]
        share = f"{100 * ratio.estimate:.1f} % ({100 * ratio.low:.1f} to {100 * ratio.high:.1f})"
        print(f"{name:18}{sorted(values)[len(values) // 2]:10.1f}{share:>30}{1e6 * seconds[name] / tokens:22.1f}")


if __name__ == "__main__":
    main()
