"""What HTTP costs, and how the service bears a load: python benchmarks/serving.py MODEL.gguf

First part: the same requests through `LLM.generate` in this process and through `lpx serve` over HTTP, client
included, in alternating rounds on the same processors: tokens a second of one stream and of several together, and the
share that HTTP leaves, by round, so that what both sides share drops out. Wanted: 93 % for one stream, 90 % for
sixteen.

Second part: a load as `lpx bench serve --dataset-name random` makes it: random prompts, a fixed output length, so many
at once.

A peer is measured beside both: `--llama-server` names llama.cpp's server, `--peer-python` the Python of an environment
with llama-cpp-python and what its server needs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lpx import LLM, SamplingParams
from lpx.bench.load import LoadSettings, measure_load
from lpx.bench.load.answer import read_answer
from lpx.bench.load.http_client import Exchange, HttpClient
from lpx.bench.series import Series
from lpx.bench.statistics import alternating_ratio
from lpx.server.http_protocol import run_on_new_loop

START_S = 120.0  # for a server to load
LOAD_FIGURES = (
    "requests_per_second",
    "output_tokens_per_second",
    *(f"{name}_ms_{which}" for name in ("ttft", "tpot", "itl") for which in ("mean", "median", "p99")),
)


@dataclass(frozen=True)
class Server:
    name: str
    port: int
    extra: dict[str, Any]  # fields of its requests


@contextmanager
def running(name: str, command: list[str], port: int, path: str, extra: dict[str, Any]) -> Iterator[Server]:
    """A server process, ready to answer."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + START_S
        while not answers(port, path):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{name} did not start: {' '.join(command)}")
            time.sleep(0.2)
        yield Server(name, port, extra)
    finally:
        process.terminate()
        process.wait()


