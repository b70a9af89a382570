"""A server with OpenAI's API as the target: LPX, vLLM, llama.cpp, Ollama, or OpenAI's own."""

from __future__ import annotations

import asyncio
import contextlib
import re
from dataclasses import replace
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from lpx.addresses import without_secrets
from lpx.batch.errors import BatchFileError, TargetGone, TargetUnreachable
from lpx.batch.json_text import json_line, read_json
from lpx.batch.line_request import LineRequest
from lpx.batch.result_line import error_of
from lpx.batch.target import Answer
from lpx.off_loop import off_loop
from lpx.shown_key import check_shown_key, json_without_key, without_key

if TYPE_CHECKING:
    import httpx

MAX_ANSWER_BYTES = 64 << 20
_LONGEST_SHOWN = 2000  # characters of an answer that is no JSON
_LONGEST_DATE = 64  # characters of a Retry-After
_TRIES = 3  # of the first look
_LOOK_S = 30.0  # for each of them


class HttpTarget:
    """Sends each request over a pool of connections. Use as an async context manager."""

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        model: str | None = None,
        connections: int = 16,
        timeout_s: float = 600.0,
    ) -> None:
        """`url` is the server, with or without `/v1`; `model` is for lines that name none; `timeout_s` bounds each
        attempt as a whole. Raises `ConfigError` for an address or a key that cannot be one.
        """
        import httpx

        self._base = _base_url(url)
        self._model = model
        self._key = check_shown_key(api_key)
        # A few bytes of a packed answer can hold gigabytes, so none is asked for, and none is unpacked.
        headers = {"content-type": "application/json", "accept-encoding": "identity"}
        if self._key is not None:
            headers["authorization"] = f"Bearer {self._key}"
        self._timeout_s = timeout_s
        self._client = httpx.AsyncClient(
            headers=headers,
            timeout=httpx.Timeout(timeout_s, connect=min(timeout_s, 15.0)),
            limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
        )

    async def __aenter__(self) -> HttpTarget:
        return self

    async def __aexit__(self, *ending: object) -> None:
        await self._client.aclose()

    async def look(self) -> str | None:
        """See that the server is there and lets us in, and return the model that lines without one will name.

        Raises `TargetGone`.
        """
        for last in (False,) * (_TRIES - 1) + (True,):
            try:
                answer, data = await self._exchange("GET", "/v1/models", None, {}, min(self._timeout_s, _LOOK_S))
            except TargetUnreachable as exc:
                if last:
                    raise TargetGone(f"the server {self._base} does not answer: {exc}") from None
                continue
            if answer.status_code in (401, 403):
                raise TargetGone(
                    f"the server {self._base} answers {answer.status_code}: give its key in LPX_BATCH_API_KEY or "
                    "OPENAI_API_KEY, or with --api-key"
                )
            if self._model is None and answer.status_code == 200:
                self._model = _only_model(data)
            if answer.status_code < 500:
                break
        return self._model

    async def send(self, request: LineRequest, request_id: str) -> Answer:
        body = request.body
        if self._model is not None and body.get("model") is None:
            body = {**body, "model": self._model}
        answer, data = await self._exchange(
            "POST", request.url, json_line(body), {"x-request-id": request_id}, self._timeout_s
        )
        try:
            parsed = await off_loop(data, lambda: read_json(data))
        except ValueError:
            if answer.status_code == 200:
                raise TargetUnreachable("the answer is no JSON, or was cut off") from None
            parsed = without_key(data.decode("utf-8", "replace"), self._key)[:_LONGEST_SHOWN]
        given = without_key(answer.headers.get("x-request-id", request_id), self._key)
        result = Answer(answer.status_code, parsed, given, retry_after_s(answer.headers.get("retry-after")))
        if self._key is None or error_of(result) is None:
            return result
        return replace(result, body=json_without_key(parsed, self._key))

    async def _exchange(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str], timeout_s: float
    ) -> tuple[httpx.Response, bytes]:
        """An answer of any status, whole, in bounded time and room. Raises `TargetUnreachable`."""
        import httpx

        asking = self._read_answer(self._client.stream(method, self._base + path, content=body, headers=headers))
        try:
            return await asyncio.wait_for(asking, timeout_s)
        except asyncio.TimeoutError:
            raise TargetUnreachable("it took too long") from None
        except (httpx.HTTPError, httpx.StreamError, httpx.InvalidURL) as exc:
            raise TargetUnreachable(_reason(exc)) from None

    async def _read_answer(
        self, asking: contextlib.AbstractAsyncContextManager[httpx.Response]
    ) -> tuple[httpx.Response, bytes]:
        """Piece by piece, since a server may send without end."""
        pieces, size = [], 0
        async with asking as answer:
            if answer.headers.get("content-encoding", "identity").strip().lower() != "identity":
                raise TargetUnreachable("the answer is packed (Content-Encoding), which was not asked for")
            async for piece in answer.aiter_raw():
                size += len(piece)
                if size > MAX_ANSWER_BYTES:
                    raise TargetUnreachable(f"the answer is larger than {MAX_ANSWER_BYTES >> 20} MiB")
                pieces.append(piece)
        return answer, b"".join(pieces)


def retry_after_s(value: str | None, now: datetime | None = None) -> float | None:
    """Seconds that a `Retry-After` header asks for, as a number or a date; None where there is none to use.

    They may be any number: whoever waits decides what is too long.
    """
    if value is None or len(value) > _LONGEST_DATE:
        return None
    if re.fullmatch(r"\s*\d{1,9}(\.\d{1,9})?\s*", value, re.ASCII):
        return float(value)
    try:
        when = parsedate_to_datetime(value)
        if when.tzinfo is None:
            when = when.replace(tzinfo=timezone.utc)
        return max(0.0, (when - (now or datetime.now(timezone.utc))).total_seconds())
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def _base_url(url: str) -> str:
    import httpx

    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, ValueError):
        parsed = httpx.URL("")
    if parsed.scheme not in ("http", "https") or not parsed.host or parsed.query or parsed.userinfo:
        raise BatchFileError(
            f"--url {without_secrets(url)!r} is not the address of a server; write it like http://127.0.0.1:8080, "
            "without a user"
        )
    return str(parsed).rstrip("/").removesuffix("/v1")


def _only_model(data: bytes) -> str | None:
    try:
        listed: Any = read_json(data)
        names = [each["id"] for each in listed["data"]]
    except (ValueError, KeyError, TypeError):
        return None
    return names[0] if len(names) == 1 and isinstance(names[0], str) else None


def _reason(error: Exception) -> str:
    """Without the address, which may hold a name or a token."""
    import httpx

    if isinstance(error, httpx.TimeoutException):
        return "it took too long"
    if isinstance(error, httpx.ConnectError):
        return "no connection can be made"
    return f"the connection failed ({type(error).__name__})"
