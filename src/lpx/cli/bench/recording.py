"""How commands that measure put what they measured into the ledger, and the options for it."""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lpx.cli.late_failures import report_failure
from lpx.cli.whole_file import check_target
from lpx.errors import ModelNotFoundError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lpx.bench.ledger import Ledger
    from lpx.bench.measurement import Measurement

_QUIET_SECONDS = 1.0  # hashing that takes less shows no bar


def _option(*names: str, help: str, **more: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel="Ledger", **more)


LedgerFile = Annotated[
    Path | None,
    _option(
        "--ledger",
        help="The ledger's file. Default: ledger.sqlite in the user's data folder.",
        envvar="LPX_LEDGER",
        metavar="FILE",
        show_default=False,
    ),
]


@dataclass(frozen=True, kw_only=True)
class LedgerOptions:
    """Whether, where and under which words a measurement is kept.

    What can be seen to be wrong raises ConfigError before anything is measured.
    """

    no_ledger: Annotated[bool, _option("--no-ledger", help="Keep nothing of this run.")] = False
    ledger: LedgerFile = None
    tag: Annotated[
        list[str] | None,
        _option("--tag", help="A word to find this run by; may be given several times.", metavar="TAG"),
    ] = None

    def __post_init__(self) -> None:
        if self.tag:
            from lpx.bench.ledger.names import checked_name

            for tag in self.tag:
                checked_name("tag", tag)
        if self.no_ledger or self.ledger is None:
            return
        check_target("--ledger", self.ledger.expanduser(), "ledger.sqlite")


def open_ledger(file: Path | None) -> Ledger:
    """The ledger that `--ledger` names, or the default one."""
    from lpx.bench.ledger import Ledger

    return Ledger(file)


def record(
    options: LedgerOptions, measurement: Measurement, *, model: Path | None = None, tags: Sequence[str] = ()
) -> int | None:
    """Keep the measurement and return the id of its run; None with `--no-ledger` and when it cannot be kept.

    Call it before the result is printed, so that a closed pipe does not lose the run. A failure is said on stderr, and
    the command ends with exit code 3 after it has printed. `model` is the file or folder that was measured: its hash
    is filled in, from the ledger's memory where the files have not changed. `tags` come beside those of the options.
    """
    if options.no_ledger:
        return None
    from lpx.bench.ledger import LedgerError
    from lpx.errors import LpxError

    try:
        ledger = open_ledger(options.ledger)
        if model is not None and measurement.subject.model_sha256 is None:
            subject = dataclasses.replace(measurement.subject, model_sha256=_hash_if_possible(ledger, model))
            measurement = dataclasses.replace(measurement, subject=subject)
        return ledger.record(measurement, tags=(*tags, *(options.tag or ())))
    except LpxError as error:
        report_failure(f"this run is not in the ledger: {error}", LedgerError.exit_code, LedgerError.help_code)
        return None


def print_run(run_id: int | None) -> None:
    """The last line of a table: where the run is kept."""
    if run_id is not None:
        print(f"\nrun {run_id}: lpx bench show {run_id}")


def hash_with_progress(ledger: Ledger, model: Path) -> str:
    """The model's hash, with a bar on a terminal when it takes long. Raises LedgerError and OSError."""
    from lpx.cli.loading import ByteProgress

    with ByteProgress(f"hashing {model.name}", quiet_seconds=_QUIET_SECONDS) as bar:
        return ledger.model_sha256(model, bar.update)


def _hash_if_possible(ledger: Ledger, model: Path) -> str | None:
    """None when the files cannot be read any more, and on an interrupt: the run is worth more than the hash."""
    try:
        return hash_with_progress(ledger, model)
    except (OSError, ModelNotFoundError) as error:
        print(f"warning: the run is kept without the model's hash: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print("warning: the run is kept without the model's hash", file=sys.stderr)
    return None
