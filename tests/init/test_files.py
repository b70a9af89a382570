"""Every file of the folder is what its reader takes: systemd, Docker, compose, shells, LPX itself."""

from __future__ import annotations

import configparser
import itertools
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from lpx.cli.app import app
from lpx.init import make_folder
from lpx.profile import KEYS, read_profile
from tests.cli.conftest import COMMAND
from tests.init.image import read_stages

ROOT = Path(__file__).parents[2]


def program(name: str) -> str:
    """A linter of the extra `test`, beside this Python."""
    return str(Path(sys.executable).with_name(name))


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_the_profile_is_one_and_its_comments_are_true(work: Path) -> None:
    file = work / "config" / "lpx.toml"
    assert dict(read_profile(file).values) == {
        "model": "tiny", "host": "127.0.0.1", "port": 8080, "log_format": "text"
    }  # fmt: skip
    lines = file.read_text().splitlines()
    for before, line in itertools.pairwise(lines):
        if re.match(r"(# )?[a-z-]+ = ", line):  # two keys may share one comment
            assert before.startswith("# "), line
    uncommented = re.sub(r"^# ([a-z-]+ = )", r"\1", "\n".join(lines), flags=re.MULTILINE)
    (work / "config" / "all.toml").write_text(uncommented)
    given = read_profile(work / "config" / "all.toml").values
    assert len(given) > 15
    examples = {"threads", "max_model_len", "kv_cache_memory", "served_model_name", "allowed_hosts", "model"}
    for key in KEYS:
        if key.name in given and key.default is not None and key.name not in examples:
            assert f"{key.spelled} = {key.default}" in uncommented.splitlines()


def test_the_example_input_is_sound(work: Path) -> None:
    file = work / "inputs" / "example.jsonl"
    done = run(*COMMAND, "batch", "check", "-i", file, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    texts = file.read_text("utf-8").splitlines()
    assert len({json.loads(text)["custom_id"] for text in texts}) == len(texts)
    assert sum(bool(re.search("[一-鿿]", text)) for text in texts) == len(texts) / 2


def test_scripts_pass_shellcheck(work: Path) -> None:
    scripts = sorted((work / "scripts").glob("*.sh"))
    assert len(scripts) == 3
    done = run(program("shellcheck"), "--enable=all", "--exclude=SC2250,SC2292,SC1091,SC2312", *scripts)
    assert done.returncode == 0, done.stdout


def test_dockerfiles_pass_hadolint(work: Path) -> None:
    for name in ("Dockerfile", "Dockerfile.cuda"):
        done = run(program("hadolint"), "--no-color", "--failure-threshold", "style", work / name)
        assert (done.returncode, done.stdout) == (0, "")
        final = read_stages(work / name)[-1]
        assert final.last("USER").value == "1000:1000"
        assert not [step for step in final.steps if step.instruction == "ADD"]


def test_compose_file_follows_the_specification_and_is_closed(work: Path) -> None:
    file = work / "compose.yaml"
    done = run(program("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", file)
    assert done.returncode == 0, done.stdout
    services: dict[str, Any] = yaml.safe_load(file.read_text())["services"]
    assert set(services) == {"lpx", "lpx-cuda"}
    for service in services.values():
        assert service["ports"] == ["127.0.0.1:${LPX_PORT:-8080}:8080"]
        assert service["cap_drop"] == ["ALL"]
        assert service["read_only"] is True
        for volume in service["volumes"]:
            assert (work / volume["source"]).is_dir()
        assert (work / service["build"]["dockerfile"]).is_file()
    writable = {volume["source"] for volume in services["lpx"]["volumes"] if not volume.get("read_only")}
    assert writable == {"./models", "./outputs", "./logs"}


def test_the_unit_is_whole_and_hardened(work: Path) -> None:
    parser = configparser.RawConfigParser(strict=True, comment_prefixes=("#",))
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(work / "config" / "lpx.service", encoding="utf-8")
    assert parser.sections() == ["Unit", "Service", "Install"]
    service = dict(parser["Service"])
    folder = str(work).replace("%", "%%")
    assert service["ExecStart"] == f'"{folder}/scripts/start.sh"'
    assert service["WorkingDirectory"] == folder
    assert [each.replace("%%", "%") for each in shlex.split(service["ReadWritePaths"])] == [
        str(work / name) for name in ("models", "outputs", "logs")
    ]
    wanted = {
        "User": "lpx", "NoNewPrivileges": "yes", "ProtectSystem": "strict", "LimitNOFILE": "65536",
        "Restart": "on-failure", "StandardError": "journal", "ExecReload": "/bin/kill -HUP $MAINPID",
    }  # fmt: skip
    assert wanted.items() <= service.items()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not here")
def test_systemd_takes_the_unit(work: Path) -> None:
    unit = work / "config" / "lpx.service"
    done = run("systemd-analyze", "verify", unit)
    assert (done.returncode, done.stderr) == (0, "")
    (work / "scripts" / "start.sh").unlink()
    assert "start.sh" in run("systemd-analyze", "verify", unit).stderr  # so it does look


def commands_in(text: str) -> list[list[str]]:
    """Words of every command line in the shell blocks of a page."""
    blocks = re.findall(r"^```sh\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    return [words for block in blocks for line in block.splitlines() if (words := shlex.split(line, comments=True))]


@pytest.mark.parametrize("page", ["README.md", "docs/deployment.md"])
@pytest.mark.parametrize("model", ["smollm2-135m", "tiny@1"])
def test_every_command_of_the_pages_is_one(tmp_path: Path, model: str, page: str) -> None:
    make_folder(str(tmp_path), model, 8080)
    text = ((ROOT if "/" in page else tmp_path) / page).read_text("utf-8")
    checked = 0
    for words in commands_in(text):
        for prefix in PREFIXES:
            if words[: len(prefix)] == prefix:
                parse(words[len(prefix) :])
                checked += 1
        if words[0].startswith("scripts/"):
            assert (tmp_path / words[0]).stat().st_mode & 0o100
    assert checked > 12
    for file in re.findall(r"(?<![\w/])(?:inputs|config|scripts)/[\w.-]+\w", text):
        assert file == "scripts/exercise-images" or (tmp_path / file).is_file(), file


PREFIXES = (
    ["lpx"],
    ["venvs/new/bin/lpx"],
    ["docker", "compose", "run", "--rm", "lpx"],
    ["docker", "compose", "--profile", "cuda", "run", "--rm", "lpx-cuda"],
)


def parse(words: list[str]) -> None:
    """Raises click's error for a command or option that there is not."""
    command: Any = get_command(app)
    context = command.make_context("lpx", [], resilient_parsing=True)
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        name, *words = words
        command = command.commands[name]
        context = command.make_context(name, [], parent=context, resilient_parsing=True)
    context.resilient_parsing = False
    command.make_parser(context).parse_args(list(words))


def test_a_wrong_command_would_be_found() -> None:
    with pytest.raises(Exception, match="--fail-at"):
        parse(["bench", "gate", "--fail-at", "x"])
    with pytest.raises(KeyError):
        parse(["models", "fetch"])
