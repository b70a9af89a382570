"""Short lines through `lpx batch run`'s own path against the engine alone, in turns, on one engine.

    python benchmarks/batch_throughput.py MODEL.gguf [--lines 10000] [--rounds 4] [--json]

The engine alone is `LLM.generate` on the same prompts with as many sequences at once (16): no file, no JSON, no
checks of a request, one thread of Python. A batch reads its file, goes through every route and check of the server, and
writes results that survive a kill. Each round runs a share of the lines in both ways; the figure is tokens of answers
per second, and the limit is the share of the engine's speed that the batch must reach.
"""

import argparse
import json
import random
import statistics
import tempfile
import time
from pathlib import Path

from lpx.batch.file_run import FilePlan, FileRun
from lpx.batch.input_file import MAX_LINE_BYTES
from lpx.batch.runner import RunSettings
from lpx.engine import LLM, SamplingParams
from lpx.engine.async_engine import AsyncEngine
from lpx.engine.engine import Engine
from lpx.options import EngineOptions
from lpx.server.http_protocol import run_on_new_loop
from lpx.server.in_process import engine_target

LIMIT = 0.9
SEQUENCES = 16
WORDS = "river stone paper winter light house garden music 城市 天气 学习 code table bridge morning".split()  # noqa: SIM905


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--lines", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--max-inflight", type=int, default=32)
    parser.add_argument("--speculation", default="auto", help="method of drafting, for both")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    chance = random.Random(7)
    share = options.lines // options.rounds
    rounds = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.rounds):
            prompts = [prompt_of(chance) for _ in range(share)]
            ways = {"engine": engine_alone, "batch": through_batch}
            order = list(ways) if number % 2 == 0 else list(ways)[::-1]
            rates = {way: ways[way](prompts, options, Path(folder) / f"{number}") for way in order}
            rates["ratio"] = rates["batch"] / rates["engine"]
            rounds.append(rates)
            if not options.json:
                print(
                    f"round {number + 1}: engine {rates['engine']:8.1f} tokens/s   batch {rates['batch']:8.1f} tokens/s"
                    f"   {100 * rates['ratio']:5.1f} %",
                    flush=True,
                )
    ratio = statistics.median(each["ratio"] for each in rounds)
    passed = ratio >= LIMIT
    if options.json:
        print(json.dumps({"limit": LIMIT, "ratio": ratio, "passed": passed, "rounds": rounds}, indent=1))
    else:
        print(
            f"median {100 * ratio:.1f} % of the engine alone, limit {100 * LIMIT:.0f} %: {'ok' if passed else 'FAILED'}"
        )
    raise SystemExit(0 if passed else 1)


def prompt_of(chance):
    return "Write one sentence about " + " and ".join(chance.choices(WORDS, k=chance.randint(2, 6))) + "."


def engine_options(options):
    return EngineOptions(
        model=options.model,
        max_model_len=512,
        max_num_seqs=SEQUENCES,
        speculative_config={"method": options.speculation},
    )


def engine_alone(prompts, options, _):
    params = SamplingParams(temperature=0.0, max_tokens=options.max_tokens, ignore_eos=True)
    with LLM.from_engine(Engine.load(engine_options(options))) as llm:
        llm.generate(prompts[:SEQUENCES], params, use_tqdm=False)
        begin = time.perf_counter()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - begin
    return sum(len(output.outputs[0].token_ids) for output in outputs) / seconds


def through_batch(prompts, options, stem):
    source, output = stem.with_suffix(".in.jsonl"), stem.with_suffix(".out.jsonl")
    fields = {"temperature": 0, "max_tokens": options.max_tokens, "ignore_eos": True}
    with source.open("w", encoding="utf-8") as file:
        for index, prompt in enumerate(prompts):
            body = {"prompt": prompt, **fields}
            line = {"custom_id": f"{index}", "method": "POST", "url": "/v1/completions", "body": body}
            file.write(json.dumps(line, ensure_ascii=False) + "\n")

    async def work():
        async with engine_target(engine, MAX_LINE_BYTES) as target:
            with FileRun(FilePlan(source, output)) as files:
                begin = time.perf_counter()
                await files.run(target, RunSettings(max_inflight=options.max_inflight))
                seconds = time.perf_counter() - begin
                assert files.progress.succeeded == len(prompts), files.progress.as_json()
                return files.progress.completion_tokens / seconds

    engine = AsyncEngine.start(Engine.load(engine_options(options)))
    return run_on_new_loop(work())


if __name__ == "__main__":
    main()
