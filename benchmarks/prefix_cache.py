"""What the prefix cache saves: python benchmarks/prefix_cache.py MODEL.gguf

Prints, as medians over fresh prompts, the time to the first token of a prompt of 1,000 tokens and of the same prompt
again, and how many prompt rows 16 requests with the same prompt compute when they come at once, against one.
"""

from __future__ import annotations

import argparse
import random
import statistics

from lpx.engine.engine import Engine
from lpx.engine.sampling_params import SamplingParams
from lpx.options import EngineOptions
from lpx.runtime.step import StepBatch, StepResult

FIRST_TOKEN = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)


class RowCounter:
    """Stands between the engine and its executor and counts the rows of all steps."""

    def __init__(self, engine: Engine) -> None:
        self.rows = 0
        self._step = engine.executor.step
        engine.executor.step = self._count  # type: ignore[method-assign]

    def _count(self, batch: StepBatch) -> StepResult:
        self.rows += sum(len(sequence.token_ids) for sequence in batch.sequences)
        return self._step(batch)


def run(engine: Engine, counter: RowCounter, prompts: list[list[int]]) -> tuple[float, int]:
    """Milliseconds from the arrival to the last first token, and rows that were computed."""
    before = counter.rows
    for prompt in prompts:
        engine.add_request(prompt, FIRST_TOKEN)
    ttft = []
    while engine.has_work:
        for delta in engine.step():
            assert delta.timings is not None, delta.error
            ttft.append(delta.timings.ttft_ms)
    return max(ttft), counter.rows - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=1000)
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()

    engine = Engine.load(EngineOptions(args.model, threads=args.threads, max_model_len=2 * args.tokens))
    rng = random.Random(0)

    def fresh() -> list[int]:
        return [rng.randrange(engine.vocab_size) for _ in range(args.tokens)]

    counter = RowCounter(engine)
    run(engine, counter, [fresh()])  # touches the weights and starts the threads
    firsts, seconds, single_rows, together_rows, together = [], [], [], [], []
    for _ in range(args.repeats):
        prompt = fresh()
        first, rows = run(engine, counter, [prompt])
        second, _ = run(engine, counter, [prompt])
        firsts.append(first)
        seconds.append(second)
        single_rows.append(rows)
        ms, rows = run(engine, counter, [fresh()] * args.requests)
        together.append(ms)
        together_rows.append(rows)
    ratio = statistics.median(b / a for a, b in zip(firsts, seconds, strict=True))
    work = statistics.median(together_rows) / statistics.median(single_rows)
    many = f"{args.requests} at once"
    print(f"{engine.info.model}, {engine.info.isa}, {engine.info.threads} threads, prompts of {args.tokens} tokens")
    print(f"{'':14}{'first token ms':>16}{'prompt rows':>14}{'against one':>14}")
    print(f"{'first time':14}{statistics.median(firsts):16.1f}{statistics.median(single_rows):14.0f}{'':>14}")
    print(f"{'again':14}{statistics.median(seconds):16.1f}{'':>14}{ratio:14.1%}")
    print(f"{many:14}{statistics.median(together):16.1f}{statistics.median(together_rows):14.0f}{work:14.2f}")
    engine.close()


if __name__ == "__main__":
    main()
