"""A server under more load than it can take, for a long time, from clients of every kind.

    python benchmarks/soak.py MODEL.gguf --minutes 10

Starts `lpx serve` with a short queue and API keys, and keeps it saturated with streams, whole answers, cancels, resets,
bad requests and slow readers. Then it checks, prints a table, and exits with 1 when something does not hold:

- no error but the deliberate ones, in answers and in the server's log;
- resident memory stays within 20 MB of what it was after the first minute;
- at the end nothing runs or waits, every KV block is free, connections are closed, and SIGTERM ends with code 0;
- p99 of the time to first token of accepted requests is bounded by the queue: a request has at most the queue and the
  running sequences before it, so it waits for as many first tokens as these, at their pace over the whole run; twice
  that is allowed, since they come unevenly. Who leaves the queue has none: those behind a request do not move it on.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from time import monotonic

import psutil
from workers.soak_clients import KEY, LIMITED_KEY, Client, Connection, Tally

MB = 1_000_000
MEMORY_MB = 20.0
SETTLE_S = 60.0
CONTEXT = 2048
_SPARE_FILES = 5


class Server:
    """`lpx serve` in a process of its own, with its log in a file."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        keys = folder / "keys"
        keys.touch(mode=0o600)
        keys.write_text(f"soak:{KEY}\nlimited:{LIMITED_KEY} max_concurrent_requests=1\n")
        self.log_path = folder / "log"
        command = [sys.executable, "-m", "lpx", "serve", "-m", str(options.model.resolve()), "--port", "0"]
        command += ["--api-key-file", str(keys), "--log-format", "json", "--max-waiting", str(options.queue)]
        command += ["--max-num-seqs", str(options.sequences), "--max-model-len", str(CONTEXT)]
        command += ["--kv-cache-memory", options.kv_cache_memory]
        if options.threads:
            command += ["--threads", str(options.threads)]
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log)
        self._watched = psutil.Process(self.process.pid)
        self.port = 0

    async def wait_ready(self) -> None:
        while self.process.poll() is None:
            if found := re.search(r"ready on http://127\.0\.0\.1:(\d+)", self.log_path.read_text()):
                self.port = int(found[1])
                return
            await asyncio.sleep(0.1)
        raise SystemExit(f"the server did not start:\n{self.log_path.read_text()}")

    def rss_mb(self) -> float:
        return self._watched.memory_info().rss / MB

    def open_files(self) -> int:
        return self._watched.num_fds()

    async def metrics(self) -> dict[str, float]:
        """Values by series, labels other than the model's name included."""
        async with Connection(self.port) as connection:
            connection.send("/metrics", b"", method="GET")
            await connection.read_head()
            text = (await connection.read_rest()).decode()
        found = {}
        for line in text.splitlines():
            if not line.startswith("#") and " " in line:
                name, value = line.rsplit(" ", 1)
                found[re.sub(r',?model_name="[^"]*"', "", name).replace("{}", "")] = float(value)
        return found

    def complaints(self) -> list[str]:
        """Lines of the log that a healthy server does not write."""
        found = []
        for line in self.log_path.read_text().splitlines():
            with contextlib.suppress(ValueError):
                record = json.loads(line)
                if record["level"] in ("debug", "info") and "exception" not in record:
                    continue
            found.append(line[:300])
        return found


def ended(metrics: dict[str, float]) -> float:
    return sum(value for name, value in metrics.items() if name.startswith("lpx:request_success_total"))


def first_tokens(metrics: dict[str, float]) -> float:
    return metrics.get("lpx:time_to_first_token_seconds_count", 0.0)


