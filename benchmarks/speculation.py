"""What drafting tokens brings on real tasks: LPX with and without, in alternation in one run.

    python benchmarks/speculation.py MODEL.gguf [--peer-python PEER_ENV/bin/python] [--output FILE]

Each task of `data/speculation.jsonl` is answered with `speculative` "auto" and "off", the first of the two changing
from round to round; the tokens must be the same. `--peer-python` (an interpreter that has llama-cpp-python) adds
llama.cpp with its own prompt lookup and without, greedily, in the same rounds. A round during which other programs used
more than `--quiet` of the machine is repeated, up to `--retries` times. The exit code is 1 when a token differs.

Texts of other requests are not searched, so no answer can learn from its own repetition. `--shared` searches them, as
the default does: then each task is answered once with "auto" and once with "off" (which leaves no text behind), the
first of the two changing from task to task, and the model is loaded anew for each temperature.
"""

import argparse
import json
import os
import signal
import sys
from pathlib import Path

from speculation_report import MODES, StreamRuns, TaskRuns, as_json, first_difference, lines
from workers.process import Worker, WorkerError, least_disturbed, processor_name

TASKS = Path(__file__).parent / "data" / "speculation.jsonl"
KINDS = ("code_rewrite", "quote", "json", "chat", "chat_zh", "translation")
SEED = 20
MORE = 8  # rounds for each one, at least, where the first ones showed less than what is wanted
MOST = 120  # rounds of what seems slow, when even so many tell nothing
PEER_SIDES = {"plain": False, "lookup": True}


def main():
    options = parse_arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was measured is shown then, too
    run = Run(select_tasks(read_tasks(TASKS), options.kinds, options.limit), options)
    failed = None
    try:
        run.measure()
    except KeyboardInterrupt:
        failed = "interrupted"
    except WorkerError as error:
        failed = f"error: {error}"
    if failed:
        print(f"{failed}: what follows is what was measured before", file=sys.stderr)
    run.write()
    if options.json:
        print(json.dumps(run.result(), indent=1, ensure_ascii=False))
    else:
        print(f"{processor_name()}, {os.cpu_count()} cores; {options.model.name}; {run.described()}")
        for engine in run.engines.values():
            print(f"  {', '.join(f'{key} {value}' if key != 'engine' else value for key, value in engine.items())}")
        for line in lines(run.runs, run.streams, run.differences, options.quiet):
            print(line)
    raise SystemExit(1 if failed or run.differences else 0)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=Path, help="GGUF file with a chat template")
    parser.add_argument("--peer-python", type=Path, help="interpreter with llama-cpp-python")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument(
        "--rounds",
        type=int,
        default=5,
        help=f"a ratio below the wanted one gets {MORE} times as many more, up to {MOST} where it stays unsure",
    )
    parser.add_argument("--kinds", type=lambda text: text.split(","), default=list(KINDS), help=",".join(KINDS))
    parser.add_argument("--limit", type=int, help="tasks of each kind (default: all)")
    parser.add_argument("--temperatures", type=lambda text: [float(t) for t in text.split(",")], default=[0.0, 0.8])
    parser.add_argument("--streams", type=int, default=16, help="tasks of a kind answered at once; 0: leave it out")
    parser.add_argument("--shared", action="store_true", help="search texts of other requests; one round, no streams")
    parser.add_argument("--quiet", type=float, default=0.1, help="share of the machine that others may use")
    parser.add_argument("--retries", type=int, default=3, help="repetitions of a disturbed round")
    parser.add_argument("--output", type=Path, help="JSON file that is written again after every task")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    options = parser.parse_args()
    if unknown := [kind for kind in options.kinds if kind not in KINDS]:
        parser.error(f"--kinds: {', '.join(unknown)} not known; there are {', '.join(KINDS)}")
    if options.rounds < 1 or options.retries < 0 or (options.limit is not None and options.limit < 1):
        parser.error("--rounds and --limit: at least 1; --retries: at least 0")
    if options.shared:  # a second answer would find the first
        options.rounds, options.retries, options.streams = 1, 0, 0
    return options


