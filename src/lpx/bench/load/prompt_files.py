"""Prompts out of the user's files: JSON lines, and conversations as ShareGPT has them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lpx.bench.load.prompt import Job, Prompt
from lpx.errors import ConfigError
from lpx.regular_file import read_bounded

_TEXTS = ("prompt", "question", "text", "input", "instruction")
_LENGTHS = ("output_tokens", "max_tokens", "output_len")
_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}
MAX_FILE_BYTES = 4 * 1024**3


def read_jsonl(path: str, output_len: int) -> list[Job]:
    """One prompt a line: an object with `prompt` (or `messages`), and `output_tokens` where it differs; or a string.

    Raises ConfigError with the number of the line that cannot be used.
    """
    jobs = []
    for number, line in enumerate(_text(path).split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ConfigError(f"{path}, line {number} is no JSON: {error}") from None
        jobs.append(Job((_prompt(row, output_len, f"{path}, line {number}"),)))
    if not jobs:
        raise ConfigError(f"{path} holds no prompts")
    return jobs


def read_sharegpt(path: str, output_len: int) -> list[Job]:
    """The first user's message of each conversation in a JSON list (or lines) with `conversations` of `from`, `value`.

    Raises ConfigError when it is no such file.
    """
    text = _text(path)
    try:
        rows = json.loads(text)
    except ValueError:
        try:
            rows = [json.loads(line) for line in text.split("\n") if line.strip()]
        except ValueError as error:
            raise ConfigError(f"{path} is neither a JSON list nor JSON lines: {error}") from None
    jobs = [Job((Prompt(message, output_len),)) for message in _first_messages(rows)]
    if not jobs:
        raise ConfigError(f"{path} holds no conversation of the form {{'conversations': [{{'from', 'value'}}]}}")
    return jobs


def _first_messages(rows: Any) -> Iterator[str]:
    for row in rows if isinstance(rows, list) else ():
        turns = row.get("conversations") or row.get("conversation") if isinstance(row, dict) else None
        for turn in turns if isinstance(turns, list) else ():
            if not isinstance(turn, dict) or _ROLES.get(str(turn.get("from", turn.get("role")))) != "user":
                continue
            value = turn.get("value", turn.get("content"))
            if isinstance(value, str) and value.strip():
                yield value
            break


def _prompt(row: Any, output_len: int, where: str) -> Prompt:
    if isinstance(row, str) and row:
        return Prompt(row, output_len)
    if not isinstance(row, dict):
        raise ConfigError(f"{where} is neither a string nor an object with a prompt")
    length = next((row[name] for name in _LENGTHS if row.get(name) is not None), output_len)
    if not isinstance(length, int) or isinstance(length, bool) or length < 1:
        raise ConfigError(f"{where}: the output length {length!r} is no number of tokens")
    messages = row.get("messages")
    if isinstance(messages, list) and messages and all(isinstance(message, dict) for message in messages):
        return Prompt(tuple(messages), length)
    for name in _TEXTS:
        if isinstance(row.get(name), str) and row[name]:
            return Prompt(row[name], length)
    raise ConfigError(f"{where} has no prompt; it needs one of {', '.join(_TEXTS)} as a text, or messages as a list")


def _text(path: str) -> str:
    try:
        return read_bounded(Path(path), MAX_FILE_BYTES).decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"--dataset-path {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"--dataset-path {path} is no UTF-8: byte {error.start}") from None