async def fill_cache(server: Server) -> None:
    """Use every KV block once: from then on their memory is there, and what grows is something else."""
    metrics = await server.metrics()
    [config] = [name for name in metrics if name.startswith("lpx:cache_config_info")]
    sizes = dict(re.findall(r'(\w+)="(\d+)"', config))
    tokens = int(sizes["num_blocks"]) * int(sizes["block_size"])
    each = CONTEXT - 100
    for number in range(2 * tokens // each + 2):
        prompt = [(7 * number + place * (number + 3)) % 1000 + 10 for place in range(each)]
        async with Connection(server.port) as connection:
            connection.send("/generate", {"prompt": prompt, "max_tokens": 1})
            if await connection.read_head() != 200:
                raise SystemExit(f"the cache could not be filled: status {connection.status}")
            await connection.read_rest()


Memory = list[tuple[float, float]]  # seconds since the begin, MB


async def soak(server: Server, options: argparse.Namespace) -> tuple[Tally, Memory, dict[str, float]]:
    """Run the clients; returns what they saw, memory over time, and what was gained in counters."""
    tally = Tally()
    stopping = asyncio.Event()
    before, began = await server.metrics(), monotonic()
    clients = [
        asyncio.create_task(Client(server.port, number, tally).run(stopping)) for number in range(options.clients)
    ]
    memory = []
    seconds = 60 * options.minutes
    while (passed := monotonic() - began) < seconds and server.process.poll() is None:
        memory.append((passed, server.rss_mb()))
        await asyncio.sleep(min(1.0, seconds - passed))
    stopping.set()
    after = await server.metrics()
    gained = {"seconds": monotonic() - began, "ends": ended(after) - ended(before)}
    gained["first_tokens"] = first_tokens(after) - first_tokens(before)
    for name in ("generation_tokens", "num_preemptions"):
        gained[name] = after[f"lpx:{name}_total"] - before[f"lpx:{name}_total"]
    await asyncio.gather(*clients)
    return tally, memory, gained


async def until_idle(server: Server, files_before: int) -> dict[str, float]:
    """Leftovers after half a minute at most: all 0 when everything was given back."""
    left: dict[str, float] = {}
    for _ in range(60):
        metrics = await server.metrics()
        left = {
            "running": metrics["lpx:num_requests_running"],
            "waiting": metrics["lpx:num_requests_waiting"],
            "KV blocks": metrics["lpx:kv_cache_usage_perc"],
            "open files": max(0, server.open_files() - files_before - _SPARE_FILES),
        }
        if not any(left.values()):
            break
        await asyncio.sleep(0.5)
    return left


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def drift_mb(memory: Memory, settle_s: float) -> tuple[float, float]:
    """Memory after `settle_s`, and the largest distance from it later on."""
    settled = [mb for seconds, mb in memory if seconds >= settle_s] or [memory[-1][1]]
    return settled[0], max(abs(mb - settled[0]) for mb in settled)


async def run(options: argparse.Namespace, folder: Path) -> bool:
    server = Server(options, folder)
    try:
        await server.wait_ready()
        await fill_cache(server)
        files = server.open_files()
        tally, memory, gained = await soak(server, options)
        left = await until_idle(server, files)
        server.process.send_signal(signal.SIGTERM)
        code = await asyncio.to_thread(server.process.wait, 60)
    finally:
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait()
    return report(options, server, tally, memory, gained, left, code)


def report(
    options: argparse.Namespace,
    server: Server,
    tally: Tally,
    memory: Memory,
    gained: dict[str, float],
    left: dict[str, float],
    code: int,
) -> bool:
    settle_s = min(SETTLE_S, gained["seconds"] / 2)
    settled, drift = drift_mb(memory, settle_s)
    ends_per_s, starts_per_s = (gained[name] / gained["seconds"] for name in ("ends", "first_tokens"))
    bound_s = 2 * (options.queue + options.sequences) / starts_per_s
    p99 = percentile(tally.ttft_s, 0.99)
    complaints = server.complaints()
    errors = [f"{count} x {error}" for error, count in tally.errors.items()] + complaints
    checks = [
        ("errors", not errors, f"{sum(tally.errors.values())} in answers, {len(complaints)} in the log"),
        ("memory", drift <= MEMORY_MB, f"{settled:.0f} MB after {settle_s:.0f} s, then within {drift:.1f} MB"),
        ("leftovers", not any(left.values()), ", ".join(f"{name} {value:g}" for name, value in left.items())),
        ("p99 TTFT", p99 <= bound_s, f"{p99:.2f} s of {len(tally.ttft_s)} streams, bound {bound_s:.2f} s"),
        ("exit code", code == 0, str(code)),
        ("saturated", tally.refused["queue full 429"] > 0, f"{tally.refused['queue full 429']} refused for the queue"),
    ]
    print(
        f"{gained['seconds']:.0f} s, {options.clients} clients, {options.sequences} sequences, queue {options.queue}: "
        f"{starts_per_s:.1f} first tokens/s, {ends_per_s:.1f} ends/s, "
        f"{gained['generation_tokens'] / gained['seconds']:.0f} tokens/s, "
        f"{gained['num_preemptions']:.0f} preemptions"
    )
    shown = memory[:: max(1, len(memory) // 12)]
    print("memory, MB: " + ", ".join(f"{mb:.0f} at {seconds:.0f} s" for seconds, mb in shown))
    print("\n| what clients did | times |\n|---|---|")
    for name, count in sorted((tally.outcomes + tally.refused).items()):
        print(f"| {name.replace('_', ' ')} | {count} |")
    print("\n| check | | |\n|---|---|---|")
    for name, good, detail in checks:
        print(f"| {name} | {'ok' if good else 'BROKEN'} | {detail} |")
    for error in errors[:20]:
        print(error)
    return all(good for _, good, _ in checks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--clients", type=int, default=40)
    parser.add_argument("--sequences", type=int, default=8, help="that run at once")
    parser.add_argument("--queue", type=int, default=16, help="sequences that may wait")
    parser.add_argument("--kv-cache-memory", default="128M", help="a small one makes sequences give way")
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lpx-soak-") as folder:
        raise SystemExit(0 if asyncio.run(run(options, Path(folder))) else 1)


if __name__ == "__main__":
    main()
