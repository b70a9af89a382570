"""LPX against other engines: same file, same prompt ids, same threads, in alternation in one run.

    python benchmarks/peers.py MODEL.gguf [MODEL.gguf ...] --peer-python PEER_ENV/bin/python

Run it with the interpreter that has LPX; `--peer-python` is one that has llama-cpp-python built for this machine,
`--openvino-python` one that has openvino-genai, `--transformers-python` one that has torch, transformers, accelerate
and gguf. Each side lives in its own process and sleeps while the others run. A measurement during which other programs
used more than `--quiet` of the machine is repeated, up to `--retries` times; what was kept in spite of that is marked.
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

from workers.process import Worker, WorkerError, least_disturbed, machine_busy_seconds, processor_name

from lpx.quality import bundled_texts

BATCH = 512  # tokens of a step: all prompts of a decode task fit one
LPX = "LPX"
COLD_PROGRAMS = {
    "llama.cpp": "import llama_cpp; m = llama_cpp.Llama(sys.argv[1], n_ctx=512, n_threads=int(sys.argv[2]), "
    "verbose=False); print(m('The harbour is', max_tokens=1, temperature=0)['choices'][0]['text'], flush=True)",
    "OpenVINO": "import openvino_genai; m = openvino_genai.LLMPipeline(sys.argv[1], 'CPU', "
    "INFERENCE_NUM_THREADS=int(sys.argv[2])); print(m.generate('The harbour is', max_new_tokens=1), flush=True)",
    "transformers": "import os, torch, transformers as t; torch.set_num_threads(int(sys.argv[2])); "
    "at = dict(zip(('pretrained_model_name_or_path', 'gguf_file'), os.path.split(sys.argv[1]))); "
    "k = t.AutoTokenizer.from_pretrained(**at); m = t.AutoModelForCausalLM.from_pretrained(**at); "
    "print(k.decode(m.generate(**k('The harbour is', return_tensors='pt'), max_new_tokens=1)[0]), flush=True)",
}


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
    prompts: int
    prompt_tokens: int
    tokens: int

    def figure(self, reply):
        """Tokens a second from a worker's reply."""
        if self.tokens == 1:
            return self.prompts * self.prompt_tokens / reply["prefill_seconds"]
        return self.prompts * (self.tokens - 1) / reply["decode_seconds"]


def main():
    options = parse_arguments()
    tasks = make_tasks(options)
    try:
        results = [measure_model(model, tasks, options) for model in options.models]
    except WorkerError as error:
        raise SystemExit(f"error: {error}") from None
    machine = {"processor": processor_name(), "cores": os.cpu_count(), "python": platform.python_version()}
    if options.json:
        print(json.dumps({"machine": machine, "rounds": options.rounds, "models": results}, indent=1))
    else:
        print_table(machine, results, options)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="+", type=Path, help="GGUF files")
    parser.add_argument("--peer-python", type=Path, help="interpreter with llama-cpp-python")
    parser.add_argument("--openvino-python", type=Path, help="interpreter with openvino-genai")
    parser.add_argument(
        "--transformers-python", type=Path, help="interpreter with torch, transformers, accelerate and gguf"
    )
    parser.add_argument("--transformers-dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--decode-tokens", type=int, default=128)
    parser.add_argument("--streams", type=numbers, default=[1, 16], help="streams that decode together: 1,2,4,8,16,32")
    parser.add_argument("--prefill", type=numbers, default=[512], help="tokens of a prompt: 512,2048")
    parser.add_argument("--context", type=numbers, default=[], help="decode one stream behind so many tokens: 4096")
    parser.add_argument("--isa", help="LPX kernel set (default: the best)")
    parser.add_argument("--quiet", type=float, default=0.1, help="share of the machine that others may use")
    parser.add_argument("--retries", type=int, default=3, help="repetitions of a disturbed measurement")
    parser.add_argument("--no-first-token", action="store_true", help="leave out the cold process")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if max(options.streams) > BATCH // 4:
        parser.error(f"--streams: at most {BATCH // 4}, so that all prompts fit one step")
    if options.decode_tokens < 2:
        parser.error("--decode-tokens: at least 2; decoding begins with the second token")
    return options


def numbers(text):
    values = [int(part) for part in text.split(",") if part]
    if not values or min(values) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of positive numbers such as 1,16")
    return values


