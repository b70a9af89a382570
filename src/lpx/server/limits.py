"""What is refused before a request is understood: foreign hosts, wrong types, bodies too large, too deep or too slow.

Without CORS a browser page of another origin can neither read answers nor pass the preflight that a JSON body needs.
The Host check closes the other way in, DNS rebinding, where the foreign page becomes same-origin by name.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import re
from collections.abc import Callable
from time import monotonic
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request

from lpx.json_depth import crowd, is_nested_deeper
from lpx.off_loop import off_loop
from lpx.server.caller import current_caller
from lpx.server.errors import HttpError, clip
from lpx.server.settings import ServerSettings

_R = TypeVar("_R")
_LOOPBACK_NAMES = frozenset({"localhost", "ip6-localhost", "localhost.localdomain"})
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_SAFE_REQUEST_ID = re.compile(r"[A-Za-z0-9._\-]{1,64}\Z")
# Of a whole body: the parser holds the interpreter while it makes them.
_CROWDS = (
    (":", 50_000, "members in its objects"),
    ("{", 50_000, "objects"),
    ("[", 50_000, "lists"),
    (",", 1_000_000, "items in its lists"),
)


def host_allowed(host: str, allowed: tuple[str, ...] = ()) -> bool:
    """Whether a Host header is a loopback name, an IP literal or a configured name (port ignored)."""
    name = host.strip().lower()
    if name.startswith("["):
        name, bracket, rest = name[1:].partition("]")
        if not bracket or (rest and not re.fullmatch(r":\d{1,5}", rest)):
            return False
        return _is_ip(name)
    name, _, port = name.partition(":")
    if port and not re.fullmatch(r"\d{1,5}", port):
        return False
    name = name.removesuffix(".")
    return name in _LOOPBACK_NAMES or name.endswith(".localhost") or name in allowed or _is_ip(name)


def _is_ip(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def safe_request_id(value: str | None) -> str | None:
    """A client's request id if it is a short plain token, else None: it goes into logs and headers."""
    return value if value is not None and _SAFE_REQUEST_ID.match(value) else None


async def read_request(request: Request, settings: ServerSettings, parse: Callable[[dict[str, Any]], _R]) -> _R:
    """The request body, read, parsed as a JSON object and validated by `parse`.

    Lone surrogates (legal in JSON, not encodable) become U+FFFD, in every string and everywhere alike. Raises
    `HttpError`: 415 wrong content type, 413 too large, 408 too slow, 400 no sound JSON object; and what `parse` does.
    """
    check_content_type(request)
    body = await read_body(request, settings)

    return await off_loop(body, lambda: parse(parse_json_object(body, settings.max_json_depth)))


def check_content_type(request: Request) -> None:
    """Raises `HttpError` 415 for anything but plain JSON in UTF-8."""
    kind, _, params = request.headers.get("content-type", "").partition(";")
    kind = kind.strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise HttpError(415, "The body must be JSON: send the header 'Content-Type: application/json'.")
    charset = re.search(r"charset\s*=\s*\"?([\w.\-]+)", params, re.I)
    if charset and charset[1].lower() not in ("utf-8", "utf8", "us-ascii"):
        raise HttpError(415, "The body must be UTF-8: leave the charset out of Content-Type, or say utf-8.")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise HttpError(415, "Compressed bodies are not accepted: send the body without Content-Encoding.")


async def read_body(request: Request, settings: ServerSettings, limit: int | None = None) -> bytes:
    """The whole body; raises `HttpError` 413 when it is larger than `limit`, 408 when it comes too slowly.

    Without `limit` what the server and the caller's key allow counts.
    """
    if limit is None:
        limit = min(settings.max_body_bytes, current_caller().caps.max_body_bytes or settings.max_body_bytes)
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdigit() and (len(declared) > 15 or int(declared) > limit):
        raise _too_large(limit)
    pieces: list[bytes] = []
    size = 0
    begin = monotonic()
    while True:
        # Each piece has its time, and all together have a pace: a byte now and then keeps no request open.
        left = settings.body_timeout_s + min(0.0, begin + size / settings.min_body_rate - monotonic())
        try:
            message = await asyncio.wait_for(request.receive(), max(left, 0.0))
        except asyncio.TimeoutError:
            raise HttpError(
                408,
                f"The body came too slowly: nothing for {settings.body_timeout_s:g} s, or less than "
                f"{settings.min_body_rate:g} bytes a second after that time.",
                headers={"connection": "close"},
            ) from None
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        piece = message.get("body", b"")
        size += len(piece)
        if size > limit:  # counted here too, because a chunked body declares nothing
            raise _too_large(limit)
        if piece:
            pieces.append(piece)
        if not message.get("more_body", False):
            return b"".join(pieces)


def check_size(size: int) -> None:
    """Of a WebSocket's message, which is a body for what the caller's key allows. Raises `HttpError` 413."""
    limit = current_caller().caps.max_body_bytes
    if limit is not None and size > limit:
        raise _too_large(limit)


def _too_large(limit: int) -> HttpError:
    return HttpError(413, f"The body is larger than the limit of {limit} bytes.", code="request_too_large")


def parse_json_object(body: bytes, max_depth: int) -> dict[str, Any]:
    """Strict JSON: UTF-8, an object at the top, no duplicate keys, no NaN, nesting up to `max_depth`."""
    if not body.strip():
        raise HttpError(400, "The body is empty; a JSON object is needed.", code="invalid_json")
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        raise HttpError(400, f"The body is not UTF-8 (byte {exc.start}).", code="invalid_json") from None
    _check_structure(text, max_depth)
    try:
        value = json.loads(text, object_pairs_hook=_unique_pairs, parse_constant=_no_constant, parse_float=_finite)
    except json.JSONDecodeError as exc:
        where = f"line {exc.lineno} column {exc.colno}"
        raise HttpError(400, f"The body is not valid JSON: {exc.msg} at {where}.", code="invalid_json") from None
    except (ValueError, RecursionError):  # an integer of thousands of digits; nesting beyond the interpreter's own
        raise HttpError(
            400, "The body is not valid JSON: a number or the nesting is too long.", code="invalid_json"
        ) from None
    if not isinstance(value, dict):
        raise HttpError(400, "The body must be a JSON object.", code="invalid_json")
    checked: dict[str, Any] = _without_lone_surrogates(value) if _SURROGATE_ESCAPE.search(text) else value
    return checked


def _check_structure(text: str, max_depth: int) -> None:
    """Refuse deep nesting and crowds in linear time and constant stack, before the parser meets them."""
    if (crowded := crowd(text, _CROWDS)) is not None:
        raise HttpError(400, f"The JSON has {crowded}.", code="invalid_json")
    if is_nested_deeper(text, max_depth):
        raise HttpError(400, f"The JSON is nested deeper than {max_depth} levels.", code="invalid_json")


def _unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise HttpError(400, f"The key {clip(key, 64)!r} stands twice in one object.", param=key)
            seen.add(key)
    return result


def _no_constant(name: str) -> float:
    raise HttpError(400, f"The body is not valid JSON: {name} is not a JSON number.", code="invalid_json")


def _finite(digits: str) -> float:
    value = float(digits)
    if value in (float("inf"), float("-inf")):
        raise HttpError(400, "The body holds a number beyond the range of a double.", code="invalid_json")
    return value


def _without_lone_surrogates(value: Any) -> Any:
    # Depth is bounded by max_json_depth, so recursion is too. Pairs were joined by the JSON parser already.
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, list):
        return [_without_lone_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {_SURROGATE.sub("\ufffd", key): _without_lone_surrogates(item) for key, item in value.items()}
    return value
