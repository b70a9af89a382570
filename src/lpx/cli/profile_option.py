"""`--profile`: options from a file. Command line beats environment beats file."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

DEFAULT_NAME = "lpx.toml"
_META = "lpx.profile"


def _apply(context: typer.Context, path: Path | None) -> Path | None:
    """Make the file's values the defaults of the options that are read after this one."""
    if path is None or context.resilient_parsing:
        return path
    from lpx.profile import read_profile

    profile = context.meta[_META] = read_profile(path)
    parameters = {parameter.name: parameter for parameter in context.command.params}
    context.default_map = {}
    for name, value in profile.values.items():
        name = _PARAMETERS.get(name, name)
        if name in parameters:  # `lpx run` has no server, so keys of the server do not concern it
            context.default_map[name] = _checked(context, profile.path, parameters[name], value)
    return path


# Keys whose option is called otherwise inside: a switch is named as the command line has it.
_PARAMETERS = {"enable_request_timings": "request_timings"}


def _checked(context: typer.Context, path: Path, parameter: Any, value: Any) -> Any:
    """`value`, once the option has taken it; the error names the file."""
    import dataclasses

    from lpx.errors import ConfigError
    from lpx.options import EngineOptions
    from lpx.profile import ProfileError

    spelled = parameter.opts[0].removeprefix("--")
    try:
        given = parameter.type_cast_value(context, value)
        if parameter.name in {field.name for field in dataclasses.fields(EngineOptions)} - {"model", "models_dir"}:
            # Alone, so that what only goes wrong together with another option is told by the command.
            EngineOptions(**{"model": "m", "max_num_seqs": 1, "max_num_batched_tokens": 1 << 20, parameter.name: given})
    except ConfigError as error:
        raise ProfileError(f"{path}: {spelled}: {error}") from None
    except Exception as error:
        told = getattr(error, "message", None)
        if told is None:
            raise
        raise ProfileError(f"{path}: {spelled}: {told}") from None
    return value


@dataclass(frozen=True, kw_only=True)
class ProfileOption:
    profile: Annotated[
        Path | None,
        typer.Option(
            "--profile",
            help="A file of options, such as lpx tune writes. Options given here or in the environment win.",
            envvar="LPX_PROFILE",
            is_eager=True,
            callback=_apply,
            metavar="FILE",
            rich_help_panel="Model and machine",
        ),
    ] = None

    def describe(self, context: typer.Context) -> str | None:
        """One line: what the file gave, and what was overruled; None without a file."""
        if self.profile is None:
            return None
        from lpx.profile import key_named

        used, overruled = [], []
        for name, value in context.meta[_META].values.items():
            parameter = _PARAMETERS.get(name, name)
            source = context.get_parameter_source(parameter)
            spelled = name.replace("_", "-")
            if source is None:
                continue  # of another command
            if source.name == "DEFAULT_MAP":
                used.append(spelled if key_named(name).secret else f"{spelled} {_shown(value)}")
            else:
                overruled.append(spelled)
        line = f"profile {self.profile}: {', '.join(used) or 'nothing that this command uses'}"
        return f"{line}; overruled: {', '.join(overruled)}" if overruled else line

    def values(self, context: typer.Context) -> dict[str, Any]:
        """Everything that the file holds, by option name; empty without a file."""
        return {} if self.profile is None else dict(context.meta[_META].values)

    def announce(self, context: typer.Context) -> None:
        """Say on stderr what the file gave."""
        from lpx.plain_text import plain_text

        line = self.describe(context)
        if line is not None:
            print(plain_text(line), file=sys.stderr)

    def unused_note(self) -> str | None:
        """That a profile lies in the current folder without being used.

        It is not used by itself, because whoever made the folder would then decide about hosts, keys and templates.
        """
        if self.profile is None and os.path.isfile(DEFAULT_NAME):
            return f"{DEFAULT_NAME} in this folder is not used; --profile {DEFAULT_NAME} uses it"
        return None


def _shown(value: Any) -> str:
    text = ", ".join(value) if isinstance(value, list) else str(value)
    return text if len(text) <= 60 else text[:57] + "…"
