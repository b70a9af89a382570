"""`lpx quantize` against rounding to nearest and llama.cpp's quantizer, with the same type for every tensor.

    python benchmarks/quantize.py MODEL.gguf [MODEL.gguf ...] --peer-python PYTHON [--types Q4_K_M ...] [--json]

Each model is dequantized to F16 first. llama.cpp quantizes that to a file type of its own, without an importance matrix
and with LPX's; LPX then makes files in which every tensor has the type that llama.cpp chose, by rounding to nearest and
by its own search. So all files of a row group have the same number of bytes of tensors. KL is that of the F16 file's
next-token distributions to the quantized file's, over LPX's bundled texts (which are not those it calibrates on), with
the quantized weights run as F16, so that nothing but the weights differs.

A file that was quantized once is an easy source: its weights lie on the grid that they are rounded to again, and
whoever finds the grid loses nothing. `--source perturbed` moves every weight within half a step of its grid first, to
where it may have been before it was quantized. `dequantized` takes the weights as they are.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.reference.gguf_variants import unquantized, write_variant

from lpx.model.files import open_model
from lpx.model.gguf_shards import open_shards
from lpx.model.tokenizer import load_tokenizer
from lpx.options import EngineOptions
from lpx.quality import ScoredModel, bundled_texts, compare_distributions, make_windows, spread
from lpx.quantize.importance import calibration_texts, measure_importance
from lpx.quantize.job import QuantizeSettings, quantize
from lpx.quantize.source import open_source

WORKER = Path(__file__).parent / "workers/llama_cpp_quantize.py"
LOADER = WORKER.with_name("llama_cpp_loads.py")
PROMPT = "The capital of France is"
METHODS = ("nearest", "llama.cpp", "llama.cpp + importance", "lpx, no calibration", "lpx")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--peer-python", required=True, help="the interpreter that has llama-cpp-python")
    parser.add_argument("--types", nargs="+", default=["Q4_K_M"], metavar="FTYPE", help="llama.cpp's, such as Q4_0")
    parser.add_argument(
        "--source", nargs="+", default=["dequantized", "perturbed"], choices=["dequantized", "perturbed"]
    )
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    parser.add_argument("--windows", type=int, help="of 512 tokens, spread over the texts; default: all")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="where files are made; default: a temporary one")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        for model in args.models:
            for kind in args.source:
                rows += compare(model, kind, Path(folder), args)
    if args.json:
        print(json.dumps(rows))


def compare(model, kind, folder, args):
    rows = []
    source = folder / "source.gguf"
    make_source(model, kind, source)
    with open_model(source) as files:
        measured = measure_importance(files, load_tokenizer(files), calibration_texts(None), threads=args.threads)
    importance = folder / "importance.npz"
    with open_source(source) as opened:
        np.savez(importance, **{
            tensor.name: measured.of(tensor.input_name)
            for tensor in opened.tensors
            if tensor.input_name and measured.of(tensor.input_name) is not None
        })  # fmt: skip
    options = EngineOptions(model=str(source), threads=args.threads, measure_steps=False)
    with ScoredModel(options, 512) as reference:
        windows = spread(make_windows(reference.tokenizer, bundled_texts(), 512), args.windows)
        reference.load()
        for ftype in args.types:
            types = None
            for method in ("llama.cpp", *(m for m in args.methods if m != "llama.cpp")):
                target = folder / "quantized.gguf"
                target.unlink(missing_ok=True)
                began = time.perf_counter()
                make(method, source, target, ftype, types, importance, args)
                seconds = time.perf_counter() - began
                if method == "lpx":
                    check_llama_cpp_reads(target, args.peer_python)
                if types is None:
                    files, _, tensors = open_shards(target)
                    types = {tensor.name: tensor.type.name for tensor in tensors.values()}
                    for file in files:
                        file.close()
                if method in args.methods:
                    rows.append(score(model, kind, ftype, method, target, reference, windows, seconds, args))
    source.unlink()
    return rows


def make_source(model, kind, source):
    if kind == "perturbed":
        write_variant(model, source, unquantized)
    else:
        quantize(QuantizeSettings(model, source, "f16", check=False, allow_requantize=True))


def make(method, source, target, ftype, types, importance, args):
    if method.startswith("llama.cpp"):
        command = [args.peer_python, WORKER, source, target, ftype]
        command += [importance] if method.endswith("importance") else []
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return
    settings = QuantizeSettings(
        source, target, types=types, check=False, threads=args.threads,
        search=method != "nearest", calibrate=method == "lpx",
    )  # fmt: skip
    quantize(settings)


def check_llama_cpp_reads(path, peer_python):
    """Fail unless llama.cpp loads the file and says something."""
    said = subprocess.run([peer_python, LOADER, path, PROMPT], check=True, capture_output=True, text=True).stdout
    if not (said := said.strip()):
        sys.exit(f"llama.cpp says nothing with {path}")
    print(f"llama.cpp reads the file of lpx: {PROMPT} {said!r}", file=sys.stderr)


def score(model, kind, ftype, method, target, reference, windows, seconds, args):
    options = EngineOptions(model=str(target), threads=args.threads, measure_steps=False)
    with ScoredModel(options, 512, dequantize=True) as subject:
        found = compare_distributions(subject, reference, windows)
    row = {
        "model": model.stem, "source": kind, "types": ftype, "method": method, "mb": target.stat().st_size / 1e6,
        "kl": found.kl, "kl_low": found.kl_interval[0], "kl_high": found.kl_interval[1], "top1": found.top1,
        "ppl_change": found.ppl_change, "seconds": seconds, "positions": found.positions,
    }  # fmt: skip
    print(
        f"| {row['model']} | {kind} | {ftype} | {method} | {row['mb']:.1f} | {found.kl:.5f} "
        f"({row['kl_low']:.5f} to {row['kl_high']:.5f}) | {found.top1:.2%} | {found.ppl_change:+.2%} | {seconds:.0f} |",
        flush=True, file=sys.stderr if args.json else sys.stdout,
    )  # fmt: skip
    return row


if __name__ == "__main__":
    main()
