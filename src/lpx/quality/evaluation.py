"""All checks of one configuration, and of its reference where there is one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from lpx.errors import ConfigError, MemoryLimitError
from lpx.options import EngineOptions
from lpx.quality.divergence import Divergence, Perplexity, Progress, compare_distributions, measure_perplexity
from lpx.quality.reference import differ_in_kv_only
from lpx.quality.review import ReviewItem, ReviewReport, bundled_review, read_review, run_review
from lpx.quality.scored_model import ScoredModel
from lpx.quality.stability import DEFAULT_RUNS, StabilityReport, bundled_prompts, check_stability
from lpx.quality.texts import Text, bundled_texts, read_texts
from lpx.quality.weights import WeightsReport, compare_weights
from lpx.quality.windows import DEFAULT_WINDOW, LEAST_WINDOW, make_windows, spread
from lpx.store import named_as_stored

if TYPE_CHECKING:
    from lpx.engine.engine import Engine
    from lpx.engine.outputs import EngineInfo
    from lpx.runtime.step import ExecutorInfo

CheckName = Literal["distributions", "weights", "stability", "review"]
CHECKS: tuple[CheckName, ...] = get_args(CheckName)

_CONTEXT = 2048  # tokens, enough for every prompt and answer of the bundled sets
_SEQUENCES = 8
_MOST_WINDOW = 1 << 20  # tokens, beyond any context
_MOST_WINDOWS = 1 << 20
_MOST_RUNS = 1000


@dataclass(frozen=True, slots=True)
class EvalSettings:
    """What is evaluated, against what, on what. Raises ConfigError for wrong values."""

    subject: EngineOptions
    reference: EngineOptions | None = None
    texts: tuple[Path, ...] = ()  # empty: the bundled ones
    window: int = DEFAULT_WINDOW  # tokens
    windows: int | None = None  # how many, spread over the texts; None: all
    checks: tuple[str, ...] = CHECKS
    runs: int = DEFAULT_RUNS
    review_set: Path | None = None  # None: the bundled one
    own_weights: bool = False  # with a reference that differs in KV only: run weights as the file holds them, too

    def __post_init__(self) -> None:
        if not self.checks:
            raise ConfigError(f"no check is left to do; there are {', '.join(CHECKS)}")
        for name in self.checks:
            if name not in CHECKS:
                raise ConfigError(f"there is no check {name!r}; there are {', '.join(CHECKS)}")
        for option, value, least, most in (
            ("--window", self.window, LEAST_WINDOW, _MOST_WINDOW),
            ("--windows", self.windows, 1, _MOST_WINDOWS),
            ("--runs", self.runs, 2, _MOST_RUNS),
        ):
            if value is not None and not least <= value <= most:
                raise ConfigError(f"{option} must be from {least} to {most}, not {value}")

    @property
    def dequantize(self) -> bool:
        """Whether distributions are compared with weights as F16, so that only the KV types differ."""
        return self.reference is not None and not self.own_weights and differ_in_kv_only(self.subject, self.reference)


@dataclass(frozen=True, slots=True)
class InUse:
    """What really ran."""

    model: str
    quantization: str
    kv_cache_dtype: str
    device: str
    isa: str
    threads: int


@dataclass(frozen=True, slots=True)
class Side:
    """What was found on one configuration alone."""

    in_use: InUse
    stability: StabilityReport | None = None
    review: ReviewReport | None = None


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What the checks found; None for what was not asked for or has no reference."""

    subject: Side
    reference: Side | None
    windows: int  # of which distributions were looked at
    dequantized: bool  # see EvalSettings.dequantize
    perplexity: Perplexity | None
    divergence: Divergence | None
    weights: WeightsReport | None
    same_weights: bool = False  # both sides run the same, so there was nothing to compare


