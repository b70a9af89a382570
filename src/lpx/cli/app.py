"""The commands put together, and how they end: exit codes, error lines, interrupts, closed pipes."""

from __future__ import annotations

import errno
import os
import sys
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from lpx.cli import EXIT_INTERRUPTED, batch, bench, chat, doctor, explain, fit, models, run, serve, snapshot, tune
from lpx.cli.eval import evaluate
from lpx.cli.help_text import group_options
from lpx.cli.late_failures import exit_code_after_success
from lpx.cli.quantize import quantize
from lpx.cli.verdicts import silence_stdout
from lpx.errors import OUTPUT_NOT_WRITTEN, LpxError, error_line

EXIT_BROKEN_PIPE = 141  # 128 + SIGPIPE


class _Commands(TyperGroup):
    """Turns whatever ends a command into one line and an exit code; LPX_DEBUG=1 shows the traceback instead."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return self._invoke_whole(ctx)
        except LpxError as error:
            if os.environ.get("LPX_DEBUG", "0") not in ("", "0"):
                raise
            print(error_line(error, error.help_code), file=sys.stderr)
            raise typer.Exit(error.exit_code) from None
        except ImportError as error:
            if "lpx._native" not in (error.name or ""):
                raise
            print(error_line(f"the native module cannot be loaded: {error}", "LPX-E081"), file=sys.stderr)
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            raise typer.Exit(EXIT_INTERRUPTED) from None
        except BrokenPipeError:
            silence_stdout()
            raise typer.Exit(EXIT_BROKEN_PIPE) from None

    def _invoke_whole(self, ctx: Any) -> Any:
        """With all of its output written; a failure on the way counts where the command itself ends with 0."""
        result, code = None, 0
        try:
            result = super().invoke(ctx)
        except typer.Exit as ended:
            code = ended.exit_code
        sys.stdout.flush()
        if code := code or exit_code_after_success():
            raise typer.Exit(code)
        return result


# A full disk or quota, a device that fails: of what commands do, only writing their output ends so.
_OUTPUT_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG})


app = typer.Typer(
    cls=_Commands,
    help="Fast decoding of small language models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # its tables cut the names of options where the terminal is narrow
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run")(run.run)
app.command("chat")(chat.chat)
app.command("serve")(serve.serve)
app.command("fit")(fit.fit)
app.command("tune")(tune.tune)
app.command("eval")(evaluate)
app.command("quantize")(quantize)
app.command("doctor")(doctor.doctor)
app.command("explain")(explain.explain)
app.add_typer(snapshot.app, name="snapshot")
app.add_typer(bench.app, name="bench")
app.add_typer(batch.app, name="batch")
app.add_typer(models.app, name="models")


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"lpx {version('lpx')}")
        raise typer.Exit


@app.callback()
def _root(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def run_app() -> NoReturn:
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started the process
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character gets "?" for it instead of the end of the program.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    try:
        group_options(typer.main.get_command(app))(prog_name="lpx")
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except OSError as error:
        if error.errno not in _OUTPUT_ERRORS:
            raise
        silence_stdout()
        print(error_line(f"the output cannot be written: {error.strerror}", OUTPUT_NOT_WRITTEN), file=sys.stderr)
        sys.exit(1)
    sys.exit(0)
