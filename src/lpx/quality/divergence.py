"""How far the next-token distributions of one configuration are from those of another, and the perplexity of each.

Kullback-Leibler divergence KL(reference || subject) at a position: the sum over the vocabulary of p (log p - log q), in
nats, with p the reference's distribution; what a draw from the reference loses in log-likelihood under the subject.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lpx.errors import ConfigError, InvalidRequestError, MemoryLimitError
from lpx.options import EngineOptions
from lpx.quality.intervals import mean_interval
from lpx.quality.scored_model import ScoredModel
from lpx.quality.spilled_logits import SpilledLogits
from lpx.quality.texts import bundled_texts
from lpx.quality.windows import DEFAULT_WINDOW, Window, make_windows

Progress = Callable[[str, int, int], None]  # what is done, tokens done, tokens in all
_BLOCK = 64  # neighbouring positions, which are not independent, count as one for the interval of the mean


@dataclass(frozen=True, slots=True)
class Perplexity:
    """exp of the mean negative log-likelihood of the scored tokens, see `lpx.quality.windows`."""

    ppl: float
    interval: tuple[float, float]  # 95 %, from how much blocks of 64 tokens differ
    scored: int  # tokens
    by_text: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Distance:
    """Figures over some positions."""

    positions: int
    kl: float  # mean, nats
    kl_interval: tuple[float, float]  # 95 %, as above
    median_kl: float
    p99_kl: float
    max_kl: float
    top1: float  # share of positions with the same likeliest token


@dataclass(frozen=True, slots=True)
class Divergence:
    """A configuration against its reference."""

    positions: int
    kl: float
    kl_interval: tuple[float, float]
    median_kl: float
    p99_kl: float
    max_kl: float
    top1: float
    ppl: Perplexity
    reference_ppl: Perplexity
    by_text: dict[str, Distance]

    @property
    def ppl_change(self) -> float:
        """Relative: 0.01 is a perplexity that is 1 % higher than the reference's."""
        return self.ppl.ppl / self.reference_ppl.ppl - 1


def compare_distributions(
    subject: EngineOptions | ScoredModel,
    reference: EngineOptions | ScoredModel,
    windows: Sequence[Window] | None = None,
    *,
    window: int = DEFAULT_WINDOW,
    dequantize: bool = False,
    progress: Progress | None = None,
) -> Divergence:
    """KL, agreement and perplexities of `subject` against `reference` over `windows` (None: the bundled texts).

    Options are loaded here and freed again, both models at once where memory allows, else one after the other: the
    reference's logits then wait in a temporary file (see `SpilledLogits`). A `ScoredModel` stays the caller's, but for
    its weights, which may be unloaded by this where memory is short. Rows are compared in blocks, so that beside the
    models only some megabytes are held, whatever the vocabulary. `window` is the size of the bundled texts' windows.

    `dequantize` runs quantized matrices as F16, so that a comparison of KV types of one file is not one of int8
    activations. Raises ConfigError when the vocabularies differ, MemoryLimitError, and what loading raises.
    """
    window = _longest(windows, window)
    with _Borrowed(subject, window, dequantize) as one, _Borrowed(reference, window, dequantize) as other:
        if windows is None:
            windows = make_windows(other.tokenizer, bundled_texts(), window)
        check_same_vocabulary(one, other)
        tally = _Tally(windows, "computing", progress)
        if _fit_together(one, other):
            one.load()
            other.load()
            for number, item in enumerate(windows):
                pairs = zip(other.logits(item.token_ids), one.logits(item.token_ids), strict=True)
                tally.add_pairs(number, pairs)
            return tally.divergence()
        with SpilledLogits(sum(len(item.token_ids) for item in windows), other.vocab_size) as spilled:
            other.load()
            done = 0
            for item in windows:
                for block in other.logits(item.token_ids):
                    spilled.append(block)
                done += len(item.token_ids)
                if progress is not None:
                    progress("computing the reference", done, spilled.rows)
            other.unload()
            one.load()
            for number, item in enumerate(windows):
                tally.add_pairs(number, ((spilled.read(len(block)), block) for block in one.logits(item.token_ids)))
            return tally.divergence()


