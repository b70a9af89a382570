"""Prompts out of the user's files: JSON lines, and conversations as ShareGPT has them."""

from __future__ import annotations

import asyncio
import io
import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, TextIO, TypeVar

from lpx.bench.load.prompt import Job, Prompt
from lpx.errors import ConfigError
from lpx.regular_file import open_regular, read_bounded

T = TypeVar("T")

_TEXTS = ("prompt", "question", "text", "input", "instruction")
_LENGTHS = ("output_tokens", "max_tokens", "output_len")
_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}
MAX_FILE_BYTES = 4 * 1024**3


def read_jsonl(path: str, output_len: int, most: int) -> list[Job]:
    """One prompt a line: an object with `prompt` (or `messages`), and `output_tokens` where it differs; or a string.

    Reads no further than to the line that gives the last of `most` prompts. Raises ConfigError with the number of the
    line that cannot be used.
    """
    jobs: list[Job] = []
    with _opened(path) as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ConfigError(f"{path}, line {number} is no JSON: {error}") from None
            jobs.append(Job((_prompt(row, output_len, f"{path}, line {number}"),)))
            if len(jobs) == most:
                break
    if not jobs:
        raise ConfigError(f"{path} holds no prompts")
    return jobs


def read_sharegpt(path: str, output_len: int, most: int) -> list[Job]:
    """The first user's message of each conversation in a JSON list (or lines) with `conversations` of `from`, `value`.

    Takes the first `most` of them. Raises ConfigError when it is no such file.
    """
    with _opened(path) as lines:
        text = lines.read()
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError):
        try:
            rows = [json.loads(line) for line in text.split("\n") if line.strip()]
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{path} is neither a JSON list nor JSON lines: {error}") from None
    jobs = [Job((Prompt(message, output_len),)) for message in islice(_first_messages(rows), most)]
    if not jobs:
        raise ConfigError(f"{path} holds no conversation of the form {{'conversations': [{{'from', 'value'}}]}}")
    return jobs


async def beside_the_loop(work: Callable[[], T]) -> T:
    """What `work` gives, made in a thread that nothing waits for when this is cancelled: a pipe may never end."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def tell(give: Callable[[Any], None], value: Any) -> None:
        if not done.done():
            give(value)

    def run() -> None:
        try:
            outcome: tuple[Callable[[Any], None], Any] = done.set_result, work()
        except Exception as error:
            outcome = done.set_exception, error
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(tell, *outcome)

    threading.Thread(target=run, name="prompts", daemon=True).start()
    return await done


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


@contextmanager
def _opened(path: str) -> Iterator[TextIO]:
    """The file's lines, which end with "\\n" alone. What cannot be opened or read is a ConfigError."""
    try:
        if Path(path).is_file():
            with io.TextIOWrapper(open_regular(Path(path)), encoding="utf-8-sig", newline="\n") as lines:
                if os.fstat(lines.fileno()).st_size > MAX_FILE_BYTES:
                    raise ConfigError(f"{path} is larger than {MAX_FILE_BYTES >> 30} GiB")
                yield lines
        else:  # what another command writes
            yield io.StringIO(read_bounded(Path(path), MAX_FILE_BYTES).decode("utf-8-sig"), newline="\n")
    except UnicodeDecodeError as error:
        raise ConfigError(f"--dataset-path {path} is no UTF-8: {error.reason}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"--dataset-path {path[:200]} cannot be read: {reason}") from None
