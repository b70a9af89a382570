"""Whatever a command line holds, LPX ends in one line that says what is wrong, never in a traceback or a hang.

Every option and argument of every command gets values that are no good, while everything else is harmless: no model, no
server that answers. A seeded sample runs by default; LPX_TEST_ALL_BAD_VALUES=1 tries all.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import lpx
from lpx.cli.app import app
from lpx.plain_text import plain_text

_SAMPLE = 160
_NOWHERE = "http://127.0.0.1:9"
_NO_MODEL = "no-such-model"
# What a line of error may be about instead of the value: everything that is not there, and what is never repeated.
_HARMLESS = (
    *(_NO_MODEL, "127.0.0.1:9", "'none'", "none.", "ledger.sqlite", "API key", "--ssl-certfile", "this message"),
    "config is an object",
)
_EXIT_CODES = {0, 1, 2, 3, 130, 141}
# What a command needs beside the value in question, so that it comes to look at that; {…} are of the scene below.
_NEEDED: dict[str, list[str]] = {
    "run": ["hi"],
    "serve": ["--port", "0"],
    "fit": [_NO_MODEL, "--models-dir", "{empty}"],
    "tune": ["--output", "{scratch}/tuned.toml"],
    "eval": [_NO_MODEL],
    "quantize": [_NO_MODEL, "{scratch}/new.gguf", "--scheme", "q4"],
    "doctor": ["cpu"],
    "explain": ["LPX-E001"],
    "snapshot": ["--no-hash"],
    "init": ["{empty}/work"],
    "snapshot diff": ["{scratch}/none.json"],
    "bench roofline": ["--isa", "none"],
    "bench serve": ["--url", _NOWHERE],
    "bench decode": ["--url", _NOWHERE],
    "bench show": ["9"],
    "bench note": ["9", "text"],
    "bench rm": ["9", "--yes"],
    "bench plot": ["{scratch}/plot.svg", "--force"],
    "bench export": ["{scratch}/export.csv", "--force"],
    "bench compare": [f"lpx:model={_NO_MODEL}", f"lpx:model={_NO_MODEL},threads=1"],
    "bench gate": ["--baseline", "none"],
    "bench baseline set": ["name"],
    "bench baseline show": ["none"],
    "bench baseline rm": ["none"],
    "batch run": ["--input-file", "{lines}", "--output-file", "{scratch}/out.jsonl", "--url", _NOWHERE],
    "batch check": ["--input-file", "{lines}"],
    "batch status": ["--input-file", "{lines}", "--output-file", "{scratch}/out.jsonl"],
    "models pull": [f"{_NOWHERE}/m.gguf"],
    "models show": [_NO_MODEL],
    "models path": [_NO_MODEL],
    "models verify": [_NO_MODEL],
    "models use": [_NO_MODEL],
    "models rollback": [_NO_MODEL],
    "models rm": [_NO_MODEL, "--yes"],
    "models cp": [_NO_MODEL, "copy"],
    "models import": ["{scratch}/none.gguf"],
    "models convert": [_NO_MODEL, "--to", "q8"],
}


@dataclass(frozen=True)
class Case:
    command: str
    option: str  # as written, or the name of an argument
    value: str
    arguments: list[str]


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    inner = getattr(command, "commands", {})
    for name in inner:
        yield from commands(inner[name], (*path, name))
    if not inner or (path and command.invoke_without_command):
        yield " ".join(path), command


def cases(scene: dict[str, str]) -> Iterator[Case]:
    values = [
        *(
            "",
            " ",
            "\x01\x1b[31m\x7f",
            "\udcff\udc80",
            "nan",
            "-1",
            "1e999",
            "9" * 5000,
            "x" * 5000,
            "٣",
            "１２",
            "北京",
        ),
        *(scene["folder"], scene["pipe"], "/dev/zero", scene["scratch"] + "/missing/file"),
    ]
    for path, command in commands(get_command(app)):
        needed = [each.format(**scene) for each in _NEEDED.get(path, [])]
        place = 0
        for parameter in command.params:
            if parameter.param_type_name == "argument":
                for value in values:
                    given = needed.copy()
                    given[place : place + 1] = [value]
                    yield Case(path, parameter.name, value, [*path.split(), *_last(given)])
                place += 1
                continue
            for spelled in (parameter.opts[0], *parameter.secondary_opts):
                for value in ["x"] if parameter.is_flag else values:
                    yield Case(path, spelled, value, [*path.split(), *needed, f"{spelled}={value}"])


def _last(given: list[str]) -> list[str]:
    """Options first, so that a value that begins with a dash can be an argument."""
    options = []
    for at, word in enumerate(given):
        if word.startswith("--"):
            options = given[at:]
            given = given[:at]
            break
    return [*options, "--", *given]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("bad-values")
    for name in ("empty", "scratch", "folder"):
        (folder / name).mkdir()
    os.mkfifo(folder / "pipe")
    (folder / "lines.jsonl").write_text('{"prompt": "hi"}\n')
    names = {name: str(folder / name) for name in ("empty", "scratch", "folder", "pipe")}
    return {**names, "lines": str(folder / "lines.jsonl")}


def run_all(chosen: list[Case], scene: dict[str, str]) -> Iterator[tuple[Case, int, str, str]]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("LPX_", "HF_"))}
    environment |= {
        "LPX_MODELS_DIR": scene["empty"],
        "LPX_MODEL": _NO_MODEL,
        "LPX_LEDGER": scene["scratch"] + "/ledger.sqlite",
        "HF_ENDPOINT": _NOWHERE,
        "MODELSCOPE_ENDPOINT": _NOWHERE,
        "HTTP_PROXY": _NOWHERE,
        "HTTPS_PROXY": _NOWHERE,
        "PIP_INDEX_URL": _NOWHERE,
        "PIP_RETRIES": "0",
        "HOME": scene["empty"],
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), str(Path(lpx.__file__).parents[1])]),
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.cli.forked_commands"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        cwd=scene["scratch"],
        text=True,
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        json.dump([case.arguments for case in chosen], process.stdin)
        process.stdin.close()
        for case, line in zip(chosen, process.stdout, strict=True):
            yield case, *json.loads(line)
    assert process.returncode == 0


def problem(case: Case, code: int, out: str, err: str) -> str | None:
    """What is wrong with the end of a command, or None."""
    if code < 0:
        return f"ended by signal {-code}"
    if code not in _EXIT_CODES:
        return f"exit code {code}"
    if "Traceback (most recent" in err:
        return err.strip().splitlines()[-1][:300]
    if any(not (character.isprintable() or character in "\n\t") for character in out + err):
        return "control characters"
    if code == 0 or case.command.startswith(("doctor", "bench gate")):
        return None  # their codes speak of what they found
    lines = err.strip().splitlines()
    said = [line for line in lines if re.match(r"error\[LPX-E\d{3}\]: .+ \(lpx explain LPX-E\d{3}\)$", line)]
    if not said or said != lines[-1:]:
        return f"not one line of error: {err[-300:]!r}"
    if len(said[0]) > 2000:
        return f"an error line of {len(said[0])} characters"
    words = [case.option, case.option.strip("-").replace("-", "_"), case.option.lower(), *_HARMLESS]
    shown = plain_text(case.value).strip()
    words += [shown[:20], repr(case.value)[1:20]]
    if shown and not any(word in said[0] for word in words if word):
        return f"does not name the value: {said[0][:300]}"
    return None


def test_no_value_ends_in_a_traceback_or_a_hang(scene: dict[str, str]) -> None:
    chosen = list(cases(scene))
    if os.environ.get("LPX_TEST_ALL_BAD_VALUES", "0") in ("", "0"):
        chosen = random.Random(7).sample(chosen, _SAMPLE)
    failed = []
    for case, code, out, err in run_all(chosen, scene):
        if found := problem(case, code, out, err):
            failed.append(f"lpx {case.command} {case.option} {case.value[:30]!r}: {found}")
    assert not failed, "\n".join([f"{len(failed)} of {len(chosen)}", *failed])
