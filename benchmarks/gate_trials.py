"""How often `lpx bench gate` is right on this machine: tries with an unchanged build, and with real slow-downs.

    python benchmarks/gate_trials.py MODEL.gguf [--tries 10] [--seconds 40] [--context 480] [--alternating]

Two baselines are measured first: short prompts, and a long context with keys and values in q8. Then come, in turns,
tries of the gate that must pass (the same again) and tries that must fail: one thread fewer, and f16 instead of q8 at
the long context. Prints a line a try and a table; ends with 1 when fewer than 9 of 10 tries of a kind were right.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

OUTCOMES = {0: "passed", 1: "failed", 2: "cannot judge"}


def main():
    options = parse_arguments()
    with tempfile.TemporaryDirectory() as folder:
        ledger = Path(folder) / "ledger.sqlite"
        threads = options.threads or default_threads()
        engine = ["--model", str(options.model.resolve()), "--max-model-len", str(options.context + 512)]
        set_baseline(ledger, options, "short", [*engine, "--threads", str(threads)])
        long_context = ["--kv-cache-dtype", "q8", "--input-len", str(options.context), "--output-len", "256"]
        set_baseline(ledger, options, "long", [*engine, "--threads", str(threads), *long_context])
        kinds = {
            "unchanged, short prompts": ("short", [], 0),
            f"unchanged, context of {options.context}": ("long", [], 0),
            f"KV f16 for q8, context of {options.context}": ("long", ["--set", "kv_cache_dtype=f16"], 1),
        }
        if threads > 1:
            kinds[f"{threads - 1} of {threads} threads"] = ("short", ["--set", f"threads={threads - 1}"], 1)
        kinds = {kind: what for kind, what in kinds.items() if options.only in kind or kind.startswith("unchanged")}
        found = {kind: Counter() for kind in kinds}
        changes = {kind: [] for kind in kinds}
        for number in range(options.tries):
            for kind, (baseline, changed, _) in kinds.items():
                # An unchanged try of either baseline is half of the unchanged tries.
                if kind.startswith("unchanged") and number % 2 != (baseline == "long"):
                    continue
                code, seconds, report = run_gate(ledger, options, baseline, changed)
                found[kind][code] += 1
                (condition,) = report["conditions"] if report else ({},)
                change = condition.get("change")
                if change is not None:
                    changes[kind].append(100 * change)
                shown = "" if change is None else f"{100 * change:+6.1f} %"
                print(f"{kind:<34}{OUTCOMES.get(code, code):<14}{shown:<10}{seconds:5.1f} s", flush=True)
    sys.exit(print_table(kinds, found, changes))


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=Path, help="a GGUF file")
    parser.add_argument("--tries", type=int, default=10, help="of each slow-down, and of the unchanged build in all")
    parser.add_argument("--seconds", type=float, default=40.0, help="of each gate, at most")
    parser.add_argument("--baseline-seconds", type=float, default=40.0)
    parser.add_argument("--context", type=int, default=480, help="tokens of the long prompt")
    parser.add_argument("--threads", type=int, help="default: the physical cores")
    parser.add_argument("--fail-on", default="decode:-5%")
    parser.add_argument("--only", default="", help="of the slow-downs, those whose name holds this: KV or threads")
    parser.add_argument(
        "--alternating", action="store_true", help="with --against: the unchanged LPX is the other side"
    )
    parser.add_argument("--most-others", default="15", help="percent of the processors that others may use")
    return parser.parse_args()


def default_threads():
    from lpx.runtime.cpu.topology import default_threads as of_the_engine

    return of_the_engine()


def set_baseline(ledger, options, name, arguments):
    started = time.monotonic()
    command = ["baseline", "set", name, *arguments, "--duration", str(options.baseline_seconds)]
    done = lpx(ledger, [*command, "--most-others", options.most_others])
    if done.returncode:
        raise SystemExit(done.stderr.strip())
    print(f"baseline {name}: {time.monotonic() - started:.0f} s", flush=True)


def run_gate(ledger, options, baseline, changed):
    started = time.monotonic()
    command = [
        "gate",
        "--baseline",
        baseline,
        "--fail-on",
        options.fail_on,
        "--duration",
        str(options.seconds),
        *changed,
    ]
    if options.alternating:
        command += ["--against", "lpx"]
    done = lpx(ledger, [*command, "--most-others", options.most_others, "--json", "--no-ledger"])
    if not done.stdout:
        print(done.stderr.strip(), file=sys.stderr)
        if done.returncode != 2:  # not the gate's word
            raise SystemExit(f"lpx ended with exit code {done.returncode} and no report")
    return done.returncode, time.monotonic() - started, json.loads(done.stdout) if done.stdout else None


def lpx(ledger, arguments):
    command = [sys.executable, "-m", "lpx", "bench", *arguments, "--ledger", str(ledger)]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ)


def print_table(kinds, found, changes):
    print(f"\n{'':<34}{'right':>7}{'wrong':>7}{'cannot judge':>14}{'change, median':>16}")
    right, tries = {0: 0, 1: 0}, {0: 0, 1: 0}  # by the exit code that was wanted
    enough = True
    for kind, (_, _, wanted) in kinds.items():
        counts, total = found[kind], sum(found[kind].values())
        middle = sorted(changes[kind])[len(changes[kind]) // 2] if changes[kind] else float("nan")
        wrong = total - counts[wanted] - counts[2]
        print(f"{kind:<34}{counts[wanted]:>4}/{total:<2}{wrong:>7}{counts[2]:>14}{middle:>14.1f} %")
        right[wanted] += counts[wanted]
        tries[wanted] += total
        enough = enough and (not wanted or counts[1] >= 0.9 * total)
    return 0 if enough and right[0] >= 0.9 * tries[0] else 1


if __name__ == "__main__":
    main()