def read_tasks(path):
    """Tasks in the order of the file: {"kind", "name", "messages", "max_tokens"}."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def select_tasks(tasks, kinds, limit):
    """The first `limit` of each kind; kinds take turns, so that no kind profits from what the one before it taught."""
    of_kind = [[task for task in tasks if task["kind"] == kind][:limit] for kind in kinds]
    return [group[i] for i in range(max(map(len, of_kind))) for group in of_kind if i < len(group)]


class Run:
    """What was measured so far, and the workers that measure."""

    def __init__(self, tasks, options):
        self.tasks, self.options = tasks, options
        self.runs, self.streams, self.differences = [], [], []
        self.engines, self.complete = {}, False
        self._prompts, self._answers = {}, {}  # by name; by (name, temperature)

    def measure(self):
        options = self.options
        with Worker("LPX", sys.executable, "lpx_worker.py") as self.lpx:
            self._load_lpx()
            self._prompts = {
                task["name"]: self.lpx.ask("encode_chat", messages=task["messages"])["token_ids"] for task in self.tasks
            }
            self.peer = None
            if options.peer_python and 0.0 in options.temperatures:
                with Worker("llama.cpp", options.peer_python, "llama_cpp_worker.py") as self.peer:
                    self._load_peer()
                    self._measure_all()
            else:
                self._measure_all()
        self.complete = True

    def _load_lpx(self):
        config = {} if self.options.shared else {"suffix_decoding_max_cached_requests": 0}
        self.engines["LPX"] = self.lpx.ask(
            "load_default",
            model=str(self.options.model.resolve()),
            threads=self.options.threads,
            speculative_config=config,
        )
        for mode in MODES:  # warm-up: page in weights, start threads; not counted
            self.lpx.ask("answer", prompt=[1, 2, 3, 4], settings={"max_tokens": 16, "speculative": mode, "seed": SEED})

    def _load_peer(self):
        context = max(len(self._prompts[task["name"]]) + task["max_tokens"] for task in self.tasks) + 64
        self.engines["llama.cpp"] = self.peer.ask(
            "load_lookup", model=str(self.options.model.resolve()), threads=self.options.threads, context=context
        )
        for lookup in PEER_SIDES.values():
            self.peer.ask("answer", prompt=[1, 2, 3, 4], max_tokens=8, lookup=lookup)

    def _measure_all(self):
        options = self.options
        for number, temperature in enumerate(options.temperatures):
            if number and options.shared:
                self._load_lpx()
            for at, task in enumerate(self.tasks):
                tell(f"temperature {temperature:g}, task {at + 1} of {len(self.tasks)}: {task['kind']} {task['name']}")
                self._measure_task(at, task, temperature)
                self.write()
            for kind in options.kinds if options.streams else ():
                tasks = [task for task in self.tasks if task["kind"] == kind][: options.streams]
                if len(tasks) > 1:
                    tell(f"temperature {temperature:g}, {len(tasks)} at once: {kind}")
                    self._measure_streams(kind, tasks, temperature)
                    self.write()

    def _measure_task(self, at, task, temperature):
        runs = TaskRuns(task["kind"], task["name"], temperature)
        self.runs.append(runs)
        with_peer = self.peer and temperature == 0
        for number in self._rounds(runs):
            turn = at + number
            answers, share = self._alternate(turn, MODES, lambda mode: self._answer(task, temperature, mode, runs))
            for mode in MODES:
                runs.answers[mode].append(answers[mode])
            runs.other_share.append(share)
            if with_peer and number < self.options.rounds:
                rates, share = self._alternate(turn, list(PEER_SIDES), lambda side: self._peer_rate(task, side))
                if all(rates.values()):
                    runs.peer_other_share.append(share)
                    for side, rate in rates.items():
                        runs.peer_rates.setdefault(side, []).append(rate)

    def _rounds(self, runs):
        """Numbers of rounds, to be added to `runs` one by one: more where it seems slow, so that noise does not accuse.

        `MORE` times as many at least, whatever they show, for to end when the figure suits would flatter it; then on
        until it is sure on which side of the wanted ratio the truth lies.
        """
        first = self.options.rounds
        yield from range(first)
        if self.options.shared or not runs.seems_slow:
            return
        least = (1 + MORE) * first
        for number in range(first, max(least, MOST)):
            if number >= least and runs.sure:
                return
            yield number

    def _alternate(self, turn, modes, ask):
        """({mode: reply}, CPU share of others) of the least disturbed attempt; `ask(mode)` gives (reply, Usage)."""
        order = list(modes) if turn % 2 == 0 else list(reversed(modes))

        def attempts():
            for _ in range(self.options.retries + 1):
                asked = {mode: ask(mode) for mode in order}
                usages = [usage for _, usage in asked.values()]
                others = sum(usage.other_share * usage.seconds for usage in usages)
                yield {mode: reply for mode, (reply, _) in asked.items()}, others / sum(u.seconds for u in usages)

        return least_disturbed(attempts(), self.options.quiet)

    def _answer(self, task, temperature, mode, runs):
        reply, usage = self.lpx.measure(
            "answer", prompt=self._prompts[task["name"]], settings=settings(task, temperature, mode)
        )
        token_ids = reply.pop("token_ids")
        self._compare(task, temperature, mode, runs.rounds, token_ids)
        runs.tokens = len(token_ids)
        return reply, usage

    def _peer_rate(self, task, side):
        reply, usage = self.peer.measure(
            "answer",
            prompt=self._prompts[task["name"]],
            max_tokens=task["max_tokens"],
            lookup=PEER_SIDES[side],
        )
        ms = reply["decode_ms"]
        return (1e3 * (len(reply["token_ids"]) - 1) / ms if ms else 0.0), usage

    def _measure_streams(self, kind, tasks, temperature):
        runs = StreamRuns(kind, temperature, len(tasks))
        prompts = [self._prompts[task["name"]] for task in tasks]

        def ask(mode):
            params = [settings(task, temperature, mode) for task in tasks]
            reply, usage = self.lpx.measure("answer_together", prompts=prompts, settings=params)
            for task, token_ids in zip(tasks, reply["token_ids"], strict=True):
                self._compare(task, temperature, f"{mode}, {len(tasks)} at once", len(runs.other_share), token_ids)
            return reply, usage

        for number in self._rounds(runs):
            replies, share = self._alternate(number, MODES, ask)
            if not all(reply["decode_tokens"] for reply in replies.values()):
                return  # all have ended before the last prompt was done
            for mode, reply in replies.items():
                runs.rates[mode].append(reply["decode_tokens"] / reply["decode_seconds"])
            runs.drafted += replies["auto"]["drafted"]
            runs.accepted += replies["auto"]["accepted"]
            runs.other_share.append(share)
            if not number:
                self.streams.append(runs)

    def _compare(self, task, temperature, mode, number, token_ids):
        """With the first answer to the task at this temperature, whatever its mode."""
        expected = self._answers.setdefault((task["name"], temperature), token_ids)
        position = first_difference(expected, token_ids)
        if position is None:
            return
        self.differences.append(
            {
                "kind": task["kind"],
                "name": task["name"],
                "temperature": temperature,
                "mode": mode,
                "round": number + 1,
                "position": position,
                "expected": expected[position] if position < len(expected) else "the end",
                "given": token_ids[position] if position < len(token_ids) else "the end",
            }
        )

    def result(self):
        options = self.options
        return {
            "model": options.model.name,
            "machine": {"processor": processor_name(), "cores": os.cpu_count()},
            "engines": self.engines,
            "rounds": options.rounds,
            "shared": options.shared,
            "complete": self.complete,
            "differences": self.differences,
            **as_json(self.runs, self.streams, options.quiet),
        }

    def described(self):
        if self.options.shared:
            return "texts of other requests searched, each task answered once"
        return f"medians of {self.options.rounds} rounds"

    def write(self):
        """Replaces `--output`, so that an interrupted run leaves what it had."""
        path = self.options.output
        if path:
            draft = path.with_name(path.name + ".part")
            draft.write_text(json.dumps(self.result(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            draft.replace(path)


def settings(task, temperature, mode):
    return {"max_tokens": task["max_tokens"], "temperature": temperature, "seed": SEED, "speculative": mode}


def tell(what):
    print(what, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
