"""What can be drawn of some runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lpx.bench.headline import BAD_FIT
from lpx.bench.ledger import Run
from lpx.bench.plots.curves import Curve, curves_of
from lpx.bench.plots.theme import Theme
from lpx.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import FigureBase

KINDS = ("time", "batch", "roofline")

# What is drawn unless figures are named: those that any of the runs has.
_USUAL = (
    *("decode_tokens_per_second", "output_tokens_per_second", "prefill_tokens_per_second"),
    *("ttft_ms_median", "ttft_ms_p99", "itl_ms_p99", "tpot_ms_median", "perplexity"),
)
_MOST_USUAL = 4


@dataclass(frozen=True, slots=True)
class Picture:
    """Something to be drawn, once a canvas and colours are known."""

    title: str
    caption: str
    draw: Callable[[FigureBase, Theme], None]
    run_ids: frozenset[int]  # of the runs that it shows


def pictures_of(
    runs: Sequence[Run], rooflines: Sequence[Run], kinds: Sequence[str] = (), figures: Sequence[str] = ()
) -> list[Picture]:
    """The pictures of these kinds (default: all that the runs can fill) and figures (default: the usual ones).

    `rooflines` are measurements of the machine, the newest last. Raises ConfigError when there is nothing to draw, and
    says what there would be.
    """
    from lpx.bench.plots.drawing import draw_over_batch_size, draw_over_time
    from lpx.bench.plots.roofline_drawing import draw_roofline, limits_of, placed_runs

    for kind in kinds:
        if kind not in KINDS:
            raise ConfigError(f"there is no picture {kind!r}; there are {', '.join(KINDS)}")
    there = sorted({name for run in runs for name in run.measurement.figures})
    for figure in figures:
        if figure not in there:
            raise ConfigError(f"none of these {len(runs)} runs has the figure {figure!r}; they have {_listed(there)}")
    drawn = list(figures) or [name for name in _USUAL if name in there][:_MOST_USUAL]
    pictures = []
    for figure in drawn:
        own = [run for run in runs if _has(run, figure)]
        if not own:
            continue
        if not kinds or "time" in kinds:
            pictures.append(
                Picture(
                    f"{figure} over time",
                    "A point is a run, a broken line a change of the environment.",
                    lambda canvas, theme, own=own, figure=figure: draw_over_time(canvas, own, figure, theme),  # type: ignore[misc]
                    _drawn(curves_of(own, figure)),
                )
            )
        sizes = {run.measurement.batch_size for run in own} - {None}
        if "batch" in kinds or (not kinds and len(sizes) > 1):
            sized = [run for run in own if run.measurement.batch_size is not None]
            if not sized:
                raise ConfigError(f"none of the runs with the figure {figure!r} has a batch size")
            pictures.append(
                Picture(
                    f"{figure} over batch size",
                    "Medians; bars from the least to the most of several runs.",
                    lambda canvas, theme, own=sized, figure=figure: draw_over_batch_size(canvas, own, figure, theme),  # type: ignore[misc]
                    _drawn(curves_of(sized, figure, over_batch_size=True)),
                )
            )
    if not kinds or "roofline" in kinds:
        limits = limits_of(runs, rooflines)
        if limits is not None:
            more = "" if limits.peaks else " `lpx bench roofline` adds the limits of multiplying."
            pictures.append(
                Picture(
                    "Decoding against the limits of the machine",
                    "Left of the bend reading memory binds, right of it arithmetic; numbers are batch sizes." + more,
                    lambda canvas, theme: draw_roofline(canvas, runs, limits, theme),
                    _drawn(curves_of(placed_runs(runs), "decode_tokens_per_second", over_batch_size=True)),
                )
            )
        elif kinds:
            raise ConfigError("the roofline picture needs a run of `lpx bench latency`, and none of these runs is one")
    if not pictures:
        raise ConfigError(
            f"none of the usual figures is in these {len(runs)} runs; name one with --figure: {_listed(there)}"
        )
    return pictures


def _has(run: Run, figure: str) -> bool:
    """Whether the run has a number for it, and one that is to be trusted."""
    figures = run.measurement.figures
    return math.isfinite(figures.get(figure, math.nan)) and (BAD_FIT not in figures or figure == BAD_FIT)


def _drawn(curves: list[Curve]) -> frozenset[int]:
    from lpx.bench.plots.drawing import drawn_curves

    return frozenset(run.id for curve in drawn_curves(curves) for run in curve.runs)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:30]) + (", …" if len(names) > 30 else "") if names else "none"