def evaluate(settings: EvalSettings, progress: Progress | None = None) -> Evaluation:
    """Run the checks of `settings`, cheap ones first; never more in memory than two models, or one where it is short.

    Raises ConfigError when subject and reference cannot be compared, InvalidRequestError for texts and review sets, and
    what loading raises.
    """
    subject = named_as_stored(settings.subject)
    reference = None if settings.reference is None else named_as_stored(settings.reference)
    settings = dataclasses.replace(settings, subject=subject, reference=reference)
    items = None
    if "review" in settings.checks:
        items = bundled_review() if settings.review_set is None else read_review(settings.review_set)
    texts = read_texts(settings.texts) if settings.texts else bundled_texts()
    weights, same_weights, scored = None, False, _Scored()
    if "weights" in settings.checks and reference is not None:
        same_weights = differ_in_kv_only(subject, reference)
        weights = None if same_weights else compare_weights(subject, reference, progress)
    if "distributions" in settings.checks:
        scored = _score(settings, texts, progress)
    sides: list[Side | None] = []
    for options, in_use, name in ((subject, scored.subject, ""), (reference, scored.reference, "reference: ")):
        sides.append(None if options is None else _side(options, in_use, settings, items, progress, name))
    assert sides[0] is not None
    return Evaluation(
        subject=sides[0],
        reference=sides[1],
        windows=scored.windows,
        dequantized=settings.dequantize and scored.windows > 0,
        perplexity=scored.perplexity,
        divergence=scored.divergence,
        weights=weights,
        same_weights=same_weights,
    )


@dataclass(frozen=True, slots=True)
class _Scored:
    windows: int = 0
    subject: InUse | None = None
    reference: InUse | None = None
    perplexity: Perplexity | None = None
    divergence: Divergence | None = None


def _score(settings: EvalSettings, texts: list[Text], progress: Progress | None) -> _Scored:
    subject, reference, dequantize = settings.subject, settings.reference, settings.dequantize
    with ScoredModel(subject, settings.window, dequantize=dequantize) as one:
        windows = spread(make_windows(one.tokenizer, texts, settings.window), settings.windows)
        if reference is None:
            perplexity = measure_perplexity(one, windows, progress=progress)
            return _Scored(len(windows), _in_use(_name(subject, one), one.info), perplexity=perplexity)
        with ScoredModel(reference, settings.window, dequantize=dequantize) as other:
            try:
                divergence = compare_distributions(one, other, windows, progress=progress)
            except MemoryLimitError as error:
                if not dequantize:
                    raise
                raise MemoryLimitError(
                    f"{error}. The weights were to run as F16, so that only the KV types differ: --own-weights needs "
                    "less memory, and tells KV types less clearly apart"
                ) from error
            return _Scored(
                len(windows),
                _in_use(_name(subject, one), one.info),
                _in_use(_name(reference, other), other.info),
                divergence.ppl,
                divergence,
            )


def _side(
    options: EngineOptions,
    in_use: InUse | None,
    settings: EvalSettings,
    items: list[ReviewItem] | None,
    progress: Progress | None,
    name: str,
) -> Side:
    """The checks that need answers."""

    def told(what: str) -> Callable[[int, int], None] | None:
        return None if progress is None else lambda done, total: progress(name + what, done, total)

    if items is None and "stability" not in settings.checks:
        return Side(in_use or _unloaded(options))
    stability = review = None
    engine = _load_engine(options)
    try:
        if "stability" in settings.checks:
            stability = check_stability(engine, bundled_prompts(), settings.runs, told("stability"))
        if items is not None:
            review = run_review(engine, items, told("review"))
        return Side(_in_use(engine.info.model, engine.info), stability, review)
    finally:
        engine.close()


def _load_engine(options: EngineOptions) -> Engine:
    """An engine for answers: a short context, few sequences, and no drafts, which change no text."""
    from lpx.engine.engine import Engine
    from lpx.model.files import open_model, resolve_model
    from lpx.model.models_dir import models_dir

    with open_model(resolve_model(options.model, models_dir(options.models_dir))) as files:
        context = min(options.max_model_len or _CONTEXT, files.config.max_position)
    return Engine.load(
        dataclasses.replace(
            options,
            max_model_len=context,
            max_num_seqs=_SEQUENCES,
            kv_cache_memory=None,
            speculative_config={"method": "off"},
            measure_steps=False,
        )
    )


def _name(options: EngineOptions, scored: ScoredModel) -> str:
    return options.served_model_name or scored.config.name


def _in_use(model: str, info: EngineInfo | ExecutorInfo) -> InUse:
    return InUse(model, info.quantization, info.kv_cache_dtype, info.device, info.isa, info.threads)


def _unloaded(options: EngineOptions) -> InUse:
    """Where only files were read."""
    return InUse(
        options.served_model_name or Path(options.model).stem,
        options.quantization or "",
        options.kv_cache_dtype,
        "",
        "",
        0,
    )
