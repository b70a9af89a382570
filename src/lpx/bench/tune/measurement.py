"""A comparison as a measurement: for the ledger, and to be made again."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from time import perf_counter
from typing import TYPE_CHECKING, Any

from lpx.bench.engine_settings import options_from, settings_of
from lpx.bench.engine_subject import engine_subject
from lpx.bench.measurement import Measurement
from lpx.bench.statistics import summary
from lpx.bench.tune.comparison import Comparison, compare, warm_up
from lpx.bench.tune.goal import Slo
from lpx.bench.tune.workload import Workload, joined

if TYPE_CHECKING:
    from lpx.engine.outputs import EngineInfo
    from lpx.options import EngineOptions

_ROUNDS_AGAIN = 5


def comparison_measurement(
    found: Comparison,
    *,
    best: EngineOptions,
    candidate: EngineOptions,
    in_use: EngineInfo,
    workload: Workload,
    started: datetime,
    seconds: float,
) -> Measurement:
    """`candidate` measured against `best`; `in_use` is what the candidate really runs with."""
    ttft = joined([done.ttft_ms for done in found.candidate.rounds])
    itl = joined([done.itl_ms for done in found.candidate.rounds])
    figures = {
        "speed_ratio": found.ratio.estimate,
        **summary("ttft_ms", ttft),
        **summary("itl_ms", itl),
        "output_tokens_per_second": sum(done.tokens for done in found.candidate.rounds)
        / sum(done.seconds for done in found.candidate.rounds),
        "best_output_tokens_per_second": sum(done.tokens for done in found.best.rounds)
        / sum(done.seconds for done in found.best.rounds),
    }
    if not found.hopeless:  # after a round or two there is no interval to speak of
        figures |= {"speed_ratio_low": found.ratio.low, "speed_ratio_high": found.ratio.high}
    return Measurement(
        kind="tune",
        subject=engine_subject(in_use),
        settings={"best": settings_of(best), "candidate": settings_of(candidate), "workload": workload.to_json()},
        figures=figures,
        samples={
            "score": tuple(found.candidate.scores),
            "best_score": tuple(found.best.scores),
            "ttft_ms": tuple(ttft),
            "itl_ms": tuple(itl),
        },
        batch_size=workload.concurrency,
        output_len=workload.max_tokens,
        started=started,
        seconds=seconds,
    )


def measure_tune_again(settings: Mapping[str, Any]) -> Measurement:
    """Compare the two sides of a step once more. Raises ConfigError, and what loading raises."""
    from lpx.engine.engine import Engine

    best, candidate = options_from(settings["best"]), options_from(settings["candidate"])
    workload = Workload(**settings["workload"])
    started, begun = datetime.now(timezone.utc), perf_counter()
    engines: list[Engine] = []
    try:
        for options in (best, candidate):
            engines.append(Engine.load(options))
            warm_up(engines[-1], workload)
        found = compare(engines[0], engines[1], workload, slo=Slo(), most_rounds=_ROUNDS_AGAIN)
        return comparison_measurement(
            found,
            best=best,
            candidate=candidate,
            in_use=engines[1].info,
            workload=workload,
            started=started,
            seconds=perf_counter() - begun,
        )
    finally:
        for engine in engines:
            engine.close()
