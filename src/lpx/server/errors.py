"""Errors as OpenAI's clients know them: `{"error": {"message", "type", "param", "code"}}`, for everything.

Nothing that the client sent is repeated, and nothing internal is told: an unexpected exception becomes a fixed text,
and the log gets its kind and its frames, but not its message, which may hold a prompt.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from lpx.errors import ContextLengthError, InvalidRequestError, LpxError, QueueFullError
from lpx.server.log_format import trimmed_frames

logger = logging.getLogger("lpx.server")

_MAX_MESSAGE = 1000  # characters; error bodies stay far below 4 KB even when every one is escaped
# Parameters of the engine that requests spell in another way.
_HTTP_NAMES = {"banned_token_ids": "logit_bias", "max_decode_ms": "t_max_predict_ms"}
# Pages of `lpx explain` by the code of an error, for those that the operator or the client's author can act on.
_PAGES = {
    "not_found": "LPX-E043",
    "model_not_found": "LPX-E046",
    "invalid_api_key": "LPX-E045",
    "rate_limit_exceeded": "LPX-E044",
    "context_length_exceeded": "LPX-E032",
    "origin_not_allowed": "LPX-E070",
    "loading": "LPX-E025",
    "warming_up": "LPX-E025",
    "failed": "LPX-E049",
}
_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


class HttpError(Exception):
    """A refusal by the HTTP layer itself: wrong path, wrong type of body, too large, not ready."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = headers


def clip(text: str, limit: int) -> str:
    """`text` cut to `limit` characters, with an ellipsis where something is missing."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def error_type(status: int) -> str:
    if status >= 500:
        return "server_error"
    return _TYPES.get(status, "invalid_request_error")


def error_object(
    status: int, message: str, *, param: str | None = None, code: str | None = None, type_: str | None = None
) -> dict[str, Any]:
    """OpenAI's error object; `code` falls back to null as OpenAI's does."""
    page = _PAGES.get(code or "")
    return {
        "error": {
            "message": clip(message, _MAX_MESSAGE) + (f" (lpx explain {page})" if page else ""),
            "type": type_ or error_type(status),
            "param": clip(param, 100) if param is not None else None,
            "code": code,
        }
    }


def error_response(
    status: int,
    message: str,
    *,
    param: str | None = None,
    code: str | None = None,
    type_: str | None = None,
    headers: dict[str, str] | None = None,
) -> Response:
    # ASCII only: a message may name a field whose name is a lone surrogate, which UTF-8 cannot carry.
    body = json.dumps(error_object(status, message, param=param, code=code, type_=type_), ensure_ascii=True)
    return Response(body.encode("ascii"), status_code=status, headers=headers, media_type="application/json")


def describe(exc: BaseException) -> tuple[int, dict[str, Any], dict[str, str] | None]:
    """Status, error object and headers for an exception; logs what the client is not told."""
    if isinstance(exc, HttpError):
        return exc.status, error_object(exc.status, exc.message, param=exc.param, code=exc.code), exc.headers
    if isinstance(exc, InvalidRequestError):
        status, text, param = exc.http_status, str(exc), exc.param
        if param in _HTTP_NAMES:
            text, param = text.replace(param, _HTTP_NAMES[param]), _HTTP_NAMES[param]
        return status, error_object(status, text, param=param, code=exc.code, type_=exc.error_type), None
    if isinstance(exc, LpxError) and exc.http_status < 500:
        status = exc.http_status
        if isinstance(exc, QueueFullError):
            body = error_object(status, str(exc), type_=exc.error_type, code="rate_limit_exceeded")
            return status, body, {"retry-after": str(exc.retry_after_s)}
        return status, error_object(status, str(exc), type_=exc.error_type), None
    if isinstance(exc, LpxError) and exc.http_status == 503:
        return 503, error_object(503, "The engine has stopped and takes no requests. Restart the server."), None
    if isinstance(exc, LpxError) and exc.http_status == 507:
        return 507, error_object(507, str(exc), code="disk_full"), None
    log_exception(exc)
    return 500, error_object(500, "An internal error occurred. The server's log tells where."), None


def exception_response(exc: BaseException) -> Response:
    status, body, headers = describe(exc)
    data = json.dumps(body, ensure_ascii=True).encode("ascii")
    return Response(data, status_code=status, headers=headers, media_type="application/json")


_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
_ANTHROPIC_PATH = "/v1/messages"


def as_anthropic(status: int, error: dict[str, Any]) -> dict[str, Any]:
    """OpenAI's error object in Anthropic's shape."""
    kind = _ANTHROPIC_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": error["error"]["message"]}}


def renamed(exc: InvalidRequestError, names: Mapping[str, str]) -> InvalidRequestError:
    """The same error with fields called as the client calls them; `names` are by LPX's own."""
    text = str(exc)
    for ours, theirs in names.items():  # a name that is a plain word, too, is one only where it begins the sentence
        text = re.sub(rf"\b{ours}\b" if "_" in ours else rf"\A{ours}\b", theirs, text)
    if exc.param is None:
        return InvalidRequestError(text, code=exc.code)
    head, bracket, rest = exc.param.partition("[")
    param = names.get(head, head) + bracket + rest
    if isinstance(exc, ContextLengthError):
        return ContextLengthError(text, param=param)
    return InvalidRequestError(text, param=param, code=exc.code)


def anthropic_error(exc: BaseException) -> tuple[int, dict[str, Any], dict[str, str] | None]:
    """As `describe`, in Anthropic's shape."""
    status, error, headers = describe(exc)
    return status, as_anthropic(status, error), headers


def anthropic_response(exc: BaseException) -> Response:
    status, body, headers = anthropic_error(exc)
    data = json.dumps(body, ensure_ascii=True).encode("ascii")
    return Response(data, status_code=status, headers=headers, media_type="application/json")


def response_for_path(exc: BaseException, path: str) -> Response:
    """The answer to an error, in the shape that clients of the path expect."""
    return anthropic_response(exc) if path.startswith(_ANTHROPIC_PATH) else exception_response(exc)


def log_exception(exc: BaseException) -> None:
    """Log an error that the client is told nothing of.

    Of an unexpected one, kind and frames: its message may quote user text. LPX's own messages do not, unless they
    wrap another exception.
    """
    if isinstance(exc, LpxError) and exc.__cause__ is None:
        logger.error("a request failed: %s", exc)
        return
    frames = trimmed_frames(exc.__traceback__)
    logger.error("unexpected %s while serving a request\n%s", type(exc).__name__, frames)
