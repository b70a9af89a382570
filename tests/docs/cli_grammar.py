"""Whether the command line takes some arguments: groups, options, their values and counts, without running anything."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cache
from typing import Any

from typer import Exit
from typer.main import get_command

from lpx.cli.app import app
from lpx.options import EngineOptions

_ENGINE_FIELDS = {field.name for field in dataclasses.fields(EngineOptions)} - {"model", "models_dir"}
_INCOMPLETE = frozenset({"NoArgsIsHelpError", "MissingParameter"})


@cache
def _root() -> Any:
    return get_command(app)


def check(arguments: Sequence[str], *, mention: bool = False) -> None:
    """Raise what is wrong with these arguments, as the command line would; a `mention` may be only the beginning."""
    command, rest, parent = _root(), list(arguments), None
    while True:
        for parameter in command.params:
            parameter.callback = None  # it would print the version, or read the profile that is named
        try:
            context = command.make_context("lpx", list(rest), parent=parent)
        except Exit:  # --help
            return
        except Exception as error:
            if mention and type(error).__name__ in _INCOMPLETE:
                return
            raise
        with context:
            if not hasattr(command, "commands"):
                _check_engine_values(context)
                return
            waiting = [*context._protected_args, *context.args]
            if not waiting:
                return
            _, command, rest = command.resolve_command(context, waiting)
            parent = context


def _check_engine_values(context: Any) -> None:
    """What the parser takes for a word, and the engine for a type, a size or a method."""
    for name, value in context.params.items():
        if name in _ENGINE_FIELDS and value is not None:
            EngineOptions(**{"model": "m", "max_num_seqs": 1, "max_num_batched_tokens": 1 << 20, name: value})
