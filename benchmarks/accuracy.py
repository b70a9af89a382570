"""How far LPX's next-token distributions are from a float32 reference on the same dequantized weights.

    python benchmarks/accuracy.py MODEL.gguf [MODEL.gguf ...] --cache FOLDER [--peer-python PEER_ENV/bin/python]

Mean Kullback-Leibler divergence KL(reference || engine) in nats and the share of positions with the same likeliest
token, over every position of the texts that LPX brings, in windows. With `--peer-python` (an interpreter that has
llama-cpp-python) llama.cpp is measured the same way: same ids, same windows, same reference. Needs `pip install gguf`.
"""

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
from gguf_reference import reference_log_probs
from workers.process import Worker

from lpx.options import EngineOptions
from lpx.quality import ScoredModel, bundled_texts, compare_logits, make_windows

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
    with ScoredModel(EngineOptions(str(path), threads=options.threads, isa=options.isa), options.window) as model:
        windows = make_windows(model.tokenizer, bundled_texts(), options.window)
        window_ids = [list(window.token_ids) for window in windows]
        reference = reference_log_probs(path, window_ids, options.cache)
        model.load()
        result = {"model": path.name, "tokens": sum(map(len, window_ids)), "isa": model.info.isa}
        blocks = (block for ids in window_ids for block in model.logits(ids))
        result["lpx"] = compare(windows, reference, blocks)
    if options.peer_python:
        with tempfile.TemporaryDirectory(dir=options.cache) as folder:
            file = Path(folder) / "peer.npy"
            with Worker("llama.cpp", options.peer_python, "llama_cpp_worker.py") as peer:
                threads = options.threads or 2
                loaded = peer.ask(
                    "load", model=str(path.resolve()), threads=threads, context=options.window, sequences=1
                )
                peer.ask("logprobs", windows=window_ids, path=str(file))
            result["peer_engine"] = loaded["engine"]
            rows = np.load(file, mmap_mode="r")
            result["peer"] = compare(windows, reference, (rows[at : at + 1] for at in range(len(rows))))
        result["ratio"] = result["lpx"]["kl"] / result["peer"]["kl"]
    result["passed"] = (
        result["lpx"]["kl"] <= LIMITS["kl"]
        and result["lpx"]["top1"] >= LIMITS["top1"]
        and result.get("ratio", 0) <= LIMITS["against_peer"]
    )
    return result


def compare(windows, reference, blocks):
    """Figures over all rows; `blocks` of logits or log-probabilities come in the order of `reference`."""

    def pairs():
        row = 0
        for block in blocks:
            yield reference[row : row + len(block)], block
            row += len(block)

    figures = compare_logits(windows, pairs())
    return {"kl": figures.kl, "kl_99th": figures.p99_kl, "top1": figures.top1}


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