def make_tasks(options):
    tokens = options.decode_tokens
    return [
        *(Task(f"decode, {n} stream{'s' if n > 1 else ''}", n, min(24, BATCH // n), tokens) for n in options.streams),
        *(Task(f"decode at a context of {n}", 1, n, tokens) for n in options.context),
        *(Task(f"prefill, {n} tokens", 1, n, 1) for n in options.prefill),
    ]


def start_workers(options):
    """The engines by name, LPX first."""
    scripts = {
        LPX: (sys.executable, "lpx_worker.py"),
        "llama.cpp": (options.peer_python, "llama_cpp_worker.py"),
        "OpenVINO": (options.openvino_python, "openvino_worker.py"),
        "transformers": (options.transformers_python, "transformers_worker.py"),
    }
    return {name: Worker(name, python, script) for name, (python, script) in scripts.items() if python}


def measure_model(model, tasks, options):
    load = {
        "model": str(model.resolve()),
        "threads": options.threads,
        "context": 24 + options.decode_tokens + 64,
        "sequences": max(options.streams),
        "long_context": max(task.prompt_tokens + task.tokens for task in tasks) + 64,
    }
    more = {LPX: {"isa": options.isa}, "transformers": {"dtype": options.transformers_dtype}}
    workers = start_workers(options)
    try:
        engines = {side: worker.ask("load", **load, **more.get(side, {})) for side, worker in workers.items()}
        ids = workers[LPX].ask("encode", text=bundled_texts()[0].content)["token_ids"]
        series = {task.name: {side: Series() for side in workers} for task in tasks}
        same = run_rounds(workers, tasks, ids, series, options)
    finally:
        for worker in workers.values():
            worker.close()
    result = {
        "model": model.name,
        "engines": engines,
        "same_first_tokens": same,
        "tasks": {task.name: summary(series[task.name], "tokens/s", True) for task in tasks},
    }
    if not options.no_first_token:
        result["tasks"]["first token, cold process"] = summary(first_tokens(model, options), "s", False)
    return result


def run_rounds(workers, tasks, ids, series, options):
    """Fills `series`; returns by peer the share of first tokens that are LPX's too (greedy, so nearly 1)."""
    agreed, total = dict.fromkeys(workers, 0), 0
    for worker in workers.values():  # warm-up: page in weights, start threads; not counted
        worker.ask("generate", prompts=[ids[:8]], tokens=4)
    prompts = Prompts(ids)
    for number in range(options.rounds):
        for task in tasks:
            attempts = [prompts.fresh(task) for _ in range(options.retries + 1)]
            sides = list(workers)
            if number % 2:
                sides.reverse()
            first = {}
            for side in sides:
                reply, share, first[side] = measure_quietly(workers[side], attempts, task, options)
                series[task.name][side].values.append(task.figure(reply))
                series[task.name][side].other_share.append(share)
            total += task.prompts
            for side in sides:
                agreed[side] += sum(a == b for a, b in zip(first[LPX], first[side], strict=True))
    return {side: count / total for side, count in agreed.items() if side != LPX}


def measure_quietly(worker, attempts, task, options):
    """(reply, CPU share of others) of the least disturbed attempt, and the first tokens of the first one."""
    first = []

    def measurements():
        for prompts in attempts:
            reply, usage = worker.measure("generate", prompts=prompts, tokens=task.tokens)
            first.append([tokens[0] for tokens in reply["token_ids"]])
            yield reply, usage.other_share

    return *least_disturbed(measurements(), options.quiet), first[0]


class Prompts:
    """Prompts of which no two begin alike, those of other tasks and of repetitions included.

    Some engines keep what they have computed, and would find the beginning of a prompt in their cache.
    """

    def __init__(self, ids):
        self.ids, self.digits = ids, sorted(set(ids))
        self.count = 0

    def fresh(self, task):
        return [self._next(task.prompt_tokens) for _ in range(task.prompts)]

    def _next(self, length):
        self.count += 1
        base = len(self.digits)
        mark = [self.digits[self.count % base], self.digits[self.count // base % base]]
        text = (self.ids[(self.count * 17 + i) % len(self.ids)] for i in range(length))
        return [self.ids[0], *mark, *text][:length]


def first_tokens(model, options):
    """Seconds from the start of a process to its first token; the file is in the page cache."""
    file, threads = str(model.resolve()), str(options.threads)
    run = ["run", "--raw", "--max-tokens", "1", "--temperature", "0", "--threads", threads, "--model", file]
    if options.isa:
        run += ["--isa", options.isa]
    commands = {LPX: [sys.executable, "-m", "lpx", *run, "The harbour is"]}
    pythons = (options.peer_python, options.openvino_python, options.transformers_python)
    for (side, program), python in zip(COLD_PROGRAMS.items(), pythons, strict=True):
        if python:
            commands[side] = [str(python), "-c", f"import sys; {program}", file, threads]
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
    """Figures of a task by engine, and how many times better LPX is than each of the others."""
    lpx = series[LPX].median
    return {
        "unit": unit,
        "engines": {side: asdict(s) | {"median": s.median} for side, s in series.items()},
        "ratios": {
            side: lpx / s.median if higher_is_better else s.median / lpx for side, s in series.items() if side != LPX
        },
    }


def print_table(machine, results, options):
    print(
        f"{machine['processor']}, {machine['cores']} cores; {options.threads} threads; {options.rounds} rounds, medians"
    )
    for engine in results[0]["engines"].values():
        print(f"  {engine['engine']}: {engine['isa']}, {engine['threads']} threads")
    peers = [side for side in results[0]["engines"] if side != LPX]
    columns = "".join(f" {side:>12} {'ratio':>6}" for side in peers)
    print(f"{'model':36} {'task':26} {LPX:>9}{columns} {'unit':9} others' CPU")
    for result in results:
        for name, task in result["tasks"].items():
            engines, ratios = task["engines"], task["ratios"]
            columns = "".join(f" {engines[side]['median']:12.2f} {ratios[side]:6.2f}" for side in peers)
            share = statistics.median(s for engine in engines.values() for s in engine["other_share"])
            mark = "  disturbed" if share > options.quiet else ""
            print(
                f"{result['model'][:36]:36} {name:26} {engines[LPX]['median']:9.2f}{columns} {task['unit']:9}"
                f" {share:4.0%}{mark}"
            )


if __name__ == "__main__":
    main()
