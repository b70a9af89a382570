"""Every command that the documentation shows is one that LPX takes."""

from __future__ import annotations

import json
import os
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

from lpx.server.app import ROUTES
from tests.docs.cli_grammar import check
from tests.docs.pages import (
    BLOCKS,
    PAGES,
    ROOT,
    SHELL,
    Block,
    commands_of,
    examples_of,
    in_language,
    leaf_commands,
    name_of,
)

_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_LOCAL_URL = re.compile(
    r"\b(?:https?|ws)://(?:127\.0\.0\.1|localhost):\d+(/[^\s\"'`<>),]*)?|\blocalhost:\d+(/[^\s\"'`]*)"
)
_LONG_OPTION = re.compile(r"--[a-z][a-z0-9-]*")
_OF_OTHERS = {
    "--help",
    "--version",
    "--gpus",
    "--wait",
    "--cpus",
    "--build-arg",
}  # that no command of ours lists, or that other programs have


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("LPX_")]:
        monkeypatch.delenv(name)


@pytest.mark.parametrize("block", in_language(*SHELL), ids=name_of)
def test_commands_in_blocks_are_taken(block: Block) -> None:
    for command in commands_of(block.script):
        if command.lpx_arguments is not None:
            check(command.lpx_arguments)


@cache
def _known_options() -> set[str]:
    """Long options of all commands, and of the scripts beside them."""
    of_commands = {name for _, command in leaf_commands() for each in command.params for name in each.opts}
    off = {name for _, command in leaf_commands() for each in command.params for name in each.secondary_opts}
    scripts = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "benchmarks").glob("*.py"))
    return of_commands | off | set(re.findall(r'"(--[a-z][a-z0-9-]*)"', scripts)) | _OF_OTHERS


def test_there_are_many_of_them() -> None:
    found = [c.lpx_arguments for block in in_language(*SHELL) for c in commands_of(block.script)]
    assert sum(arguments is not None for arguments in found) > 100


@pytest.mark.parametrize("block", in_language(*SHELL), ids=name_of)
def test_shells_read_the_blocks(block: Block) -> None:
    done = subprocess.run(["bash", "-n"], input=block.script, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_and_options_in_the_text_are_taken(page: Path) -> None:
    known = _known_options()
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for span in _SPAN.findall(text):
        if span.startswith(("lpx ", "python -m lpx ")) and not re.search(r"…|\.\.\.", span):
            (command,) = commands_of(span)
            assert command.lpx_arguments is not None
            check(command.lpx_arguments, mention=True)
        elif span.startswith("--"):
            for option in _LONG_OPTION.findall(span):
                assert option in known, span


@pytest.mark.parametrize(
    ("path", "command"), leaf_commands(), ids=lambda value: " ".join(value) if isinstance(value, tuple) else ""
)
def test_every_command_has_an_example_that_it_takes(path: tuple[str, ...], command: object) -> None:
    examples = examples_of(command)
    assert any(line.startswith(" ".join(("lpx", *path))) for _, line in examples)
    for _, line in examples:
        for shown in commands_of(line):
            assert shown.lpx_arguments is not None
            check(shown.lpx_arguments)


def test_local_addresses_have_something_at_their_path() -> None:
    patterns = [re.compile(re.sub(r"\{[^}]*\}", "[^/]+", route)) for route in ROUTES]
    for block in BLOCKS:
        for match in _LOCAL_URL.finditer(block.text):
            path = (match[1] or match[2] or "/").split("?")[0].rstrip("/.,;") or "/"
            assert path == "/v1" or any(pattern.fullmatch(path) for pattern in patterns), (block.place, match[0])


def test_curl_sends_json_that_can_be_read() -> None:
    seen = 0
    for block in in_language(*SHELL):
        for command in commands_of(block.script):
            if command.words[:1] == ("curl",):
                for option, value in zip(command.words, command.words[1:], strict=False):
                    if option == "-d":
                        json.loads(value)
                        seen += 1
    assert seen >= 4
