"""What the types of the KV cache cost in quality and bring in speed and memory, against f16.

    python benchmarks/kv_cache.py MODEL.gguf [MODEL.gguf ...] [--types bf16,q8,...] [--json] [--update-table]

Quality: mean KL(f16 || type) in nats and the share of positions with the same likeliest token, over every position of
the texts that LPX brings, in windows; on weights that were dequantized, for int8 activations turn any change of
rounding into a difference of their own (`--own-weights` measures with that). Speed: decoding one stream behind
`--context` tokens, in rounds in which the types take turns; the ratio is the median over the rounds of type / f16 in
the same round. `--update-table` writes the figures of the types with q4 into the table that is shown at start-up.
"""

import argparse
import dataclasses
import json
import statistics
import time
from pathlib import Path

import numpy as np

from lpx.model.files import open_model
from lpx.options import EngineOptions
from lpx.quality import ScoredModel, bundled_texts, compare_distributions, make_windows, spread
from lpx.runtime.cpu.executor import CpuExecutor
from lpx.runtime.kv_quality import KvQuality, read_table
from lpx.runtime.options import RuntimeOptions
from lpx.runtime.step import SamplerSettings, SequenceInput, StepBatch

REFERENCE = "f16"
TYPES = ("bf16", "q8", "q8,q4", "q4")
TABLE = Path(__file__).parents[1] / "src/lpx/runtime/kv_quality.json"
LIMITS = {"q8_kl": 0.001}
PREFILL_ROWS = 512


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--types", nargs="+", default=TYPES, metavar="TYPE", help=f"default: {' '.join(TYPES)}")
    parser.add_argument("--window", type=int, default=512, help="tokens seen at once, for quality")
    parser.add_argument("--windows", type=int, help="windows that are compared, spread over the texts; default: all")
    parser.add_argument("--context", type=int, default=4096, help="tokens before those that are timed; 0: no timing")
    parser.add_argument("--tokens", type=int, default=32, help="timed tokens of a round")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--isa", help="LPX kernel set (default: the best)")
    parser.add_argument("--no-quality", action="store_true", help="only time")
    parser.add_argument("--own-weights", action="store_true", help="quality with the weights as the file holds them")
    parser.add_argument("--update-table", action="store_true", help=f"write {TABLE.name}")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    types = [REFERENCE, *(kind for kind in options.types if kind != REFERENCE)]
    results = []
    for model in options.models:
        results.append(measure(model, types, options))
        if options.update_table:
            update_table(results[-1:])
    if options.json:
        print(json.dumps({"limits": LIMITS, "models": results}, indent=1))
    else:
        print_table(results)
    raise SystemExit(0 if all(result["passed"] for result in results) else 1)


def measure(path, types, options):
    with open_model(path) as files:
        config = files.config
    result = {
        "model": path.name,
        "architecture": config.architecture,
        "num_layers": config.num_layers,
        "hidden_size": config.hidden_size,
        "threads": options.threads,
        "types": {kind: {} for kind in types},
    }
    if not options.no_quality:
        for kind, figures in quality(path, types, options).items():
            result["types"][kind].update(figures)
    if options.context:
        result["context"] = options.context
        for kind, figures in speed(path, types, options).items():
            result["types"][kind].update(figures)
    result["passed"] = result["types"].get("q8", {}).get("kl", 0.0) <= LIMITS["q8_kl"]
    return result


def quality(path, types, options):
    """Figures of each type against the reference type, which stays loaded."""
    figures = {}
    dequantize = not options.own_weights
    shared = {"threads": options.threads, "isa": options.isa}
    of_type = {kind: EngineOptions(str(path), kv_cache_dtype=kind, **shared) for kind in types}
    with ScoredModel(of_type[REFERENCE], options.window, dequantize=dequantize) as reference:
        windows = spread(make_windows(reference.tokenizer, bundled_texts(), options.window), options.windows)
        reference.load()
        for kind in types[1:]:
            found = compare_distributions(
                of_type[kind], reference, windows, window=options.window, dequantize=dequantize
            )
            figures[kind] = {"positions": found.positions, "kl": found.kl, "top1": found.top1}
    return figures


