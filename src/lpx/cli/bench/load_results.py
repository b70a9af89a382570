"""The result files of `lpx bench serve`: where they go, seen before anything is measured, and written at the end."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lpx.cli.late_failures import report_failure
from lpx.cli.whole_file import check_target, write_whole
from lpx.errors import OUTPUT_NOT_WRITTEN, ConfigError

if TYPE_CHECKING:
    from lpx.bench.load import LoadReport, LoadSettings


@dataclass(frozen=True, slots=True)
class ResultFiles:
    """One file for each level; `paths` is None where their names are made of what is measured.

    Raises ConfigError for files that are there already, unless `append`, and for places that cannot be written.
    """

    folder: Path
    paths: tuple[Path, ...] | None
    append: bool
    detailed: bool

    @classmethod
    def planned(
        cls, settings: Sequence[LoadSettings], folder: Path, filename: str | None, *, append: bool, detailed: bool
    ) -> ResultFiles:
        """For loads with these settings."""
        from lpx.bench.load.vllm_result import named_paths

        if append and filename is None:
            raise ConfigError("--append-result adds to a file: name it with --result-filename")
        if filename is not None and not Path(filename).name:
            raise ConfigError(f"--result-filename {filename!r} is no name of a file")
        paths = None if filename is None else tuple(named_paths(settings, folder, filename))
        return cls(folder, paths, append, detailed)

    def __post_init__(self) -> None:
        if not self.folder.is_dir():
            raise ConfigError(f"--result-dir {self.folder} is no folder; make it first")
        for path in self.paths or ():
            check_target("--result-filename", path, "result.json")
            if path.exists() and not (self.append and path.is_file()):
                raise ConfigError(
                    f"--result-filename {path} is there already; take another name, or add a line to it with "
                    "--append-result"
                )
        for place in self.paths or (self.folder / "result.json",):
            if not os.access(place if place.exists() else place.parent, os.W_OK):
                raise ConfigError(f"the result could not be written to {place.parent}: permission denied")

    def write(self, reports: Sequence[LoadReport]) -> list[Path]:
        """Write a file for each report, and return those that are written; a failure is reported, and ends nothing."""
        from lpx.bench.load.vllm_result import default_path, vllm_result

        written: list[Path] = []
        for at, report in enumerate(reports):
            path = default_path(report, self.folder) if self.paths is None else self.paths[at]
            # Half of a surrogate pair, which a server may cut a text at, is written as JSON's \\udXXX.
            line = json.dumps(vllm_result(report, self.detailed), ensure_ascii=False).encode(
                "utf-8", "backslashreplace"
            )
            try:
                if self.append:
                    with path.open("ab") as file:
                        file.write(b"\n" + line if file.tell() else line)
                else:
                    write_whole(path, line)
            except (ConfigError, OSError) as error:
                message = f"the result cannot be written to {path}: {getattr(error, 'strerror', None) or error}"
                report_failure(message, 1, OUTPUT_NOT_WRITTEN)
            else:
                written.append(path)
        return written
