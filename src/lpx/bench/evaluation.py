"""An evaluation as a measurement: its settings and figures, for the ledger, and the way to make it again."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from lpx.bench.engine_settings import options_from, settings_of
from lpx.bench.measurement import Measurement, Subject

if TYPE_CHECKING:
    from lpx.quality.evaluation import EvalSettings, Evaluation


def evaluation_settings(settings: EvalSettings) -> dict[str, Any]:
    """JSON values from which `evaluation_settings_from` makes the same settings."""
    return {
        "engine": settings_of(settings.subject),
        "reference": None if settings.reference is None else settings_of(settings.reference),
        "texts": [str(path.absolute()) for path in settings.texts],
        "window": settings.window,
        "windows": settings.windows,
        "checks": list(settings.checks),
        "runs": settings.runs,
        "review_set": None if settings.review_set is None else str(settings.review_set.absolute()),
        "own_weights": settings.own_weights,
    }


def evaluation_settings_from(values: Mapping[str, Any]) -> EvalSettings:
    """Raises ConfigError for wrong values."""
    from lpx.errors import ConfigError
    from lpx.quality.evaluation import EvalSettings

    try:
        return EvalSettings(
            subject=options_from(values["engine"]),
            reference=None if values.get("reference") is None else options_from(values["reference"]),
            texts=tuple(map(Path, values["texts"])),
            window=values["window"],
            windows=values["windows"],
            checks=tuple(values["checks"]),
            runs=values["runs"],
            review_set=None if values.get("review_set") is None else Path(values["review_set"]),
            own_weights=values["own_weights"],
        )
    except (KeyError, TypeError) as error:
        raise ConfigError(f"these are not the settings of an evaluation: {error!r}") from error


def evaluation_measurement(
    settings: EvalSettings, evaluation: Evaluation, started: datetime, seconds: float
) -> Measurement:
    """The figures of `evaluation`; perplexity, the headline, comes first."""
    from lpx import __version__

    in_use = evaluation.subject.in_use
    return Measurement(
        kind="eval",
        subject=Subject(
            model=in_use.model,
            engine="lpx",
            engine_version=__version__,
            quantization=in_use.quantization or None,
            kv_cache_dtype=in_use.kv_cache_dtype or None,
            device=in_use.device or None,
            isa=in_use.isa or None,
            threads=in_use.threads or None,
        ),
        settings=evaluation_settings(settings),
        figures=_figures(evaluation),
        started=started,
        seconds=seconds,
    )


def measure_evaluation_again(settings: Mapping[str, Any]) -> Measurement:
    """Evaluate with the settings of an earlier measurement."""
    from lpx.quality.evaluation import evaluate

    wanted = evaluation_settings_from(settings)
    started, begun = datetime.now(timezone.utc), perf_counter()
    evaluation = evaluate(wanted)
    return evaluation_measurement(wanted, evaluation, started, perf_counter() - begun)


def _figures(evaluation: Evaluation) -> dict[str, float]:
    figures: dict[str, float] = {}
    if evaluation.perplexity is not None:
        # Weights that ran as F16 are not those of the configuration: their perplexity must not be taken for its own.
        figures["float_weights_perplexity" if evaluation.dequantized else "perplexity"] = evaluation.perplexity.ppl
    if (divergence := evaluation.divergence) is not None:
        figures |= {
            "reference_perplexity": divergence.reference_ppl.ppl,
            "kl_nats_mean": divergence.kl,
            "kl_nats_median": divergence.median_kl,
            "kl_nats_p99": divergence.p99_kl,
            "top1_fraction": divergence.top1,
        }
    if (weights := evaluation.weights) is not None:
        figures["faulty_tensors"] = float(len(weights.faulty))
    for name, side in (("", evaluation.subject), ("reference_", evaluation.reference)):
        if side is not None and side.stability is not None:
            for kind in ("different", "empty", "garbled", "repetition", "cut", "refused"):
                figures[f"{name}{kind}_answers"] = float(side.stability.count(kind))
        if side is not None and side.review is not None:
            figures[f"{name}review_fraction"] = side.review.rate.share
    return figures
