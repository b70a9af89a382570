"""Every error that LPX raises on purpose.

A message says what was wrong, with which value, and what to do about it. The command line turns an `LpxError` into
its text and exit code; the service turns it into OpenAI's error object with `http_status`.

Each class has a `help_code`, under which `lpx explain` has a page. A code never changes its meaning and is never used
again; the pages are `docs/troubleshooting/`.
"""

from __future__ import annotations

import math
import re

from lpx.plain_text import plain_text


class LpxError(Exception):
    """Base of all errors that LPX raises on purpose."""

    exit_code = 1
    http_status = 500
    error_type = "server_error"
    help_code = "LPX-E001"


OUTPUT_NOT_WRITTEN = "LPX-E004"  # what a command writes beside its result, or the result itself


def error_line(message: object, help_code: str = LpxError.help_code) -> str:
    """The one line that a failed command prints: `error[LPX-E040]: … (lpx explain LPX-E040)`.

    A message may quote names that others chose: what would move the cursor or colour it becomes a question mark.
    """
    return (
        f"error[{help_code}]: {_short_words(plain_text(str(message).replace(chr(10), ' ')))} (lpx explain {help_code})"
    )


def _short_words(text: str) -> str:
    """Values that fill the screen are recognised by their beginning and end."""
    return re.sub(r"\S{300,}", lambda long: f"{long[0][:200]}…{long[0][-40:]}", text)


class ModelNotFoundError(LpxError):
    """The named model is neither a path nor a name in the model folder."""

    help_code = "LPX-E010"
    http_status = 404
    error_type = "invalid_request_error"


class ModelFileError(LpxError):
    """A model file is broken, hostile, cut off or of an unsupported kind; the message names the tensor or key."""

    help_code = "LPX-E020"


class UnsupportedModelError(ModelFileError):
    """The file is sound, but holds an architecture, type or option that LPX does not implement."""

    help_code = "LPX-E021"


class TokenizerError(ModelFileError):
    """The tokenizer data of a model cannot be used."""

    help_code = "LPX-E022"


class ModelNameError(LpxError):
    """A name that the model store does not take."""

    exit_code = 2
    help_code = "LPX-E013"
    http_status = 400
    error_type = "invalid_request_error"


class ModelInUseError(LpxError):
    """A version that a process runs was to be removed, or a change is under way already."""

    help_code = "LPX-E014"
    http_status = 409
    error_type = "conflict_error"


class ModelStoreError(LpxError):
    """The model store cannot do what it was asked to; the message says why and what to do."""

    help_code = "LPX-E015"


class DownloadError(LpxError):
    """A model could not be fetched or its hash is wrong."""

    help_code = "LPX-E011"


class DiskSpaceError(DownloadError):
    """There is not enough room for a model; the message holds the numbers."""

    help_code = "LPX-E012"


class ConfigError(LpxError):
    """An option has a value that cannot be honoured."""

    exit_code = 2
    help_code = "LPX-E002"


class MissingExtraError(ConfigError):
    """A command needs a package that is not part of the base install."""

    help_code = "LPX-E083"


class MemoryLimitError(ConfigError):
    """Weights, KV cache and work buffers do not fit; the message holds the numbers."""

    exit_code = 1
    help_code = "LPX-E030"


class KvCacheTooSmallError(MemoryLimitError):
    """The KV cache that was asked for does not hold one sequence of the length that was asked for."""

    help_code = "LPX-E031"


class InvalidRequestError(LpxError):
    """A request has a wrong value. `param` names it as the client spelled it."""

    exit_code = 2
    http_status = 400
    error_type = "invalid_request_error"
    help_code = "LPX-E003"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class ChatTemplateError(InvalidRequestError):
    """The model has no chat template, or its template refused the messages."""

    help_code = "LPX-E023"


class ContextLengthError(InvalidRequestError):
    """The prompt does not fit the context; the message holds both lengths."""

    help_code = "LPX-E032"

    def __init__(self, message: str, *, param: str | None = "prompt") -> None:
        super().__init__(message, param=param, code="context_length_exceeded")


class QueueFullError(LpxError):
    """Too many requests are waiting."""

    http_status = 429
    error_type = "rate_limit_error"
    retry_after_s = 1
    help_code = "LPX-E044"


class LatencyUnreachableError(QueueFullError):
    """What waits already takes longer than the request's `max_latency_ms`."""

    def __init__(self, wait_ms: float, allowed_ms: float) -> None:
        super().__init__(
            f"the prompts that wait before this request take about {wait_ms:.0f} ms, and max_latency_ms is "
            f"{allowed_ms:g}: try again later, or allow more"
        )
        self.retry_after_s = max(1, math.ceil((wait_ms - allowed_ms) / 1e3))


class EngineStoppedError(LpxError):
    """The engine has shut down or failed, and takes no more requests."""

    http_status = 503
    help_code = "LPX-E049"