def measure_perplexity(
    subject: EngineOptions | ScoredModel,
    windows: Sequence[Window] | None = None,
    *,
    window: int = DEFAULT_WINDOW,
    progress: Progress | None = None,
) -> Perplexity:
    """Perplexity by llama.cpp's default rule over `windows` (None: the bundled texts). Raises what loading raises."""
    window = _longest(windows, window)
    with _Borrowed(subject, window, False) as model:
        if windows is None:
            windows = make_windows(model.tokenizer, bundled_texts(), window)
        model.load()
        tally = _Tally(windows, "computing", progress)
        for number, item in enumerate(windows):
            tally.add_single(number, model.logits(item.token_ids))
        return tally.perplexity("subject")


def compare_logits(
    windows: Sequence[Window],
    pairs: Iterable[tuple[NDArray[np.floating], NDArray[np.floating]]],
) -> Divergence:
    """The same figures for logits or log-probabilities from elsewhere.

    `pairs` are blocks [rows, vocab] of (reference, subject) over all positions of all windows in their order; no block
    crosses the end of a window, or ValueError is raised.
    """
    tally = _Tally(windows, "", None)
    remaining = iter(pairs)
    for number, item in enumerate(windows):
        tally.add_pairs(number, _rows_of(remaining, len(item.token_ids)))
    return tally.divergence()


def check_same_vocabulary(one: ScoredModel, other: ScoredModel) -> None:
    """Raise ConfigError when ids of the two models do not mean the same."""
    said = f"{one.path.name} and {other.path.name} cannot be compared"
    if one.vocab_size != other.vocab_size:
        raise ConfigError(
            f"{said}: their vocabularies have {one.vocab_size} and {other.vocab_size} tokens. Take a reference of the "
            "same model, such as its unquantized file"
        )
    for text in bundled_texts():
        if one.tokenizer.encode(text.content) != other.tokenizer.encode(text.content):
            raise ConfigError(
                f"{said}: their tokenizers cut the same text in different ways. Take a reference of the same model, "
                "such as its unquantized file"
            )


def _longest(windows: Sequence[Window] | None, otherwise: int) -> int:
    return otherwise if windows is None else max(len(window.token_ids) for window in windows)


class _Borrowed:
    """A ScoredModel for a `with` block: a given one is left open, one made here is closed."""

    def __init__(self, given: EngineOptions | ScoredModel, window: int, dequantize: bool) -> None:
        self._owned = isinstance(given, EngineOptions)
        self._model = ScoredModel(given, window, dequantize=dequantize) if isinstance(given, EngineOptions) else given
        if window > self._model.window:
            raise ConfigError(
                f"the windows have up to {window} tokens, and the model was opened for {self._model.window}"
            )

    def __enter__(self) -> ScoredModel:
        return self._model

    def __exit__(self, *_: object) -> None:
        if self._owned:
            self._model.close()


def _fit_together(one: ScoredModel, other: ScoredModel) -> bool:
    """Whether both fit memory at once. Raises MemoryLimitError when one of them does not fit alone."""
    from lpx.runtime.memory import available_bytes

    if one.is_loaded and other.is_loaded:
        return True
    available = available_bytes()
    needed = 0 if other.is_loaded else other.plan(available).total_bytes
    if one.is_loaded:
        return True
    try:
        one.plan(max(0, available - needed))
    except MemoryLimitError:
        one.plan(available)
        return False
    return True


def _rows_of(
    pairs: Iterator[tuple[NDArray[np.floating], NDArray[np.floating]]], rows: int
) -> Iterator[tuple[NDArray[np.floating], NDArray[np.floating]]]:
    while rows > 0:
        reference, subject = next(pairs)
        rows -= len(reference)
        if rows < 0:
            raise ValueError("a block crosses the end of its window")
        yield reference, subject


