"""The commands put together, and how they end: exit codes, error lines, interrupts, closed pipes."""

from __future__ import annotations

import errno
import importlib
import os
import sys
from collections.abc import Iterator, MutableMapping
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from lpx.cli import EXIT_INTERRUPTED, is_debugging
from lpx.cli.help_text import format_commands, group_options
from lpx.cli.late_failures import exit_code_after_success
from lpx.cli.verdicts import silence_stdout
from lpx.errors import OUTPUT_NOT_WRITTEN, ConfigError, LpxError, error_line

EXIT_BROKEN_PIPE = 141  # 128 + SIGPIPE


# Where each command is, in the order of the help: a function, or a group of its own.
_PLACES = {
    "run": "lpx.cli.run:run",
    "chat": "lpx.cli.chat:chat",
    "serve": "lpx.cli.serve:serve",
    "fit": "lpx.cli.fit:fit",
    "tune": "lpx.cli.tune:tune",
    "eval": "lpx.cli.eval:evaluate",
    "quantize": "lpx.cli.quantize:quantize",
    "doctor": "lpx.cli.doctor:doctor",
    "explain": "lpx.cli.explain:explain",
    "snapshot": "lpx.cli.snapshot:app",
    "init": "lpx.cli.init:init",
    "bench": "lpx.cli.bench:app",
    "batch": "lpx.cli.batch:app",
    "models": "lpx.cli.models:app",
}
# What the option parser raises. Typer brings its own copy of click in some versions and takes click itself in others.
_UsageError: type[Exception] = typer.BadParameter.__bases__[0]
_PLAIN_HELP: dict[str, Any] = {"add_completion": False, "rich_markup_mode": None}  # rich's tables cut names of options


class _LazyCommands(MutableMapping[str, Any]):
    """The commands by name, each imported and built when it is asked for: one start needs one of them."""

    def __init__(self) -> None:
        self._built: dict[str, Any] = dict.fromkeys(_PLACES)

    def __getitem__(self, name: str) -> Any:
        if self._built[name] is None:
            module, _, member = _PLACES[name].partition(":")
            found = getattr(importlib.import_module(module), member)
            around = typer.Typer(**_PLAIN_HELP)
            if isinstance(found, typer.Typer):
                around.add_typer(found, name=name)
                command = typer.main.get_group(around).commands[name]
            else:
                around.command(name)(found)
                command = typer.main.get_command(around)
            self._built[name] = group_options(command)
        return self._built[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._built[name] = command

    def __delitem__(self, name: str) -> None:
        del self._built[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._built)

    def __len__(self) -> int:
        return len(self._built)


class _Commands(TyperGroup):
    """Turns whatever ends a command into one line and an exit code; LPX_DEBUG=1 shows the traceback instead."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = _LazyCommands()

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        format_commands(self, formatter)

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        try:
            return super().make_context(*arguments, **options)
        except _UsageError as error:
            _end_with_usage(error)

    def invoke(self, ctx: Any) -> Any:
        try:
            return self._invoke_whole(ctx)
        except _UsageError as error:
            _end_with_usage(error)
        except LpxError as error:
            if is_debugging():
                raise
            print(error_line(error, error.help_code), file=sys.stderr)
            raise typer.Exit(error.exit_code) from None
        except ImportError as error:
            if "lpx._native" not in (error.name or ""):
                raise
            print(error_line(f"the native module cannot be loaded: {error}", "LPX-E081"), file=sys.stderr)
            raise typer.Exit(1) from None
        except BrokenPipeError:
            silence_stdout()
            raise typer.Exit(EXIT_BROKEN_PIPE) from None
        except OSError as error:
            if error.filename is None or error.errno in _OUTPUT_ERRORS or is_debugging():
                raise
            # Names that are too long, loops of links, folders of others: wherever a path is looked at.
            print(error_line(f"{str(error.filename)!r}: {error.strerror}"), file=sys.stderr)
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            raise typer.Exit(EXIT_INTERRUPTED) from None

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


def _end_with_usage(error: Any) -> NoReturn:
    """How the command is called, and the error line that every failure gets; the help where nothing was given."""
    if type(error).__name__ == "NoArgsIsHelpError":
        raise error
    if error.ctx is not None:
        print(f"{error.ctx.get_usage()}\nTry '{error.ctx.command_path} --help' for help.\n", file=sys.stderr)
    message = error.format_message()
    if error.ctx is not None and message.startswith("Got unexpected extra argument"):
        message += _how_to_give_it(error.ctx.command)
    print(error_line(message, ConfigError.help_code), file=sys.stderr)
    raise typer.Exit(error.exit_code) from None


def _how_to_give_it(command: Any) -> str:
    """What was meant, most likely, by more arguments than `command` takes."""
    hints = []
    if any(parameter.param_type_name == "argument" for parameter in command.params):
        hints.append("text with spaces needs quotes")
    if any("--model" in parameter.opts for parameter in command.params):
        hints.append("a model is given with --model")
    return f"; {', and '.join(hints)}" if hints else ""


# A full disk or quota, a device that fails: of what commands do, only writing their output ends so.
_OUTPUT_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG})


app = typer.Typer(
    cls=_Commands,
    help="Fast decoding of small language models.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    **_PLAIN_HELP,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        import lpx

        print(f"lpx {lpx.__version__}")
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
        app(prog_name="lpx")
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except OSError as error:
        if error.errno not in _OUTPUT_ERRORS:
            raise
        silence_stdout()
        print(error_line(f"the output cannot be written: {error.strerror}", OUTPUT_NOT_WRITTEN), file=sys.stderr)
        sys.exit(1)
    sys.exit(0)