def speed(path, types, options):
    """Bytes of a token and decode speed of each type."""
    streams = {kind: LongStream(path, kind, options) for kind in types}
    measured = {kind: [] for kind in types}
    try:
        for stream in streams.values():
            stream.decode()  # warm-up
        for number in range(options.rounds):
            order = list(types) if number % 2 == 0 else list(reversed(types))
            for kind in order:
                measured[kind].append(streams[kind].decode())
    finally:
        for stream in streams.values():
            stream.executor.close()
    return {
        kind: {
            "bytes_per_token": streams[kind].bytes_per_token,
            "tokens_per_second": statistics.median(values),
            "ratio": statistics.median(
                value / reference for value, reference in zip(values, measured[REFERENCE], strict=True)
            ),
            "rounds": values,
        }
        for kind, values in measured.items()
    }


class LongStream:
    """An executor whose cache holds one long sequence; `decode` goes on from its end, again and again."""

    def __init__(self, path, kind, options):
        self.context, self.tokens = options.context, options.tokens
        length = options.context + options.tokens + 1
        with open_model(path, max_model_len=length) as files:
            self.executor = CpuExecutor.load(
                files,
                RuntimeOptions(
                    threads=options.threads,
                    isa=options.isa,
                    kv_cache_dtype=kind,
                    max_model_len=length,
                    max_num_seqs=1,
                    max_num_batched_tokens=PREFILL_ROWS,
                ),
            )
            ids = np.random.default_rng(1).integers(files.config.vocab_size // 2, size=options.context).tolist()
        info = self.executor.info
        self.bytes_per_token = info.kv_bytes / (info.num_blocks * info.block_size)
        self.blocks = list(range(info.num_blocks))
        for start in range(0, len(ids), PREFILL_ROWS):
            self._step(ids[start : start + PREFILL_ROWS], start, sample_rows=0)

    def decode(self):
        """Tokens per second of `tokens` greedy steps."""
        started = time.perf_counter()
        result = self._step([1], self.context, sample_rows=1, more_steps=self.tokens - 1)
        seconds = time.perf_counter() - started
        assert len(result.sequences[0].sampled_ids) == self.tokens
        return self.tokens / seconds

    def _step(self, ids, start, sample_rows, more_steps=0):
        sequence = SequenceInput(ids, start, self.blocks, sample_rows, SamplerSettings() if sample_rows else None)
        return self.executor.step(StepBatch([sequence], more_steps=more_steps))


def update_table(results):
    """Rows of the models and types that were measured replace those in the table."""
    fresh = [
        KvQuality(
            model=result["model"],
            **{name: result[name] for name in ("architecture", "num_layers", "hidden_size")},
            kv_cache_dtype=kind,
            kl=round(figures["kl"], 5),
            top1=round(figures["top1"], 4),
        )
        for result in results
        for kind, figures in result["types"].items()
        if "kl" in figures and "q4" in kind.split(",")
    ]

    def key(row):
        return row.architecture, row.num_layers, row.hidden_size, row.kv_cache_dtype

    rows = {key(row): row for row in [*read_table(TABLE), *fresh]}
    lines = [json.dumps(dataclasses.asdict(rows[at])) for at in sorted(rows)]
    TABLE.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


def print_table(results):
    print(f"{'model':36} {'KV type':9} {'mean KL':>9} {'top-1':>8} {'bytes/token':>11} {'tokens/s':>9}  x f16")
    for result in results:
        for kind, figures in result["types"].items():
            kl = f"{figures['kl']:9.6f} {figures['top1']:8.2%}" if "kl" in figures else f"{'':9} {'':8}"
            timed = (
                f"{figures['bytes_per_token']:11.0f} {figures['tokens_per_second']:9.1f}  {figures['ratio']:.2f}"
                if "ratio" in figures
                else ""
            )
            print(f"{result['model'][:36]:36} {kind:9} {kl} {timed}")
        context = (
            f"; speed behind {result['context']} tokens, {result['threads']} threads" if "context" in result else ""
        )
        print(f"{'':36} {'passed' if result['passed'] else 'NOT PASSED'} (q8 KL <= {LIMITS['q8_kl']}){context}")


if __name__ == "__main__":
    main()