class _Tally:
    """What is kept of the distributions: one number a position and figure."""

    def __init__(self, windows: Sequence[Window], what: str, progress: Progress | None) -> None:
        self._windows = windows
        self._what = what
        self._progress = progress
        self._done = 0
        self._total = sum(len(item.token_ids) for item in windows)
        self._kl: list[NDArray[np.float64]] = []
        self._agreed: list[NDArray[np.bool_]] = []
        self._losses: dict[str, list[NDArray[np.float64]]] = {"subject": [], "reference": []}

    def add_pairs(self, number: int, pairs: Iterable[tuple[NDArray[np.floating], NDArray[np.floating]]]) -> None:
        """All rows of window `number`."""
        item = self._windows[number]
        count = len(item.token_ids)
        kl, agreed = np.empty(count), np.empty(count, dtype=np.bool_)
        losses = {"subject": np.full(count, np.nan), "reference": np.full(count, np.nan)}
        row = 0
        for reference_block, subject_block in pairs:
            for reference, subject in zip(reference_block, subject_block, strict=True):
                p, q = _log_softmax(reference), _log_softmax(subject)
                kl[row] = max(0.0, float(np.exp(p) @ (p - q)))
                agreed[row] = p.argmax() == q.argmax()
                if row in item.scored_rows:
                    target = item.token_ids[row + 1]
                    losses["reference"][row], losses["subject"][row] = -p[target], -q[target]
                row += 1
            self._show(len(reference_block))
        self._kl.append(kl)
        self._agreed.append(agreed)
        for side, values in losses.items():
            self._losses[side].append(values)

    def add_single(self, number: int, blocks: Iterable[NDArray[np.floating]]) -> None:
        """All rows of window `number`, of the subject alone."""
        item = self._windows[number]
        losses = np.full(len(item.token_ids), np.nan)
        row = 0
        for block in blocks:
            for logits in block:
                if row in item.scored_rows:
                    losses[row] = -_log_softmax(logits)[item.token_ids[row + 1]]
                row += 1
            self._show(len(block))
        self._losses["subject"].append(losses)

    def perplexity(self, side: str) -> Perplexity:
        losses = self._losses[side]
        scored = [values[~np.isnan(values)] for values in losses]
        if not any(map(len, scored)):
            raise InvalidRequestError("the windows are too short to score a token", param="text")
        mean, low, high = mean_interval(_blocks(scored))
        names = dict.fromkeys(item.text for item in self._windows)
        by_text = {name: self._of_text(name, scored) for name in names}
        return Perplexity(
            ppl=math.exp(mean),
            interval=(math.exp(low), math.exp(high)),
            scored=sum(map(len, scored)),
            by_text={name: math.exp(float(values.mean())) for name, values in by_text.items() if len(values)},
        )

    def divergence(self) -> Divergence:
        whole = _distance(self._kl, self._agreed)
        by_text = {}
        for name in dict.fromkeys(item.text for item in self._windows):
            at = [number for number, item in enumerate(self._windows) if item.text == name]
            by_text[name] = _distance([self._kl[number] for number in at], [self._agreed[number] for number in at])
        return Divergence(
            positions=whole.positions,
            kl=whole.kl,
            kl_interval=whole.kl_interval,
            median_kl=whole.median_kl,
            p99_kl=whole.p99_kl,
            max_kl=whole.max_kl,
            top1=whole.top1,
            ppl=self.perplexity("subject"),
            reference_ppl=self.perplexity("reference"),
            by_text=by_text,
        )

    def _of_text(self, name: str, values: list[NDArray[np.float64]]) -> NDArray[np.float64]:
        return np.concatenate([part for part, item in zip(values, self._windows, strict=True) if item.text == name])

    def _show(self, rows: int) -> None:
        self._done += rows
        if self._progress is not None:
            self._progress(self._what, self._done, self._total)


def _distance(kl: list[NDArray[np.float64]], agreed: list[NDArray[np.bool_]]) -> Distance:
    mean, low, high = mean_interval(_blocks(kl))
    values = np.concatenate(kl)
    return Distance(
        positions=len(values),
        kl=mean,
        kl_interval=(max(0.0, low), high),
        median_kl=float(np.median(values)),
        p99_kl=float(np.percentile(values, 99)),
        max_kl=float(values.max()),
        top1=float(np.concatenate(agreed).mean()),
    )


def _blocks(parts: list[NDArray[np.float64]]) -> list[NDArray[np.float64]]:
    return [part[start : start + _BLOCK] for part in parts for start in range(0, len(part), _BLOCK)]


def _log_softmax(logits: NDArray[np.floating]) -> NDArray[np.float64]:
    shifted = logits.astype(np.float64)
    shifted -= shifted.max()
    shifted -= math.log(np.exp(shifted).sum())
    return shifted
