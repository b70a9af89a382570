"""How commands end that judge: exit code 1 says that something is worse, and nothing else may end with it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from lpx.cli import is_debugging
from lpx.cli.late_failures import report_failure
from lpx.errors import OUTPUT_NOT_WRITTEN, LpxError

EXIT_NO_VERDICT = 2


@contextmanager
def judging(wanted: bool = True) -> Iterator[None]:
    """Errors in this block are no verdict: they end the command with exit code 2, those that nobody foresaw, too.

    A closed pipe and an interrupt keep their own codes. Without `wanted` nothing is changed.
    """
    try:
        yield
    except LpxError as error:
        if wanted:
            error.exit_code = EXIT_NO_VERDICT
        raise
    except (typer.Exit, typer.Abort, typer.BadParameter, BrokenPipeError):
        raise
    except Exception as error:
        if not wanted or is_debugging():
            raise
        from lpx.bench.gate.gate import CannotJudgeError

        raise CannotJudgeError(f"cannot judge: {type(error).__name__}: {error}") from error


@contextmanager
def showing(exit_code: int) -> Iterator[None]:
    """Output that is printed in this block and cannot be written is told of on stderr, and ends with `exit_code`.

    The command goes on: what it found counts, also where nobody can read it.
    """
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        silence_stdout()
        report_failure(f"the output cannot be written: {error.strerror}", exit_code, OUTPUT_NOT_WRITTEN)


def silence_stdout() -> None:
    """Nothing more can be said there, at interpreter exit either."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
