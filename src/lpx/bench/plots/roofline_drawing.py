"""Decoding against what the machine gives at most (Williams, Waterman and Patterson, "Roofline", 2009).

Over the multiply-adds that a byte from memory brings, the speed of reading is a slope and the speed of multiplying a
ceiling. More streams read the same weights once, so they move a model to the right, until the ceiling binds.
Multiply-adds are those of the matrices; attention is left out.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lpx.bench.ledger import Run
from lpx.bench.plots.curves import curves_of
from lpx.bench.plots.drawing import drawn_curves, finish, line_style
from lpx.bench.plots.theme import Theme
from lpx.plain_text import shortened

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

_NEEDED = ("decode_tokens_per_second", "multiply_adds_per_token", "weight_bytes_per_token", "kv_bytes_per_token")
_PEAKS = (
    ("int8_multiply_adds_per_second", "int8"),
    ("int8_4bit_multiply_adds_per_second", "int8, 4-bit codes"),
    ("bf16_multiply_adds_per_second", "bf16"),
    ("f32_multiply_adds_per_second", "f32"),
)
_CLOSE = 1.2  # peaks whose names would lie on each other


@dataclass(frozen=True, slots=True)
class Limits:
    """What the machine of some runs gives at most."""

    machine: str
    read_bytes_per_second: float
    peaks: dict[str, float]  # multiply-adds a second, by what is multiplied; may be empty


def placed_runs(runs: Sequence[Run]) -> list[Run]:
    """Those of the newest one's machine, of runs that tell enough to have a place in the picture."""
    able = [run for run in runs if all(run.measurement.figures.get(name, 0) > 0 for name in _NEEDED)]
    return [run for run in able if _machine(run) == _machine(able[-1])]


def limits_of(runs: Sequence[Run], rooflines: Sequence[Run]) -> Limits | None:
    """The best that was measured on the machine of the newest run; None when nothing was."""
    placed = placed_runs(runs)
    if not placed:
        return None
    newest = placed[-1]
    subject = newest.measurement.subject
    name = " · ".join(
        str(part) for part in (newest.environment.cpu_model or subject.device, subject.isa) if part is not None
    )
    machine = f"{name} · {subject.threads} threads"
    # Other programs can only take away, so the most that was ever seen is the nearest to the limit.
    own = [run.measurement.figures for run in (*placed, *rooflines) if _machine(run) == _machine(newest)]
    read = max(figures.get("read_bytes_per_second", 0) for figures in own)
    peaks = {title: max(figures.get(peak, 0) for figures in own) for peak, title in _PEAKS}
    return Limits(machine, read, {title: peak for title, peak in peaks.items() if peak}) if read else None


def draw_roofline(canvas: FigureBase, runs: Sequence[Run], limits: Limits, theme: Theme) -> None:
    """Medians of runs of the same kind and batch size, below the limits."""
    axes = canvas.add_subplot()
    curves = drawn_curves(curves_of(placed_runs(runs), _NEEDED[0], over_batch_size=True))
    lines: list[Artist] = []
    places: list[tuple[float, float]] = []
    for number, curve in enumerate(curves):
        by_batch: dict[int | None, list[tuple[float, float]]] = {}
        for run in curve.runs:
            by_batch.setdefault(run.measurement.batch_size, []).append(_place(run))
        points = [
            (size, statistics.median(x for x, _ in each), statistics.median(y for _, y in each))
            for size, each in sorted(by_batch.items(), key=lambda item: item[0] or 0)
        ]
        style = line_style(number, theme)
        lines += axes.plot(
            [x for _, x, _ in points],
            [y / 1e9 for _, _, y in points],
            **style,
            linewidth=1,
            markersize=6,
            zorder=3,
        )
        for size, x, y in points:
            if size is not None:
                place = {"xytext": (5, -11), "textcoords": "offset points"}
                axes.annotate(f"{size}", (x, y / 1e9), **place, color=style["color"], fontsize=8)
        places += [(x, y) for _, x, y in points]
    axes.set_xscale("log")
    axes.set_yscale("log")
    _draw_limits(axes, limits, places, theme)
    axes.set_xlabel("multiply-adds for each byte read (numbers at points: batch size)")
    axes.set_ylabel("G multiply-adds/s")
    title = f"Decoding against the limits of {shortened(limits.machine, 60)}"
    finish(canvas, axes, title, lines, [curve.label for curve in curves])


def _draw_limits(axes: Axes, limits: Limits, places: Sequence[tuple[float, float]], theme: Theme) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    read = limits.read_bytes_per_second
    left = min(x for x, _ in places) / 2
    right = max([4 * x for x, _ in places] + [2 * peak / read for peak in limits.peaks.values()])
    top = max(limits.peaks.values(), default=right * read)
    low, high = min(y for _, y in places) / 2, max(top, *(y for _, y in places)) * 1.5
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
    bend = min(right, top / read)
    begin = max(left, low / read)
    axes.plot([begin, bend], [begin * read / 1e9, bend * read / 1e9], color=theme.ink, linewidth=1.4)
    middle = (begin * bend) ** 0.5
    axes.annotate(
        f"memory {read / 1e9:.1f} GB/s",
        (middle, middle * read / 1e9),
        (-6, 4),
        textcoords="offset points",
        fontsize=8.5,
        ha="right",
    )
    above = 0.0
    for name, peak in sorted(limits.peaks.items(), key=lambda item: -item[1]):
        axes.plot([peak / read, right], [peak / 1e9] * 2, color=theme.ink, linewidth=1.4 if peak == top else 0.8)
        below = above and above / peak < _CLOSE
        axes.annotate(
            f"{name} {peak / 1e9:.0f}",
            (right, peak / 1e9),
            (-2, -3 if below else 2),
            textcoords="offset points",
            fontsize=8.5,
            ha="right",
            va="top" if below else "bottom",
        )
        above = peak
    axes.set_xlim(left, right)
    axes.set_ylim(low / 1e9, high / 1e9)


def _place(run: Run) -> tuple[float, float]:
    """(multiply-adds for each byte read, multiply-adds a second)."""
    figures = run.measurement.figures
    multiply_adds = figures["multiply_adds_per_token"]
    bytes_read = figures["weight_bytes_per_token"] + figures["kv_bytes_per_token"]
    return multiply_adds / bytes_read, multiply_adds * figures["decode_tokens_per_second"]


def _machine(run: Run) -> tuple[object, ...]:
    subject = run.measurement.subject
    return run.environment.cpu_model, subject.device, subject.isa, subject.threads
