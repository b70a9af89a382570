"""LPX against llama.cpp: same file, same prompt ids, same threads, in alternation in one run.

    python benchmarks/peers.py MODEL.gguf [MODEL.gguf ...] --peer-python PEER_ENV/bin/python

Run it with the interpreter that has LPX; `--peer-python` is one that has llama-cpp-python built for this machine. Each
side lives in its own process and sleeps while the other runs. A measurement during which other programs used more than
`--quiet` of the machine is repeated, up to `--retries` times; what was kept in spite of that is marked.
"""

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from workers.process import Worker, machine_busy_seconds

DATA = Path(__file__).parent / "data"


@dataclass
class Series:
    """Figures of one engine on one task, one a round."""

    values: list[float] = field(default_factory=list)
    other_share: list[float] = field(default_factory=list)

    @property
    def median(self):
        return statistics.median(self.values)


@dataclass(frozen=True)
class Task:
    name: str
    unit: str
    prompts: int
    prompt_tokens: int
    tokens: int
    higher_is_better: bool = True

    def figure(self, reply):
        """Tokens a second from a worker's reply."""
        if self.tokens == 1:
            return self.prompts * self.prompt_tokens / reply["prefill_seconds"]
        return self.prompts * (self.tokens - 1) / reply["decode_seconds"]


def main():
    options = parse_arguments()
    tasks = [
        Task("decode, 1 stream", "tokens/s", 1, 24, options.decode_tokens),
        Task(f"decode, {options.streams} streams", "tokens/s", options.streams, 24, options.decode_tokens),
        Task(f"prefill, {options.prefill} tokens", "tokens/s", 1, options.prefill, 1),
    ]
    results = [measure_model(model, tasks, options) for model in options.models]
    machine = {"processor": processor_name(), "cores": os.cpu_count(), "python": platform.python_version()}
    if options.json:
        print(json.dumps({"machine": machine, "rounds": options.rounds, "models": results}, indent=1))
    else:
        print_table(machine, results, options)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="+", type=Path, help="GGUF files")
    parser.add_argument("--peer-python", type=Path, help="interpreter with llama-cpp-python; without it LPX runs alone")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--decode-tokens", type=int, default=128)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--prefill", type=int, default=512)
    parser.add_argument("--isa", help="LPX kernel set (default: the best)")
    parser.add_argument("--quiet", type=float, default=0.1, help="share of the machine that others may use")
    parser.add_argument("--retries", type=int, default=3, help="repetitions of a disturbed measurement")
    parser.add_argument("--no-first-token", action="store_true", help="leave out the cold process")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def measure_model(model, tasks, options):
    context = max(options.prefill, 24 + options.decode_tokens) + 64
    load = {"model": str(model.resolve()), "threads": options.threads, "context": context, "sequences": options.streams}
    workers = {"lpx": Worker("LPX", sys.executable, "lpx_worker.py")}
    if options.peer_python:
        workers["peer"] = Worker("llama.cpp", options.peer_python, "llama_cpp_worker.py")
    try:
        engines = {
            side: worker.ask("load", **load, **({"isa": options.isa} if side == "lpx" and options.isa else {}))
            for side, worker in workers.items()
        }
        ids = workers["lpx"].ask("encode", text=(DATA / "english.txt").read_text(encoding="utf-8"))["token_ids"]
        series = {task.name: {side: Series() for side in workers} for task in tasks}
        same = run_rounds(workers, tasks, ids, series, options)
    finally:
        for worker in workers.values():
            worker.close()
    result = {
        "model": model.name,
        "engines": engines,
        "same_first_tokens": same,
        "tasks": {task.name: summary(series[task.name], task.unit, True) for task in tasks},
    }
    if not options.no_first_token:
        result["tasks"]["first token, cold process"] = summary(first_tokens(model, options), "s", False)
    return result


def run_rounds(workers, tasks, ids, series, options):
    """Fills `series`; returns the share of first tokens on which the sides agree (greedy, so nearly 1)."""
    agreed = total = 0
    for worker in workers.values():  # warm-up: page in weights, start threads; not counted
        worker.ask("generate", prompts=[ids[:8]], tokens=4)
    for number in range(options.rounds):
        for task in tasks:
            prompts = make_prompts(ids, task, number)
            sides = list(workers)
            if number % 2:
                sides.reverse()
            first = {}
            for side in sides:
                reply, share = measure_quietly(workers[side], prompts, task, options)
                series[task.name][side].values.append(task.figure(reply))
                series[task.name][side].other_share.append(share)
                first[side] = [tokens[0] for tokens in reply["token_ids"]]
            if len(first) == 2:
                agreed += sum(a == b for a, b in zip(first["lpx"], first["peer"], strict=True))
                total += task.prompts
    return agreed / total if total else None


