"""Pictures as files: PNG and SVG hold all of them below each other, HTML is a page with the runs as a table, too."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lpx.bench.headline import first_token_ms, headline, shape
from lpx.bench.ledger import Run
from lpx.bench.plots.curves import environment_changes
from lpx.bench.plots.drawing import shortened
from lpx.bench.plots.pictures import Picture
from lpx.bench.plots.theme import DARK, LIGHT, NAMED, Theme, css_variables, with_css_names

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_INCHES = (9.0, 4.6)  # of one picture
_MOST_ROWS = 500
_MOST_CHANGES = 50
_LONGEST_CELL = 80

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
:root {{ {light} }}
@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}
body {{ margin: 2rem auto; padding: 0 1rem; max-width: 62rem; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, "Noto Sans CJK SC", "PingFang SC", "Microsoft YaHei", sans-serif; }}
h1 {{ font-size: 1.4rem; }}
figure {{ margin: 2rem 0; }}
figure svg {{ display: block; width: 100%; height: auto; }}
figcaption {{ font-size: .9rem; opacity: .8; }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-size: .85rem; white-space: nowrap; }}
th, td {{ padding: .25rem .8rem .25rem 0; border-bottom: 1px solid var(--faint); text-align: left; }}
.number {{ text-align: right; font-variant-numeric: tabular-nums; }}
</style>
</head>
<body>
<h1>{title}</h1>
{pictures}
{changes}
<h2>Runs</h2>
<div class="wide">
<table>
<thead><tr>{heads}</tr></thead>
<tbody>
{rows}
</tbody>
</table>
</div>
</body>
</html>
"""


def to_image(pictures: Sequence[Picture], format: str, theme: Theme) -> bytes:
    """One image of all pictures; `format` is "png" or "svg"."""
    from lpx.bench.plots.drawing import styled

    with styled(theme):
        figure = _new_figure(len(pictures))
        places = [figure] if len(pictures) == 1 else list(figure.subfigures(len(pictures), 1))
        for place, picture in zip(places, pictures, strict=True):
            picture.draw(place, theme)
        return _saved(figure, format)


def to_page(pictures: Sequence[Picture], runs: Sequence[Run], title: str = "LPX: recorded runs") -> str:
    """An HTML page that loads nothing and follows the reader's choice of light or dark."""
    from lpx.bench.plots.drawing import styled

    parts = []
    with styled(NAMED):
        for number, picture in enumerate(pictures):
            figure = _new_figure(1)
            picture.draw(figure, NAMED)
            svg = _inline(_saved(figure, "svg").decode(), number)
            parts.append(
                f'<figure role="group" aria-label="{html.escape(picture.title)}">\n{svg}\n'
                f"<figcaption>{html.escape(picture.caption)}</figcaption>\n</figure>"
            )
    return _PAGE.format(
        title=html.escape(title),
        light=css_variables(LIGHT),
        dark=css_variables(DARK),
        pictures="\n".join(parts),
        changes=_changes(runs),
        heads="".join(f"<th{_class(name)}>{name}</th>" for name in _HEADS),
        rows="\n".join(_row(run) for run in reversed(runs[-_MOST_ROWS:])),
    )


def _changes(runs: Sequence[Run]) -> str:
    """A list of what changed between the runs."""
    changes = environment_changes(runs)[-_MOST_CHANGES:]
    if not changes:
        return ""
    lines = (
        f"<li>{change.moment.astimezone():%Y-%m-%d %H:%M}, before run {change.run_id}: "
        f"{html.escape('; '.join(change.details or change.subjects))}</li>"
        for change in reversed(changes)
    )
    return f"<h2>Changes of the environment</h2>\n<ul>\n{''.join(lines)}\n</ul>"


def _new_figure(pictures: int) -> Figure:
    from matplotlib.figure import Figure  # without pyplot: no window system is touched

    return Figure(figsize=(_INCHES[0], _INCHES[1] * pictures), layout="constrained")


def _saved(figure: Figure, format: str) -> bytes:
    out = io.BytesIO()
    metadata = {"Date": None} if format == "svg" else {}
    figure.savefig(out, format=format, dpi=144, metadata=metadata)
    return out.getvalue()


def _inline(svg: str, number: int) -> str:
    """Without what only a file of its own has, with ids that no other picture of the page has."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="', f'id="p{number}-', svg)
    svg = re.sub(r"url\(#", f"url(#p{number}-", svg)
    svg = re.sub(r'href="#', f'href="#p{number}-', svg)
    return with_css_names(svg)


_HEADS = ("run", "begun", "kind", "model", "quantization", "engine", "device", "batch×in→out", "result", "TTFT ms")
_NUMBERS = frozenset({"run", "result", "TTFT ms"})


def _class(head: str) -> str:
    return ' class="number"' if head in _NUMBERS else ""


def _row(run: Run) -> str:
    measured, subject = run.measurement, run.measurement.subject
    cells = (
        str(run.id),
        measured.started.astimezone().strftime("%Y-%m-%d %H:%M"),
        measured.kind,
        subject.model,
        subject.quantization or "",
        " ".join(part for part in (subject.engine, subject.engine_version) if part),
        subject.device or "",
        shape(measured),
        str(headline(measured) or ""),
        first_token_ms(measured.figures) or "",
    )
    return (
        "<tr>"
        + "".join(
            f"<td{_class(head)}>{html.escape(shortened(cell, _LONGEST_CELL))}</td>"
            for head, cell in zip(_HEADS, cells, strict=True)
        )
        + "</tr>"
    )
