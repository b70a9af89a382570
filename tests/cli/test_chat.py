"""`lpx chat`: a conversation that remembers, obeys its commands, and survives Ctrl-C."""

from __future__ import annotations

import os
import pty
import re
import subprocess

from lpx.cli import chat
from tests.cli.conftest import COMMAND

SHORT = ("--temperature", "0", "--max-tokens", "8")


def prompt_sizes(notes: str) -> list[int]:
    return [int(size) for size in re.findall(r"prompt (\d+) tokens", notes)]


def test_conversation_is_remembered_until_reset(lpx):
    done = lpx("chat", *SHORT, input="My name is Ada.\nMy name is Ada.\n/reset\nMy name is Ada.\n")
    assert done.returncode == 0, done.stderr
    first, second, third = prompt_sizes(done.stderr)
    assert second > first + 8
    assert third == first


def test_start_says_what_is_in_use(lpx):
    done = lpx("chat", input="")
    assert done.returncode == 0
    assert done.stdout == ""
    assert "smollm2-135m" in done.stderr.splitlines()[0]


def test_commands_are_obeyed_and_not_answered(lpx):
    done = lpx("chat", *SHORT, input="/help\n/nonsense\nHello\n/stats\n\n   \n/exit\nnever reached\n")
    assert done.returncode == 0
    assert "/reset" in done.stderr
    assert "no command /nonsense" in done.stderr
    assert re.search(r"last answer: \d+ tokens", done.stderr)
    assert re.search(r"context: \d+ of 1024 tokens", done.stderr)
    assert len(set(prompt_sizes(done.stderr))) == 1  # one answer, shown again by /stats


def test_chinese_and_separators_arrive_whole(lpx):
    plain, separated = (lpx("chat", *SHORT, input=text) for text in ("你好,世界\n", "你好,\u2028世界\n"))
    assert len(prompt_sizes(plain.stderr)) == len(prompt_sizes(separated.stderr)) == 1
    assert prompt_sizes(separated.stderr)[0] > prompt_sizes(plain.stderr)[0]


def test_line_that_is_not_utf8_does_not_end_the_conversation(lpx):
    done = lpx("chat", *SHORT, input=b"caf\xe9\nHello\n")
    assert done.returncode == 0
    assert "not valid UTF-8" in done.stderr
    assert len(prompt_sizes(done.stderr)) == 1


def test_message_beyond_the_context_leaves_the_conversation_as_it_was(lpx):
    done = lpx("chat", *SHORT, input=f"Hello\n{'word ' * 2000}\nHello\n")
    assert done.returncode == 0
    assert "/reset" in done.stderr
    first, second = prompt_sizes(done.stderr)
    assert second > first


def test_base_model_cannot_chat(lpx, base_model):
    done = lpx("chat", "-m", str(base_model), LPX_MAX_MODEL_LEN="128")
    assert done.returncode == 2
    assert "no chat template" in done.stderr


class Terminal:
    """A process on a terminal of its own, driven as a person would."""

    def __init__(self, arguments: list[str], environment: dict[str, str]) -> None:
        self.master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [*COMMAND, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**environment, "TERM": "xterm", "LANG": "C.UTF-8"},
            start_new_session=True,
            preexec_fn=lambda: os.close(os.open(os.ttyname(0), os.O_RDWR)),  # make it the controlling terminal
        )
        os.close(slave)
        self.shown = ""

    def wait_for(self, pattern: str) -> str:
        """Read until `pattern` appears, and take what was shown up to its end."""
        data = self.shown.encode()
        while not (match := re.search(pattern, data.decode(errors="replace"))):
            data += os.read(self.master, 4096)
        text = data.decode(errors="replace")
        self.shown = text[match.end() :]
        return text[: match.end()]

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())


def test_ctrl_c_stops_the_answer_and_not_the_program(environment):
    terminal = Terminal(["chat", "--ignore-eos", "--temperature", "0"], environment)
    terminal.wait_for("> ")
    terminal.type("讲一个故事\n")
    terminal.wait_for("\n.*\\S")  # the answer has begun, after the echo of the question
    terminal.type("\x03")
    terminal.wait_for("interrupted")
    terminal.wait_for("> ")
    terminal.type("/exit\n")
    assert terminal.process.wait(timeout=60) == 0
    os.close(terminal.master)


def test_ctrl_c_at_the_prompt_does_not_leave(monkeypatch, capsys):
    # In one process: readline misses a signal that comes before it waits for keys, so a terminal could not be sure.
    lines = iter([KeyboardInterrupt(), "/nonsense", None])

    def read_line():
        line = next(lines)
        if isinstance(line, KeyboardInterrupt):
            raise line
        return line

    monkeypatch.setattr(chat, "_read_line", read_line)
    chat._Conversation(engine=None, params=None, system=None).run()
    notes = capsys.readouterr().err
    assert notes.index("/exit or Ctrl-D leaves") < notes.index("no command /nonsense")


def test_ctrl_d_leaves(environment):
    terminal = Terminal(["chat"], environment)
    terminal.wait_for("> ")
    terminal.type("\x04")
    assert terminal.process.wait(timeout=60) == 0
    os.close(terminal.master)
