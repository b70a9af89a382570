"""`lpx bench export`: runs of the ledger as CSV or JSON."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from lpx.cli.bench.selection import RunSelection
from lpx.cli.option_groups import spread_options
from lpx.cli.whole_file import check_target, write_whole
from lpx.errors import ConfigError
from lpx.plain_text import plain_text

_BOM = b"\xef\xbb\xbf"
_FORMATS = ("csv", "json")


@spread_options
def export(
    selection: RunSelection,
    file: Annotated[Path | None, typer.Argument(help="Where to write. Default: stdout.", metavar="[FILE]")] = None,
    format: Annotated[
        str | None, typer.Option("--format", help="csv or json. Default: by the file's name, else json.")
    ] = None,
    bom: Annotated[bool, typer.Option("--bom", help="Begin CSV with a mark that Excel needs to see UTF-8.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
) -> None:
    """Write runs as CSV (a line a run) or JSON (everything, samples included).

    Example: lpx bench export runs.csv --since 30d --bom
    """
    from lpx.bench.ledger.export import to_csv, to_json

    if format is None:
        format = file.suffix.lower().lstrip(".") if file else "json"
        if format not in _FORMATS:
            raise ConfigError(
                f"{str(file)!r} does not say in which format; let it end with .csv or .json, or add --format"
            )
    if format not in _FORMATS:
        raise ConfigError(f"{format!r} is no format; use --format {' or --format '.join(_FORMATS)}")
    if file is not None:
        check_target("FILE", file, f"runs.{format}")
    if file is not None and file.exists() and not force:
        raise ConfigError(f"{file} exists; --force overwrites it")
    runs = selection.open().find(selection.filter(), with_samples=format == "json")
    data = (to_json(runs) if format == "json" else to_csv(runs)).encode("utf-8", "replace")
    if bom and format == "csv":
        data = _BOM + data
    if file is None:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        return
    write_whole(file, data)
    print(plain_text(f"{len(runs)} runs in {file}"), file=sys.stderr)
