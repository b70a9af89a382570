"""`lpx run`: the answer on standard output, the figures apart from it, one JSON object for machines."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess

import pytest

from tests.cli.conftest import COMMAND

GREEDY = ("--temperature", "0", "--max-tokens", "12")


def test_json_tells_all_about_the_answer(lpx):
    done = lpx("run", "--raw", "The capital of France is", *GREEDY, "--json", "--threads", "2")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert "Paris" in answer["text"]
    usage = answer["usage"]
    assert usage["completion_tokens"] == len(answer["token_ids"]) <= 12
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert answer["finish_reason"] in ("stop", "length")
    assert {"load_ms", "ttft_ms", "prefill_ms", "decode_ms", "decode_tokens_per_second"} <= answer["timings"].keys()
    in_use = answer["in_use"]
    assert (in_use["model"], in_use["threads"], in_use["max_model_len"]) == ("smollm2-135m", 2, 1024)
    assert "Q4_1" in in_use["quantization"]
    assert in_use["isa"]


def test_streamed_text_is_the_text_of_the_json(lpx):
    question = ("run", "用一句话介绍北京。", *GREEDY)
    streamed = lpx(*question)
    whole = json.loads(lpx(*question, "--json").stdout)
    assert streamed.returncode == 0, streamed.stderr
    assert streamed.stdout.rstrip("\n") == whole["text"].rstrip("\n")
    assert f"{len(whole['token_ids'])} tokens" in streamed.stderr
    assert len(streamed.stderr.strip().splitlines()) == 1


def test_quiet_leaves_only_the_answer(lpx):
    done = lpx("run", "Say hello.", *GREEDY, "--quiet")
    assert done.stdout.strip()
    assert done.stderr == ""


def test_verbose_says_what_is_in_use(lpx):
    done = lpx("run", "Say hello.", *GREEDY, "--verbose", LPX_ISA="portable")
    first = done.stderr.splitlines()[0]
    assert "smollm2-135m" in first
    assert "portable" in first
    assert "context 1024" in first


def test_prompt_from_a_pipe_equals_the_argument(lpx):
    def heard(*arguments: str, input: bytes = b"") -> tuple[str, int]:
        answer = json.loads(lpx("run", *arguments, "--temperature", "0", "-n", "2", "--json", input=input).stdout)
        return answer["text"], answer["usage"]["prompt_tokens"]

    argument = heard("Name three colours.")
    assert heard(input=b"Name three colours.\n") == argument
    assert heard("-", input=b"\xef\xbb\xbfName three colours.\r\n") == argument


def test_raw_continues_the_text_as_it_is(lpx):
    done = lpx("run", "--raw", "The capital of France is", "--temperature", "0", "--max-tokens", "4", "--json")
    answer = json.loads(done.stdout)
    assert answer["text"].startswith(" Paris")
    assert answer["usage"]["prompt_tokens"] <= 6


def test_system_message_reaches_the_template(lpx):
    plain = json.loads(lpx("run", "Hi", *GREEDY, "--json").stdout)
    steered = json.loads(lpx("run", "Hi", *GREEDY, "--json", "--system", "word " * 50).stdout)
    assert steered["usage"]["prompt_tokens"] > plain["usage"]["prompt_tokens"] + 20


def test_seed_decides_the_sampled_text(lpx):
    def sampled(seed: str) -> str:
        return lpx("run", "Tell a story.", "--temperature", "1", "--seed", seed, "-n", "16", "--quiet").stdout

    assert sampled("5") == sampled("5")
    assert sampled("5") != sampled("6")


def test_stop_string_is_not_shown(lpx):
    done = lpx("run", "--raw", "1, 2, 3, 4,", *GREEDY, "--stop", " 6", "--json")
    answer = json.loads(done.stdout)
    assert answer["text"] == " 5,"
    assert (answer["finish_reason"], answer["stop_reason"]) == ("stop", " 6")


def test_base_model_names_raw_as_the_way_out(lpx, base_model):
    done = lpx("run", "Hello", "--model", str(base_model), LPX_MAX_MODEL_LEN="128")
    assert done.returncode == 2
    assert done.stdout == ""
    assert "no chat template" in done.stderr
    assert "--raw" in done.stderr
    done = lpx("run", "Hello", "--raw", "--model-path", str(base_model), "-n", "4", "--json", LPX_MAX_MODEL_LEN="128")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["usage"]["completion_tokens"] > 0


def test_chat_template_can_be_given(lpx, base_model, tmp_path):
    template = tmp_path / "template.jinja"
    template.write_text("{% for message in messages %}{{ message.content }}{% endfor %}")
    done = lpx(
        "run", "Hello", "-m", str(base_model), "-n", "2", "--chat-template", str(template), LPX_MAX_MODEL_LEN="128"
    )
    assert done.returncode == 0, done.stderr


def start_endless_answer(environment):
    arguments = ["run", "--raw", "Once upon a time", "--ignore-eos", "--temperature", "0"]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([*COMMAND, *arguments], env=environment, **pipes)


def test_interrupt_ends_with_130_and_keeps_the_text_so_far(environment):
    arguments = ["run", "--raw", "Once upon a time", "--ignore-eos", "--temperature", "0"]
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        env=environment,
    )
    first = os.read(process.stdout.fileno(), 64)
    process.send_signal(signal.SIGINT)
    rest, notes = process.communicate(timeout=60)
    assert process.returncode == 130
    assert first
    assert rest.endswith(b"\n")
    assert b"interrupted" in notes
    assert b"Traceback" not in notes


def test_reader_that_leaves_ends_it_quietly(environment):
    arguments = ["run", "--raw", "Once upon a time", "--ignore-eos", "--temperature", "0"]
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        env=environment,
    )
    assert os.read(process.stdout.fileno(), 1)
    process.stdout.close()
    notes = process.stderr.read()
    assert process.wait(timeout=60) == 141
    assert notes == b""


def test_model_text_cannot_drive_a_terminal(environment, base_model):
    # A random model with a byte vocabulary says every control character sooner or later.
    master, slave = pty.openpty()
    arguments = [
        "run",
        "--raw",
        "x",
        "-m",
        str(base_model),
        "--ignore-eos",
        "--temperature",
        "1.5",
        "--seed",
        "1",
        "-q",
    ]
    process = subprocess.Popen(
        [*COMMAND, *arguments, "--max-model-len", "400"], stdout=slave, stdin=subprocess.DEVNULL, env=environment
    )
    os.close(slave)
    shown = b""
    while True:
        try:
            piece = os.read(master, 65536)
        except OSError:  # the other side is closed
            break
        if not piece:
            break
        shown += piece
    assert process.wait(timeout=60) == 0
    os.close(master)
    text = shown.decode().replace("\r\n", "\n")
    assert "\ufffd" in text
    assert [c for c in text if (ord(c) < 32 and c not in "\n\t") or 0x7F <= ord(c) < 0xA0] == []


@pytest.mark.parametrize("isa", ["portable", ""])
def test_kernel_set_comes_from_the_environment(lpx, isa):
    answer = json.loads(lpx("run", "Hi", *GREEDY, "--json", LPX_ISA=isa).stdout)
    assert answer["in_use"]["isa"] == "portable" if isa else answer["in_use"]["isa"]


@pytest.mark.parametrize("arguments", [("models", "list"), ("fit", "--gpus")])
def test_a_reader_that_is_gone_before_anything_is_printed(environment, arguments):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as pipe:
        done = subprocess.run([*COMMAND, *arguments], stdout=pipe, stderr=subprocess.PIPE, env=environment)
    assert (done.returncode, done.stderr) == (141, b"")
