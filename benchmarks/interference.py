"""What arriving prompts cost a running stream: python benchmarks/interference.py MODEL.gguf

One stream decodes, alone and then while long prompts of other requests arrive once a second. Prints the time between
its tokens (tokens that come in one piece share the time since the piece before), the longest pieces, and how fast the
prompts get on. The bound is twice the undisturbed median plus the target of `--itl-target-ms`.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Callable
from time import perf_counter

from lpx.engine.engine import Engine
from lpx.engine.sampling_params import SamplingParams
from lpx.options import EngineOptions

STREAM = "stream"


def decode(engine: Engine, seconds: float, each_step: Callable[[float], None]) -> list[float]:
    """Milliseconds per token of the stream, one value a token."""
    times: list[float] = []
    start = last = perf_counter()
    while last - start < seconds:
        each_step(last - start)
        for delta in engine.step():
            if delta.request_id == STREAM and delta.token_ids:
                now = perf_counter()
                times += [1e3 * (now - last) / len(delta.token_ids)] * len(delta.token_ids)
                last = now
    return times


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=2000, help="of each prompt that arrives")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between arrivals")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each of the two parts")
    parser.add_argument("--itl-target-ms", type=float)
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()

    options = EngineOptions(args.model, threads=args.threads, max_model_len=8192, itl_target_ms=args.itl_target_ms)
    engine = Engine.load(options)
    while engine.use_idle_time():  # as a server does that waits for its first request
        pass
    rng = random.Random(0)

    def prompt(tokens: int) -> list[int]:
        return [rng.randrange(engine.vocab_size) for _ in range(tokens)]

    # Drafts would be verified beside the measured tokens in one part only.
    params = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True, speculative="off")
    engine.add_request(prompt(64), params, STREAM)
    while not engine.step():
        pass
    alone = decode(engine, args.seconds, lambda elapsed: None)

    arrived = 0
    before = engine.stats()
    rows = 0
    step = engine.executor.step

    def counting(batch):  # type: ignore[no-untyped-def]
        nonlocal rows
        rows += sum(len(sequence.token_ids) for sequence in batch.sequences) - 1  # one is the stream's
        return step(batch)

    engine.executor.step = counting  # type: ignore[method-assign]

    def arrive(elapsed: float) -> None:
        nonlocal arrived
        while arrived * args.every <= elapsed:
            engine.add_request(prompt(args.tokens), SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True))
            arrived += 1

    disturbed = decode(engine, args.seconds, arrive)
    target = engine.scheduler.pace.target_ms
    answered = engine.stats().finished_total["length"] - before.finished_total["length"]
    bound = 2 * statistics.median(alone) + target

    print(f"{engine.info.model}, {engine.info.isa}, {engine.info.threads} threads")
    print(f"prompts of {args.tokens} tokens, one every {args.every:g} s: {arrived} came, {answered} were answered")
    print(f"{rows / args.seconds:.0f} prompt rows a second")
    print(f"{'ms a token':14}{'median':>10}{'p90':>10}{'p99':>10}{'longest':>10}")
    for name, times in (("alone", alone), ("with prompts", disturbed)):
        figures = statistics.median(times), percentile(times, 0.9), percentile(times, 0.99), max(times)
        print(f"{name:14}" + "".join(f"{figure:10.1f}" for figure in figures))
    verdict = "within" if percentile(disturbed, 0.99) <= bound else "beyond"
    print(f"target {target:.1f} ms, bound {bound:.1f} ms: p99 is {verdict}")
    engine.abort_all()
    engine.close()


if __name__ == "__main__":
    main()
