"""`lpx bench plot`: pictures of recorded runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from lpx.cli.bench.selection import RunSelection
from lpx.cli.option_groups import spread_options
from lpx.errors import ConfigError, MissingExtraError
from lpx.plain_text import plain_text

_FORMATS = ("html", "png", "svg")


@spread_options
def plot(
    selection: RunSelection,
    file: Annotated[Path, typer.Argument(help="What to write: .html (a page), .png or .svg.")],
    picture: Annotated[
        list[str] | None,
        typer.Option(
            "--picture",
            help="time, batch or roofline; may be given several times. Default: all that the runs can fill.",
        ),
    ] = None,
    figure: Annotated[
        list[str] | None,
        typer.Option(
            "--figure",
            help="What to draw, such as decode_tokens_per_second or itl_ms_p99; may be given several times.",
            metavar="NAME",
        ),
    ] = None,
    dark: Annotated[bool, typer.Option("--dark", help="Dark .png and .svg; a page follows its reader.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
) -> None:
    """Draw runs over time, over the batch size, and against the limits of the machine.

    Example: lpx bench plot runs.html --model smollm2 --since 30d
    """
    from lpx.bench.ledger import RunFilter
    from lpx.cli.status_line import StatusLine
    from lpx.cli.tables import count_of
    from lpx.cli.whole_file import check_target, write_whole

    format = file.suffix.lower().lstrip(".")
    if format not in _FORMATS:
        raise ConfigError(f"{file}: pictures are written as .{', .'.join(_FORMATS)}; let the name end with one of them")
    check_target("FILE", file, f"runs.{format}")
    if file.exists() and not force:
        raise ConfigError(f"{file} exists; --force overwrites it")
    _require_matplotlib()
    from lpx.bench.plots.files import to_image, to_page
    from lpx.bench.plots.fonts import lacks_letters
    from lpx.bench.plots.pictures import pictures_of
    from lpx.bench.plots.theme import DARK, LIGHT

    ledger = selection.open()
    runs = ledger.find(selection.filter())
    if not runs:
        raise ConfigError(f"no such run in {ledger.path}")
    with StatusLine() as status:
        status.show("drawing")
        pictures = pictures_of(runs, ledger.find(RunFilter(kind="roofline")), picture or (), figure or ())
        if format == "html":
            data = to_page(pictures, runs).encode("utf-8", "replace")
        else:
            data = to_image(pictures, format, DARK if dark else LIGHT)
    write_whole(file, data)
    if format == "png" and lacks_letters(run.measurement.subject.model for run in runs):
        print("no font on this machine has Chinese letters: they are boxes in a PNG, use .html", file=sys.stderr)
    drawn = len(frozenset[int]().union(*(picture.run_ids for picture in pictures)))
    others = f"; {len(runs) - drawn} others are in no picture" if drawn < len(runs) else ""
    print(plain_text(f"{count_of(drawn, 'run')} drawn in {file}{others}"), file=sys.stderr)


def _require_matplotlib() -> None:
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        raise MissingExtraError("pictures need matplotlib, which is not installed: pip install 'lpx[plot]'")
