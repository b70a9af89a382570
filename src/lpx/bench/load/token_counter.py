"""How many tokens a text has, by the model's own vocabulary: the server's, or a tokenizer on this machine."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from lpx.bench.load.answer import MOST_TOKENS
from lpx.bench.load.http_client import HttpClient, RequestFailedError
from lpx.errors import ConfigError

if TYPE_CHECKING:
    from lpx.model.tokenizer import Tokenizer


class TokenCounter(Protocol):
    """Counts tokens; `how` says by what."""

    how: str

    async def count(self, text: str, *, special: bool) -> int:
        """Tokens of a text; with those that the model puts around a prompt where `special`."""
        ...


async def find_counter(client: HttpClient, model: str | None, tokenizer: str | None) -> TokenCounter | None:
    """The tokenizer that is named, else what the server offers; None when there is neither."""
    if tokenizer is not None:
        return _LocalCounter(tokenizer)
    named = {} if model is None else {"model": model}
    for counter in (
        _ServerCounter(client, "/tokenize", "prompt", "add_special_tokens", "count", named),  # LPX, vLLM, SGLang
        _ServerCounter(client, "/tokenize", "content", "add_special", "tokens", {}),  # llama.cpp
        _ServerCounter(client, "/extras/tokenize/count", "input", None, "count", {}),  # llama-cpp-python
    ):
        try:
            if await counter.count("one two three", special=False) > 0:
                return counter
        except RequestFailedError:
            continue
    return None


class _ServerCounter:
    def __init__(
        self, client: HttpClient, path: str, text: str, special: str | None, count: str, more: dict[str, str]
    ) -> None:
        self._client, self._path = client, path
        self._text, self._special, self._count = text, special, count  # names of members
        self._more = more
        self.how = f"the server's {path}"

    async def count(self, text: str, *, special: bool) -> int:
        """Raises RequestFailedError for an answer that is no count."""
        body: dict[str, Any] = {**self._more, self._text: text}
        if self._special is not None:
            body[self._special] = special
        exchange = await self._client.post(self._path, json.dumps(body).encode())
        try:
            found = json.loads(exchange.body)[self._count]
            count = found if type(found) is int else len(found)
            if not 0 <= count < MOST_TOKENS:
                raise ValueError(count)
            return count
        except (ValueError, KeyError, TypeError, RecursionError):
            raise RequestFailedError(f"http_{exchange.status}", f"{self._path} gives no count") from None


class _LocalCounter:
    def __init__(self, path: str) -> None:
        self._tokenizer = _load(path)
        self.how = f"the tokenizer of {Path(path).name}"

    async def count(self, text: str, *, special: bool) -> int:
        await asyncio.sleep(0)  # many texts are counted, one after the other
        return len(self._tokenizer.encode(text, add_special=special))


def _load(path: str) -> Tokenizer:
    from lpx.model.files import open_model
    from lpx.model.tokenizer import load_tokenizer

    if not Path(path).exists():
        raise ConfigError(f"--tokenizer {path} does not exist; name a .gguf file or a folder with tokenizer.json")
    with open_model(Path(path)) as files:
        return load_tokenizer(files)
