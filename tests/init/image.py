"""The steps of a Dockerfile, run without Docker: commands, with the paths of the image moved below a folder.

`scripts/exercise-images` builds with them; tests start what the last stage starts.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dockerfile_parse import DockerfileParser

# Folders of the image that the Dockerfiles make themselves. /etc, /var and the like stay those of the machine.
_OWN = re.compile(r"(?<![\w./-])/(build|opt|lpx)(?=[/:\s]|$)")


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
    """`text` with the image's own folders below `root`."""
    return _OWN.sub(lambda found: f"{root}/{found[1]}", text)


class Container:
    """What the last stage starts, as a process; `variables` are those of `docker run -e`."""

    def __init__(self, stage: Stage, root: Path, log: Path, variables: Mapping[str, str]) -> None:
        self._stage, self._root = stage, root
        self.environment = {**stage.environment(root, os.environ), **variables}
        with log.open("w") as file:
            self.process = subprocess.Popen(
                [*stage.last("ENTRYPOINT").command, *stage.last("CMD").command],
                env=self.environment,
                cwd=moved(stage.last("WORKDIR").value, root),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def health(self) -> int:
        """Exit code of the health check: 0 is healthy."""
        command = self._stage.last("HEALTHCHECK").command
        return subprocess.run(command, env=self.environment, capture_output=True, timeout=120).returncode

    def end(self) -> int:
        """Ask it to end, as `docker stop` does, and return its exit code."""
        if self.process.poll() is None:
            self.process.terminate()
        return self.process.wait(120)
