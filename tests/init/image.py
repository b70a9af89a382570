"""The steps of a Dockerfile, to be run without Docker: commands, with the paths of the image moved below a folder.

`scripts/exercise-images` builds with them; tests take the commands and variables of the last stage.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dockerfile_parse import DockerfileParser

# Folders of the image that the Dockerfiles make themselves. /etc, /var and the like stay those of the machine.
_OWN = re.compile(r"(?<![\w./-])/(build|opt|lpx)(?=/|$)")


@dataclass(frozen=True)
class Step:
    """`RUN`, `COPY`, … and what stands behind it."""

    instruction: str
    value: str

    @property
    def command(self) -> list[str]:
        """Of RUN, ENTRYPOINT, CMD and HEALTHCHECK, as Docker would start it."""
        text = self.value
        if self.instruction == "HEALTHCHECK":
            text = text.partition("CMD ")[2]
        return list(json.loads(text)) if text.startswith("[") else ["/bin/sh", "-c", text]

    @property
    def copied(self) -> tuple[str, list[str], str]:
        """Of COPY: the stage or context, what is taken from it, and where that goes."""
        source, *names, target = shlex.split(self.value)
        return source.removeprefix("--from="), names, target


@dataclass(frozen=True)
class Stage:
    base: str
    name: str
    steps: tuple[Step, ...]

    def last(self, instruction: str) -> Step:
        return [step for step in self.steps if step.instruction == instruction][-1]

    def environment(self, root: Path, outside: Mapping[str, str]) -> dict[str, str]:
        """Variables of its ENV lines beside those of the machine that programs need; none of LPX's own."""
        found = {name: outside[name] for name in ("PATH", "LANG", "TMPDIR") if name in outside}
        found |= {name: value for name, value in outside.items() if name.lower().startswith(("pip_", "http", "ssl_"))}
        for step in self.steps:
            if step.instruction == "ENV":
                for each in shlex.split(step.value):
                    name, _, value = each.partition("=")
                    found[name] = moved(value, root).replace("$PATH", found["PATH"])
        return found


def read_stages(file: Path) -> list[Stage]:
    stages: list[Stage] = []
    for each in DockerfileParser(fileobj=file.open("rb")).structure:
        if each["instruction"] == "FROM":
            base, _, name = each["value"].partition(" AS ")
            stages.append(Stage(base, name, ()))
        elif stages and each["instruction"] != "COMMENT":
            stage = stages.pop()
            stages.append(Stage(stage.base, stage.name, (*stage.steps, Step(each["instruction"], each["value"]))))
    return stages


def moved(text: str, root: Path) -> str:
    """`text` with the image's own folders below `root`, also within lists such as PATH."""
    return os.pathsep.join(_OWN.sub(lambda found: f"{root}/{found[1]}", part) for part in text.split(os.pathsep))
