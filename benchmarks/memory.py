"""What LPX takes when it is loaded, and what a server takes when nobody asks it anything.

    python benchmarks/memory.py MODEL.gguf [MODEL.gguf ...]

Peak resident memory of a process that loads a model and runs 16 streams, against 1.15 x file + KV cache + 120 MB, where
only the part of the cache counts that the streams fill; and the CPU time of an idle `lpx serve` over some seconds.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import psutil
from workers.process import Worker

MB = 1_000_000
STREAMS, TOKENS = 16, 32


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--idle-seconds", type=float, default=10.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    results = [
        {"model": model.name, **peak_memory(model, options), **idle_cpu(model, options)} for model in options.models
    ]
    if options.json:
        print(json.dumps(results, indent=1))
    else:
        print_table(results)
    raise SystemExit(0 if all(r["peak_bytes"] <= r["limit_bytes"] for r in results) else 1)


def peak_memory(model, options):
    with Worker("LPX", sys.executable, "lpx_worker.py") as worker:
        loaded = worker.ask("load", model=str(model.resolve()), threads=options.threads)
        after_load = worker.memory()
        prompts = [list(range(10 + i, 40 + i)) for i in range(STREAMS)]
        worker.ask("generate", prompts=prompts, tokens=TOKENS)
        peak = worker.memory()
    size = model.stat().st_size
    blocks = STREAMS * -(-(len(prompts[0]) + TOKENS) // loaded["kv_block_tokens"])
    kv_bytes = blocks * loaded["kv_block_bytes"]
    return {
        "file_bytes": size,
        "kv_bytes": kv_bytes,
        "weight_bytes": loaded["weight_bytes"],
        "after_load_bytes": after_load,
        "peak_bytes": peak,
        "limit_bytes": int(1.15 * size) + kv_bytes + 120 * MB,
    }


def idle_cpu(model, options):
    """CPU seconds that a loaded, idle server uses; the port is one that the system picks."""
    command = [sys.executable, "-m", "lpx", "serve", "--port", "0", "--threads", str(options.threads)]
    command += ["--model", str(model.resolve())]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        try:
            wait_until_healthy(server)
            watch = psutil.Process(server.pid)
            before = cpu_seconds(watch)
            time.sleep(options.idle_seconds)
            used = cpu_seconds(watch) - before
        finally:
            server.terminate()
    return {"idle_seconds": options.idle_seconds, "idle_cpu_seconds": used}


def cpu_seconds(process):
    times = process.cpu_times()
    return times.user + times.system


def wait_until_healthy(server):
    address, seen = None, []
    for line in server.stdout:
        seen.append(line)
        if address is None and (found := re.search(r"http://127\.0\.0\.1:\d+", line)):
            address = found.group()
        if address is not None:
            break
    else:
        raise SystemExit("the server ended before it listened:\n" + "".join(seen))
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=5) as reply:
                if reply.status == 200:
                    return
        except OSError:  # 503 while it loads
            time.sleep(0.2)
    raise SystemExit("the server was not healthy within two minutes")


def print_table(results):
    print(f"{'model':36} {'file':>7} {'KV':>7} {'peak':>7} {'limit':>7} MB   idle server")
    for r in results:
        sizes = " ".join(f"{r[key] / MB:7.0f}" for key in ("file_bytes", "kv_bytes", "peak_bytes", "limit_bytes"))
        share = r["idle_cpu_seconds"] / r["idle_seconds"]
        print(
            f"{r['model'][:36]:36} {sizes}      "
            f"{r['idle_cpu_seconds']:.2f} s CPU in {r['idle_seconds']:.0f} s ({share:.1%})"
        )


if __name__ == "__main__":
    main()