def measure_quietly(worker, prompts, task, options):
    """(reply, CPU share of others) of the least disturbed attempt; the first that is quiet enough ends the search."""
    best = None
    for _ in range(options.retries + 1):
        reply, usage = worker.measure("generate", prompts=prompts, tokens=task.tokens)
        if best is None or usage.other_share < best[1]:
            best = (reply, usage.other_share)
        if usage.other_share <= options.quiet:
            break
    return best


def make_prompts(ids, task, number):
    """Distinct prompts of every round, so that no cache of prefixes can help."""
    prompts = []
    for i in range(task.prompts):
        start = (number * 17 + i * task.prompt_tokens) % len(ids)
        prompt = [ids[(start + j) % len(ids)] for j in range(task.prompt_tokens)]
        prompts.append([ids[0], *prompt[1:]])
    return prompts


def first_tokens(model, options):
    """Seconds from the start of a process to its first token; the file is in the page cache."""
    file, threads = str(model.resolve()), str(options.threads)
    run = ["run", "--raw", "--max-tokens", "1", "--temperature", "0", "--threads", threads, "--model", file]
    commands = {"lpx": [sys.executable, "-m", "lpx", *run, "The harbour is"]}
    if options.peer_python:
        program = (
            "import sys, llama_cpp; m = llama_cpp.Llama(sys.argv[1], n_ctx=512, n_threads=int(sys.argv[2]), "
            "verbose=False); print(m('The harbour is', max_tokens=1, temperature=0)['choices'][0]['text'], flush=True)"
        )
        commands["peer"] = [str(options.peer_python), "-c", program, file, threads]
    series = {side: Series() for side in commands}
    for number in range(options.rounds + 1):
        for side, command in commands.items():
            seconds, share = time_to_first_byte(command)
            if number:  # the first warms the page cache
                series[side].values.append(seconds)
                series[side].other_share.append(share)
    return series


def time_to_first_byte(command):
    """(seconds, CPU share of others) until a process has written its first byte."""
    busy, own, started = machine_busy_seconds(), children_seconds(), time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        first = process.stdout.read(1)
        seconds = time.perf_counter() - started
        _, errors = process.communicate()
    if not first or process.returncode:
        raise SystemExit(f"{' '.join(command[:4])} … failed ({process.returncode}): {errors.decode()[-500:]}")
    # A process is accounted for when it has ended, so the share is over its whole life.
    whole = time.perf_counter() - started
    others = machine_busy_seconds() - busy - (children_seconds() - own)
    return seconds, max(0.0, others) / (whole * os.cpu_count())


def children_seconds():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def summary(series, unit, higher_is_better):
    out = {"unit": unit, **{side: asdict(s) | {"median": s.median} for side, s in series.items()}}
    if "peer" in series:
        lpx, peer = series["lpx"].median, series["peer"].median
        out["ratio"] = lpx / peer if higher_is_better else peer / lpx
    return out


def processor_name():
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def print_table(machine, results, options):
    print(
        f"{machine['processor']}, {machine['cores']} cores; {options.threads} threads; {options.rounds} rounds, medians"
    )
    for result in results:
        for engine in result["engines"].values():
            print(f"  {engine['engine']}: {engine['isa']}, {engine['threads']} threads")
    print(f"{'model':36} {'task':26} {'LPX':>9} {'llama.cpp':>10} {'unit':9} {'ratio':>6}  others' CPU")
    for result in results:
        for name, task in result["tasks"].items():
            peer = f"{task['peer']['median']:10.2f}" if "peer" in task else f"{'-':>10}"
            ratio = f"{task['ratio']:6.2f}" if "ratio" in task else f"{'-':>6}"
            share = statistics.median(s for side in ("lpx", "peer") if side in task for s in task[side]["other_share"])
            mark = "  disturbed" if share > options.quiet else ""
            print(
                f"{result['model'][:36]:36} {name:26} {task['lpx']['median']:9.2f} {peer} {task['unit']:9} {ratio}"
                f"  {share:4.0%}{mark}"
            )


if __name__ == "__main__":
    main()
