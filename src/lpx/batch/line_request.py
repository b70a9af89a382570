"""From a line to a request: OpenAI's batch form, or a prompt, messages or input with fields beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lpx.batch.input_file import MAX_LINE_BYTES, Line
from lpx.batch.json_text import read_json

ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings")
_BATCH_KEYS = frozenset({"custom_id", "method", "url", "body"})
_ENDPOINT_OF_FIELD = {
    "prompt": "/v1/completions",
    "messages": "/v1/chat/completions",
    "input": "/v1/embeddings",
}
MAX_CUSTOM_ID = 512  # characters


@dataclass(frozen=True, slots=True)
class LineRequest:
    custom_id: str | None  # None only where a short line has none
    url: str  # one of `ENDPOINTS`
    body: dict[str, Any]


class LineError(ValueError):
    """A line that is no request; the message repeats nothing of it."""

    def __init__(self, message: str, code: str, custom_id: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.custom_id = custom_id
        self.param = param


def request_of(line: Line, endpoint: str | None = None) -> LineRequest:
    """What a line asks for; with `endpoint`, that must be it. Raises `LineError`."""
    if line.data is None:
        raise LineError(f"The line is longer than {MAX_LINE_BYTES} bytes.", "line_too_long")
    try:
        value = read_json(line.data)
    except ValueError as exc:
        raise LineError(f"The line is {exc}.", "invalid_json_line") from None
    if not isinstance(value, dict):
        raise LineError("The line must be a JSON object.", "invalid_json_line")
    custom_id = value.get("custom_id")
    if custom_id is not None and (not isinstance(custom_id, str) or not 1 <= len(custom_id) <= MAX_CUSTOM_ID):
        raise LineError(
            f"custom_id must be a string of 1 to {MAX_CUSTOM_ID} characters.", "invalid_custom_id", param="custom_id"
        )
    if value.keys() & {"method", "url", "body"}:
        request = _batch_form(value, custom_id)
    else:
        request = _short_form(value, custom_id)
    if request.body.get("stream") not in (None, False):
        raise LineError("A batch cannot stream: leave out stream.", "invalid_stream", custom_id, "stream")
    if endpoint is not None and request.url != endpoint:
        raise LineError(f"This batch is for {endpoint}, and the line is not.", "mismatched_endpoint", custom_id, "url")
    return request


def _batch_form(value: dict[str, Any], custom_id: str | None) -> LineRequest:
    if custom_id is None:
        raise LineError("custom_id is missing.", "missing_required_parameter", param="custom_id")
    for key in ("method", "url", "body"):
        if key not in value:
            raise LineError(f"{key} is missing.", "missing_required_parameter", custom_id, key)
    if value["method"] != "POST":
        raise LineError('method must be "POST".', "invalid_method", custom_id, "method")
    url, body = value["url"], value["body"]
    if url not in ENDPOINTS:
        raise LineError(f"url must be one of {', '.join(ENDPOINTS)}.", "invalid_url", custom_id, "url")
    if not isinstance(body, dict):
        raise LineError("body must be a JSON object.", "invalid_body", custom_id, "body")
    if value.keys() - _BATCH_KEYS:
        raise LineError(
            "Beside custom_id, method, url and body the line has other keys; parameters belong into body.",
            "unknown_parameter",
            custom_id,
        )
    return LineRequest(custom_id, url, body)


def _short_form(value: dict[str, Any], custom_id: str | None) -> LineRequest:
    fields = [field for field in _ENDPOINT_OF_FIELD if field in value]
    if len(fields) != 1:
        raise LineError(
            "The line needs one of prompt, messages and input, or custom_id, method, url and body.",
            "missing_required_parameter",
            custom_id,
        )
    body = {key: item for key, item in value.items() if key != "custom_id"}
    return LineRequest(custom_id, _ENDPOINT_OF_FIELD[fields[0]], body)