def answers(port: int, path: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def servers(args: argparse.Namespace, stack: ExitStack) -> list[Server]:
    threads = str(args.threads)
    context = args.context
    port = free_port()
    lpx = [sys.executable, "-m", "lpx", "serve", "--model", args.model, "--port", str(port), "--threads", threads]
    lpx += ["--max-model-len", str(context)]
    own = {"ignore_eos": True, "speculative": "off"}
    started = [stack.enter_context(running("lpx serve", lpx, port, "/health", own))]
    peer = {"ignore_eos": True, "cache_prompt": False}
    slots = str(args.streams)
    if args.llama_server:
        port = free_port()
        command = [args.llama_server, "-m", args.model, "--port", str(port), "-t", threads, "-np", slots]
        command += ["-c", str(context * args.streams)]
        started.append(stack.enter_context(running("llama-server", command, port, "/health", peer)))
    if args.peer_python:
        port = free_port()
        command = [args.peer_python, "-m", "llama_cpp.server", "--model", args.model, "--port", str(port)]
        command += ["--n_threads", threads, "--n_ctx", str(context)]
        command += ["--interrupt_requests", "False"]  # else a new request ends the running one
        name = "llama-cpp-python"  # serves one request at a time, and knows no ignore_eos: end tokens are biased away
        bias = {"logit_bias": {str(token_id): -100 for token_id in args.eos_ids}}
        started.append(stack.enter_context(running(name, command, port, "/v1/models", bias)))
    return started


def prompts(count: int, tokens: int, rng: random.Random) -> list[str]:
    """Texts of about so many tokens each, no two with the same beginning."""
    words = ["river", "stone", "light", "garden", "window", "engine", "paper", "music", "winter", "bridge"]
    return [
        " ".join(str(rng.randrange(1000)) + rng.choice(words) for _ in range(max(1, tokens // 3))) for _ in range(count)
    ]


async def over_http(server: Server, texts: list[str], tokens: int) -> tuple[int, float]:
    """Tokens of all answers, asked for at once and streamed, and the seconds until the last one was there.

    The client is that of `lpx bench serve`, which looks into answers when they are over.
    """
    client = HttpClient(f"http://127.0.0.1:{server.port}", time.perf_counter)
    fixed = {"max_tokens": tokens, "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
    bodies = [json.dumps({"prompt": text, **fixed, **server.extra}).encode() for text in texts]
    start = time.perf_counter()
    exchanges = await asyncio.gather(*(client.post("/v1/completions", body) for body in bodies))
    seconds = time.perf_counter() - start
    await client.close()
    return sum(map(tokens_of, exchanges)), seconds


def tokens_of(exchange: Exchange) -> int:
    """By the server's count, else by pieces of text."""
    answer = read_answer(exchange)
    return answer.output_tokens or sum(piece.has_text for piece in answer.pieces)


def in_process(llm: LLM, texts: list[str], tokens: int) -> float:
    """Tokens a second of `LLM.generate`."""
    params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, speculative="off")
    start = time.perf_counter()
    outputs = llm.generate(texts, params, use_tqdm=False)
    return sum(len(output.outputs[0].token_ids) for output in outputs) / (time.perf_counter() - start)


def overhead(args: argparse.Namespace, llm: LLM, started: list[Server]) -> dict[str, dict[str, Series]]:
    """Tokens a second by number of streams and by way."""
    rng = random.Random(1)
    results: dict[str, dict[str, Series]] = {}
    for streams in (1, args.streams):
        values: dict[str, list[float]] = {}
        for round_number in range(-1, args.rounds):  # the first one warms up
            texts = prompts(streams, args.input_len, rng)
            ways: list[Server | None] = [None, *started]
            for way in ways if round_number % 2 else reversed(ways):
                if way is None:
                    name, rate = "LLM.generate", in_process(llm, texts, args.output_len)
                else:
                    made, seconds = run_on_new_loop(over_http(way, texts, args.output_len))
                    name, rate = way.name, made / seconds
                if round_number >= 0:
                    values.setdefault(name, []).append(rate)
        results[str(streams)] = {name: Series.of(rates) for name, rates in values.items()}
    return results


def load(args: argparse.Namespace, server: Server) -> dict[str, float]:
    """Figures of `lpx bench serve`: random prompts, a fixed output length, so many at once."""
    settings = LoadSettings(
        base_url=f"http://127.0.0.1:{server.port}",
        dataset_name="random",
        num_prompts=args.num_prompts,
        input_len=args.random_input_len,
        output_len=args.random_output_len,
        max_concurrency=args.max_concurrency,
        seed=2,
        extra_body=server.extra,
    )
    report = run_on_new_loop(measure_load(settings))
    if report.errors:
        raise RuntimeError(f"{server.name}: {dict(report.errors)}")
    return {figure: report.figures[figure] for figure in LOAD_FIGURES if figure in report.figures}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--input-len", type=int, default=32, help="tokens of a prompt, about")
    parser.add_argument("--output-len", type=int, default=256)
    parser.add_argument("--num-prompts", type=int, default=64)
    parser.add_argument("--random-input-len", type=int, default=128)
    parser.add_argument("--random-output-len", type=int, default=64)
    parser.add_argument("--max-concurrency", type=int, default=16)
    parser.add_argument("--llama-server", help="path of llama.cpp's server")
    parser.add_argument("--peer-python", help="Python of an environment with llama-cpp-python[server]")
    parser.add_argument("--eos-ids", type=int, nargs="*", default=[0, 2], help="end tokens, for --peer-python")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()

    with ExitStack() as stack:
        started = servers(args, stack)
        llm = stack.enter_context(LLM(args.model, threads=args.threads, max_model_len=args.context))
        results = overhead(args, llm, started)
        loads = {server.name: load(args, server) for server in started}
    if args.json:
        shown = {
            streams: {name: list(series.values) for name, series in by_way.items()}
            for streams, by_way in results.items()
        }
        print(json.dumps({"model": Path(args.model).name, "tokens_per_second": shown, "load": loads}))
        return
    print(f"{Path(args.model).name}, {args.threads} threads, {args.output_len} tokens behind about {args.input_len}")
    print(f"{'streams':>7}  {'way':18}{'tokens/s':>10}{'low':>9}{'high':>9}{'of LLM':>9}  95 % interval")
    for streams, by_way in results.items():
        base = by_way["LLM.generate"]
        for name, series in by_way.items():
            share = alternating_ratio(series.values, base.values).scaled(lambda ratio: 100 * ratio)
            print(
                f"{streams:>7}  {name:18}{series.median:10.1f}{series.low:9.1f}{series.high:9.1f}"
                f"{share.estimate:8.1f}%  {share.low:.1f} to {share.high:.1f}"
            )
    print(
        f"\n{args.num_prompts} prompts of about {args.random_input_len} tokens, {args.random_output_len} tokens "
        f"each, {args.max_concurrency} at once"
    )
    print(f"{'':26}" + "".join(f"{name:>18}" for name in loads))
    for figure in next(iter(loads.values())):
        print(f"{figure:26}" + "".join(f"{figures[figure]:18.1f}" for figures in loads.values()))


if __name__ == "__main__":
    main()
