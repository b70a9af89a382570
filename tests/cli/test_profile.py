"""`--profile`: command line beats environment beats file, what was used is said, and wrong files end with one line."""

from __future__ import annotations

import json

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from lpx.cli.app import app
from lpx.profile import KEYS
from tests.cli.test_errors import one_line

WITH_PROFILE = (("run",), ("chat",), ("serve",), ("bench", "latency"))


def command(*names):
    found = get_command(app)
    for name in names:
        found = found.commands[name]
    return found


@pytest.fixture
def profile(tmp_path):
    def write(text):
        path = tmp_path / "lpx.toml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


@pytest.fixture
def served(monkeypatch, smollm2_path):
    """What `lpx serve` would start with."""
    monkeypatch.setattr("lpx.server.process.serve", lambda options, host, port, **more: seen.update(locals()) or 0)
    seen = {}

    def call(*arguments, **environment):
        result = CliRunner().invoke(app, ["serve", *arguments], env=environment, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return seen

    return call


def test_every_option_of_serve_is_a_key_and_every_key_an_option():
    options = {
        option.opts[0].removeprefix("--").replace("-", "_")
        for option in command("serve").params
        if option.name != "help"
    } - {"profile"}
    assert {key.name for key in KEYS} == options


@pytest.mark.parametrize("names", WITH_PROFILE)
def test_commands_that_load_a_model_take_a_profile(names):
    assert "--profile" in {name for option in command(*names).params for name in option.opts}


def test_command_line_beats_environment_beats_file(served, profile, smollm2_path):
    path = profile(
        f"""
        [model]
        model = "{smollm2_path}"
        [engine]
        threads = 3
        max-num-seqs = 5
        kv-cache-dtype = "q8"
        kv-cache-memory = "64M"
        speculative-config = {{ method = "ngram" }}
        [server]
        port = 8123
        enable-request-timings = false
        [limits]
        max-waiting = 9
        requests-per-minute = 30
        [cors]
        allowed-origins = ["https://a.example"]
        """
    )
    seen = served("--profile", path, "--max-num-seqs", "7", LPX_THREADS="2", LPX_MAX_NUM_SEQS="6")
    options, settings = seen["options"], seen["more"]["settings"]
    assert (options.max_num_seqs, options.threads, options.kv_cache_dtype) == (7, 2, "q8")
    assert (options.kv_cache_memory, options.max_waiting, seen["port"]) == (64 << 20, 9, 8123)
    assert (options.model, options.speculative_config.method) == (str(smollm2_path), "ngram")
    assert settings.limits.requests_per_minute == 30
    assert settings.cors.origins == ("https://a.example",)
    assert not settings.request_timings
    assert served("-m", str(smollm2_path))["options"].threads is None


def test_the_variable_names_a_profile_too(served, profile, smollm2_path):
    path = profile("[engine]\nthreads = 3")
    assert served("-m", str(smollm2_path), LPX_PROFILE=path)["options"].threads == 3


def test_what_was_used_and_what_was_overruled_is_said(lpx, profile, base_model):
    path = profile(f'[model]\nmodel = "{base_model}"\n[engine]\nisa = "portable"\nthreads = 2\n[server]\nport = 1')
    done = lpx("run", "--profile", path, "--raw", "hi", "-n", "2", "--json", LPX_MAX_MODEL_LEN="128")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["in_use"]["isa"] == "portable"
    assert json.loads(done.stdout)["in_use"]["threads"] == 1  # LPX_THREADS of the environment
    line = done.stderr.splitlines()[0]
    assert line == f"profile {path}: model {base_model}, isa portable; overruled: threads"


def test_what_a_profile_gives_does_not_move_the_cursor(profile):
    path = profile('[model]\nmodel = "\\u001b[2Jgone"')
    done = CliRunner().invoke(app, ["run", "--profile", path, "hi"])
    assert "profile " in done.stderr.splitlines()[0]
    assert "?[2Jgone" in done.stderr.splitlines()[0]
    assert "\x1b" not in done.stderr.splitlines()[0]


def test_a_profile_in_the_folder_is_not_used_by_itself(served, profile, smollm2_path, monkeypatch, tmp_path, caplog):
    profile('[engine]\nthreads = 3\n[server]\nhost = "0.0.0.0"')
    monkeypatch.chdir(tmp_path)
    with caplog.at_level("INFO"):
        seen = served("-m", str(smollm2_path))
    assert (seen["host"], seen["options"].threads) == ("127.0.0.1", None)
    assert "lpx.toml in this folder is not used; --profile lpx.toml uses it" in caplog.text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[engine]\nthread = 2", "nearest is threads"),
        ("[server]\nport = 70000", "port: 70000 is not in the range"),
        ('[engine]\nkv-cache-dtype = "q3"', "kv_cache_dtype 'q3' is not known"),
        ("[engine]\nthreads = 0", "threads must be"),
        ('[engine]\nspeculative-config = { method = "magic" }', "'magic' is not known"),
        ('[limits]\nmax-body-size = "9 parsecs"', "is not a size"),
    ],
)
def test_wrong_profiles_end_with_one_line(profile, text, said):
    path = profile(text)
    result = CliRunner().invoke(app, ["serve", "--profile", path])
    assert result.exit_code == 2
    [line] = result.stderr.splitlines()
    assert line.startswith(f"error[LPX-E093]: {path}: ")
    assert said in line


def test_a_profile_that_is_not_there(lpx, tmp_path):
    assert "absent.toml cannot be read" in one_line(lpx("run", "hi", "--profile", str(tmp_path / "absent.toml")), 2)
