"""Help in plain columns, options under the headings of their panels: names are never cut, however narrow it is."""

from __future__ import annotations

from types import MethodType
from typing import Any


def group_options(command: Any) -> Any:
    """Have `command` and all below it list their options by panel; returns it."""
    commands = getattr(command, "commands", None)
    if commands:
        command.format_commands = MethodType(lambda group, ctx, formatter: format_commands(group, formatter), command)
        for below in commands.values():
            group_options(below)
    else:
        command.format_options = MethodType(_format_options, command)
    return command


def format_commands(group: Any, formatter: Any) -> None:
    """The commands of a group, each with the first paragraph of its help, whole."""
    with formatter.section("Commands"):
        formatter.write_dl(
            [
                (name, " ".join((command.help or "").split("\n\n")[0].split()))
                for name, command in group.commands.items()
            ]
        )


# Names that options had once: they are taken as ever, and no help speaks of them.
_OLD_NAMES = frozenset({"--seconds", "--budget-s"})


def _record_of(parameter: Any, ctx: Any) -> tuple[str, str] | None:
    names = parameter.opts
    try:
        parameter.opts = [name for name in names if name not in _OLD_NAMES]
        record: tuple[str, str] | None = parameter.get_help_record(ctx)
        return record
    finally:
        parameter.opts = names


def _format_options(command: Any, ctx: Any, formatter: Any) -> None:
    arguments: list[tuple[str, str]] = []
    panels: dict[str, list[tuple[str, str]]] = {"Options": []}
    for parameter in command.get_params(ctx):
        record = _record_of(parameter, ctx)
        if record is None:
            continue
        if parameter.param_type_name == "argument":
            arguments.append(record)
        else:
            panels.setdefault(getattr(parameter, "rich_help_panel", None) or "Options", []).append(record)
    for name, records in {"Arguments": arguments, **panels}.items():
        if records:
            with formatter.section(name):
                formatter.write_dl(records)
