"""Perplexity by LPX and by llama.cpp, on the same files and texts, by the rule of `llama-perplexity`.

    python benchmarks/perplexity.py MODEL.gguf [MODEL.gguf ...] --peer-python PEER_ENV/bin/python [--text FILE]

Each side makes its own token ids and its own windows; llama.cpp's windows are made here, by the rule as llama.cpp
documents it in its source (tools/perplexity): pieces of n_ctx ids, BOS in place of the first of each where the model
wants it, the second half scored, what is left over not. PEER_ENV is an environment that has llama-cpp-python.

Both engines round activations to 8 bits, each in its own way. With `--exact` LPX also runs the same weights as F16,
with activations in floats: that shows which side an 8-bit difference is on.
"""

import argparse
import json
import math
from pathlib import Path

from workers.process import Worker

from lpx.options import EngineOptions
from lpx.quality import ScoredModel, bundled_texts, make_windows, measure_perplexity, read_texts

LIMIT = 0.01  # relative difference


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--peer-python", type=Path, required=True)
    parser.add_argument("--text", nargs="+", type=Path, default=[], help="default: the texts that LPX brings")
    parser.add_argument("--context", type=int, default=512, help="n_ctx")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--exact", action="store_true", help="also measure the weights as F16")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    texts = read_texts(options.text) if options.text else bundled_texts()
    results = [measure(model, texts, options) for model in options.models]
    if options.json:
        print(json.dumps({"limit": LIMIT, "models": results}, indent=1))
    else:
        print_table(results)
    raise SystemExit(0 if all(result["passed"] for result in results) else 1)


def measure(path, texts, options):
    lpx_options = EngineOptions(str(path), threads=options.threads)
    with ScoredModel(lpx_options, options.context) as model:
        windows = [w for w in make_windows(model.tokenizer, texts, options.context) if w.scored_rows]
        lpx = measure_perplexity(model, windows)
        bos = model.tokenizer.bos_id
    exact = None
    if options.exact:
        with ScoredModel(lpx_options, options.context, dequantize=True) as model:
            exact = measure_perplexity(model, windows).ppl
    with Worker("llama.cpp", options.peer_python, "llama_cpp_worker.py") as peer:
        loaded = peer.ask(
            "load",
            model=str(path.resolve()),
            threads=options.threads,
            context=options.context,
            sequences=1,
            batch=options.context,
        )
        pieces = []
        for text in texts:
            made = peer.ask("tokenize", text=text.content)
            pieces += cut(made["ids"], options.context, bos if made["bos"] else None)
        first = options.context // 2
        losses = peer.ask("losses", windows=pieces, scored=[[first, options.context - 1]] * len(pieces))["losses"]
    peer_ppl = math.exp(sum(losses) / len(losses))
    return {
        "model": path.name,
        "engine": loaded["engine"],
        "tokens": len(losses),
        "lpx_tokens": lpx.scored,
        "lpx": lpx.ppl,
        "exact": exact,
        "peer": peer_ppl,
        "difference": lpx.ppl / peer_ppl - 1,
        "passed": lpx.scored == len(losses) and abs(lpx.ppl / peer_ppl - 1) <= LIMIT,
    }


def cut(ids, size, bos):
    pieces = [ids[start : start + size] for start in range(0, len(ids) - size + 1, size)]
    return [piece if bos is None else [bos, *piece[1:]] for piece in pieces]


def print_table(results):
    print(f"{'model':42} {'tokens':>6} {'F16':>9} {'LPX':>9} {'llama.cpp':>9}  difference")
    for result in results:
        exact = "" if result["exact"] is None else f"{result['exact']:.4f}"
        print(
            f"{result['model'][:42]:42} {result['tokens']:6} {exact:>9} {result['lpx']:9.4f} {result['peer']:9.4f}  "
            f"{result['difference']:+.3%}  {'passed' if result['passed'] else 'NOT PASSED'}"
        )
    print(f"llama.cpp: {results[0]['engine']}; at most {LIMIT:.0%} apart, on as many tokens")


if __name__ == "__main__":
    main()
