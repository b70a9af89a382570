"""How far LPX's next-token distributions are from a float32 reference on the same dequantized weights.

    python benchmarks/accuracy.py MODEL.gguf [MODEL.gguf ...] --cache FOLDER [--peer-python PEER_ENV/bin/python]

Mean Kullback-Leibler divergence KL(reference || engine) in nats and the share of positions with the same likeliest
token, over every position of the texts in `benchmarks/data`, in windows. With `--peer-python` (an interpreter that has
llama-cpp-python) llama.cpp is measured the same way: same ids, same windows, same reference. Needs `pip install gguf`.
"""

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
from gguf_reference import reference_log_probs
from lpx_rows import LpxRows
from workers.process import Worker

DATA = Path(__file__).parent / "data"
TEXTS = ("english.txt", "chinese.txt", "code.txt")
LIMITS = {"kl": 0.003, "top1": 0.98, "against_peer": 1.2}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--cache", type=Path, required=True, help="folder for the reference's log-probabilities")
    parser.add_argument("--peer-python", type=Path)
    parser.add_argument("--window", type=int, default=512, help="tokens seen at once")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--isa", help="LPX kernel set (default: the best)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    results = [measure(model, options) for model in options.models]
    if options.json:
        print(json.dumps({"limits": LIMITS, "models": results}, indent=1))
    else:
        print_table(results)
    raise SystemExit(0 if all(result["passed"] for result in results) else 1)


def measure(path, options):
    with LpxRows(path, options.window, options.threads, options.isa) as lpx:
        windows = make_windows(lpx, options.window)
        reference = reference_log_probs(path, windows, options.cache)
        result = {"model": path.name, "tokens": sum(map(len, windows)), "isa": lpx.isa}
        rows = (row for window in windows for row in lpx.log_probs(window))
        result["lpx"] = compare(reference, rows)
    if options.peer_python:
        with tempfile.TemporaryDirectory(dir=options.cache) as folder:
            file = Path(folder) / "peer.npy"
            with Worker("llama.cpp", options.peer_python, "llama_cpp_worker.py") as peer:
                threads = options.threads or 2
                loaded = peer.ask(
                    "load", model=str(path.resolve()), threads=threads, context=options.window, sequences=1
                )
                peer.ask("logprobs", windows=windows, path=str(file))
            result["peer_engine"] = loaded["engine"]
            result["peer"] = compare(reference, np.load(file, mmap_mode="r"))
        result["ratio"] = result["lpx"]["kl"] / result["peer"]["kl"]
    result["passed"] = (
        result["lpx"]["kl"] <= LIMITS["kl"]
        and result["lpx"]["top1"] >= LIMITS["top1"]
        and result.get("ratio", 0) <= LIMITS["against_peer"]
    )
    return result


def make_windows(lpx, size):
    """Ids of each text in pieces of `size`; a model that wants BOS gets it at the head of every piece."""
    windows = []
    for name in TEXTS:
        ids = lpx.encode((DATA / name).read_text(encoding="utf-8"))
        head = [lpx.bos_id] if lpx.add_bos else []
        step = size - len(head)
        windows += [head + ids[start : start + step] for start in range(0, len(ids), step)]
    return windows


def compare(reference, rows):
    """Figures over all rows of log-probabilities; `rows` yields them in the order of `reference`."""
    divergences, agreed, compared = [], 0, 0
    for expected, row in zip(reference, rows, strict=True):
        expected, row = expected.astype(np.float64), np.asarray(row, dtype=np.float64)
        divergences.append(float(np.exp(expected) @ (expected - row)))
        agreed += int(expected.argmax() == row.argmax())
        compared += 1
    return {
        "kl": float(np.mean(divergences)),
        "kl_99th": float(np.percentile(divergences, 99)),
        "top1": agreed / compared,
    }


def print_table(results):
    print(f"{'model':36} {'tokens':>6}  {'engine':10} {'mean KL':>9} {'99th':>8} {'top-1':>7}  KL / llama.cpp's")
    for result in results:
        for side, name in (("lpx", "LPX"), ("peer", "llama.cpp")):
            if side in result:
                figures = result[side]
                ratio = f"{result['ratio']:.2f}" if side == "lpx" and "ratio" in result else ""
                print(
                    f"{result['model'][:36]:36} {result['tokens']:6}  {name:10} {figures['kl']:9.6f} "
                    f"{figures['kl_99th']:8.5f} {figures['top1']:7.2%}  {ratio}"
                )
        print(
            f"{'':36} {'':6}  {'passed' if result['passed'] else 'NOT PASSED'} (KL <= {LIMITS['kl']}, top-1 >= "
            f"{LIMITS['top1']:.0%}, at most {LIMITS['against_peer']} times llama.cpp's KL)"
        )


if __name__ == "__main__":
    main()
