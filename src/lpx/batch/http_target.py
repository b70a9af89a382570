"""A server with OpenAI's API as the target: LPX, vLLM, llama.cpp, Ollama, or OpenAI's own."""

from __future__ import annotations

import asyncio
import re
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from lpx.addresses import without_secrets
from lpx.batch.errors import BatchFileError, TargetGone, TargetUnreachable
from lpx.batch.json_text import json_line, read_json
from lpx.batch.line_request import LineRequest
from lpx.batch.target import Answer
from lpx.bearer_key import check_bearer_key

if TYPE_CHECKING:
    import httpx

MAX_ANSWER_BYTES = 64 << 20
_LONGEST_SHOWN = 2000  # characters of an answer that is no JSON
_TRIES = 3  # of the first look


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
        attempt as a whole. Raises `BatchFileError`, and `ConfigError` for a key that cannot be one.
        """
        import httpx

        self._base = _base_url(url)
        self._model = model
        headers = {"content-type": "application/json"}
        if api_key:
            check_bearer_key(api_key)
            headers["authorization"] = f"Bearer {api_key}"
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
        import httpx

        for last in (False,) * (_TRIES - 1) + (True,):
            try:
                answer = await self._client.get(f"{self._base}/v1/models")
            except httpx.HTTPError as exc:
                if last:
                    raise TargetGone(f"the server {self._base} does not answer: {_reason(exc)}") from None
                continue
            if answer.status_code in (401, 403):
                raise TargetGone(
                    f"the server {self._base} answers {answer.status_code}: give its key in LPX_BATCH_API_KEY or "
                    "OPENAI_API_KEY, or with --api-key"
                )
            if self._model is None and answer.status_code == 200:
                self._model = _only_model(answer)
            if answer.status_code < 500:
                break
        return self._model

    async def send(self, request: LineRequest, request_id: str) -> Answer:
        import httpx

        body = request.body
        if self._model is not None and body.get("model") is None:
            body = {**body, "model": self._model}
        asking = self._ask(self._base + request.url, json_line(body), {"x-request-id": request_id})
        try:
            answer, data = await asyncio.wait_for(asking, self._timeout_s)
        except asyncio.TimeoutError:
            raise TargetUnreachable("it took too long") from None
        except httpx.HTTPError as exc:
            raise TargetUnreachable(_reason(exc)) from None
        try:
            parsed = read_json(data)
        except ValueError:
            if answer.status_code == 200:
                raise TargetUnreachable("the answer is no JSON, or was cut off") from None
            parsed = data.decode("utf-8", "replace")[:_LONGEST_SHOWN]
        given = answer.headers.get("x-request-id", request_id)
        return Answer(answer.status_code, parsed, given, retry_after_s(answer.headers.get("retry-after")))

    async def _ask(self, url: str, body: bytes, headers: dict[str, str]) -> tuple[httpx.Response, bytes]:
        """The answer, read piece by piece, since a server may send without end."""
        pieces, size = [], 0
        async with self._client.stream("POST", url, content=body, headers=headers) as answer:
            async for piece in answer.aiter_bytes():
                size += len(piece)
                if size > MAX_ANSWER_BYTES:
                    raise TargetUnreachable(f"the answer is larger than {MAX_ANSWER_BYTES >> 20} MiB")
                pieces.append(piece)
        return answer, b"".join(pieces)


def retry_after_s(value: str | None, now: datetime | None = None) -> float | None:
    """Seconds that a `Retry-After` header asks for, as a number or a date; None where there is none to use."""
    if value is None:
        return None
    if re.fullmatch(r"\s*\d{1,9}(\.\d{1,9})?\s*", value, re.ASCII):
        return float(value)
    try:
        when = parsedate_to_datetime(value)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=timezone.utc)
    return max(0.0, (when - (now or datetime.now(timezone.utc))).total_seconds())


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


def _only_model(answer: httpx.Response) -> str | None:
    try:
        listed: Any = answer.json()
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
