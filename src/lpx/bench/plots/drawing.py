"""Pictures of one figure: over time, and over the batch size.

Names of models come from anywhere, so no text is read as mathematics (`$`).
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lpx.bench.headline import figure_unit
from lpx.bench.ledger import Run
from lpx.bench.plots.curves import Curve, batch_points, curves_of, environment_changes
from lpx.bench.plots.fonts import families
from lpx.bench.plots.theme import Theme
from lpx.plain_text import shortened

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

_MOST_CURVES = 12  # more cannot be told apart
_MOST_CHANGES = 6
_LONGEST_LABEL = 90
_MARKERS = "osD^vPX*"


@contextmanager
def styled(theme: Theme) -> Iterator[None]:
    """Draw and save within it."""
    import matplotlib

    # It tells of every font that it looks for, and of every letter that no font has.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    settings = {
        "font.family": families(),
        "font.size": 10,
        "text.parse_math": False,
        "text.color": theme.ink,
        "axes.labelcolor": theme.ink,
        "axes.edgecolor": theme.ink,
        "axes.facecolor": theme.paper,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.titlelocation": "left",
        "axes.titlesize": 12,
        "figure.facecolor": theme.paper,
        "grid.color": theme.faint,
        "xtick.color": theme.ink,
        "ytick.color": theme.ink,
        "legend.frameon": False,
        "svg.fonttype": "none",  # letters stay letters, in whatever font the reader has
        "svg.hashsalt": "lpx",  # the same picture is the same file
    }
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def draw_over_time(canvas: FigureBase, runs: Sequence[Run], figure: str, theme: Theme) -> None:
    """Every run at its start, and a line where the environment changed; some run must have the figure."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num

    axes = canvas.add_subplot()
    divisor, unit = figure_unit(figure)
    all_curves = curves_of(runs, figure)
    curves = drawn_curves(all_curves)
    lines: list[Artist] = []
    for number, curve in enumerate(curves):
        values = [run.measurement.figures[figure] / divisor for run in curve.runs]
        moments = [run.measurement.started.astimezone() for run in curve.runs]
        lines += axes.plot(moments, values, **line_style(number, theme), linewidth=1.2, markersize=4.5)
    shown = [run for curve in curves for run in curve.runs]
    for change in environment_changes(shown)[-_MOST_CHANGES:]:
        axes.axvline(change.moment.astimezone(), color=theme.ink, linewidth=0.8, linestyle=(0, (4, 3)), alpha=0.7)
        axes.annotate(
            shortened(", ".join(change.subjects), 40),
            (date2num(change.moment), 1),
            (-3, -2),
            xycoords=axes.get_xaxis_transform(),
            textcoords="offset points",
            rotation=90,
            fontsize=7.5,
            ha="right",
            va="top",
        )
    zone = shown[0].measurement.started.astimezone().tzinfo
    locator = AutoDateLocator(tz=zone)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=zone))
    axes.margins(x=0.06, y=0.15)
    if min(run.measurement.figures[figure] for run in shown) >= 0:
        axes.set_ylim(bottom=max(0, axes.get_ylim()[0]))
    finish(canvas, axes, f"{figure} over time{_left_out(curves, all_curves)}", lines, [curve.label for curve in curves])
    axes.set_ylabel(unit)


def draw_over_batch_size(canvas: FigureBase, runs: Sequence[Run], figure: str, theme: Theme) -> None:
    """The median of every batch size, with bars from the least to the most."""
    axes = canvas.add_subplot()
    divisor, unit = figure_unit(figure)
    all_curves = curves_of(runs, figure, over_batch_size=True)
    curves = drawn_curves(all_curves)
    lines: list[Artist] = []
    sizes: set[int] = set()
    for number, curve in enumerate(curves):
        points = batch_points(curve, figure)
        sizes |= {point.batch_size for point in points}
        spread = [
            [(point.median - point.low) / divisor for point in points],
            [(point.high - point.median) / divisor for point in points],
        ]
        lines.append(
            axes.errorbar(
                [point.batch_size for point in points],
                [point.median / divisor for point in points],
                spread,
                **line_style(number, theme),
                linewidth=1.2,
                markersize=4.5,
                capsize=2.5,
            )[0]
        )
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted(sizes), [str(size) for size in sorted(sizes)])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel("batch size")
    axes.set_ylabel(unit)
    title = f"{figure} over batch size{_left_out(curves, all_curves)}"
    finish(canvas, axes, title, lines, [curve.label for curve in curves])


def finish(canvas: FigureBase, axes: Axes, title: str, lines: Sequence[Artist], labels: Sequence[str]) -> None:
    """Title, and a legend below."""
    axes.set_title(title)
    if not lines:
        return
    shown = [shortened(label, _LONGEST_LABEL) for label in labels]
    canvas.legend(lines, shown, loc="outside lower left", fontsize=9)


def drawn_curves(curves: Sequence[Curve]) -> list[Curve]:
    """As many as can be told apart: those with the most runs."""
    kept = sorted(curves, key=lambda curve: -len(curve.runs))[:_MOST_CURVES]
    return [curve for curve in curves if curve in kept]


def _left_out(drawn: Sequence[Curve], curves: Sequence[Curve]) -> str:
    return f", {len(drawn)} of {len(curves)} curves" if len(drawn) < len(curves) else ""


def line_style(number: int, theme: Theme) -> dict[str, str]:
    """Of the curve with this number."""
    return {
        "color": theme.series[number % len(theme.series)],
        "marker": _MARKERS[number % len(_MARKERS)],
        "linestyle": "-" if number < len(theme.series) else "--",
    }
