"""What a server says about itself: which model, which engine, which version."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from lpx.bench.load.http_client import HttpClient, RequestFailedError
from lpx.bench.load.settings import LoadSettings
from lpx.bench.measurement import Subject
from lpx.errors import ConfigError, LpxError
from lpx.shown_key import without_key

_OWNERS = {
    "lpx": "lpx",
    "vllm": "vllm",
    "llamacpp": "llama.cpp",
    "sglang": "sglang",
    "library": "ollama",
    "me": "llama-cpp-python",
}


_LONGEST_NAME = 200  # characters of what a server calls a model


class ServerUnreachableError(LpxError):
    """The server cannot be measured: it does not answer, or refuses what is asked."""

    help_code = "LPX-E092"


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """`model` is what requests ask for, whole; None: the server names none. `subject` is what may be shown of it."""

    model: str | None
    subject: Subject


async def read_facts(client: HttpClient, settings: LoadSettings) -> ServerFacts:
    """The model to ask for and whatever else is known.

    Raises ServerUnreachableError when nothing answers, ConfigError when no model is named and the server names none, or
    when prompt and answer do not fit the context that it names.
    """
    cards, told = await _cards(client, settings)
    names = [str(card["id"]) for card in cards]
    if settings.model is None and not names and settings.endpoint_type != "lpx":
        raise ConfigError(f"{settings.base_url} does not list its models{told}; name one with --model")
    model = settings.model or (names[0] if names else None)
    card = next((card for card in cards if card["id"] == model), cards[0] if cards else {})
    _check_room(card, settings)
    engine = _OWNERS.get(str(card.get("owned_by", "")).lower(), "unknown")
    cache = card.get("kv_cache")
    subject = Subject(
        model=without_key(model or "unknown", client.api_key)[:_LONGEST_NAME],
        engine=engine,
        engine_version=await _version(client) if engine in ("lpx", "vllm", "sglang") else None,
        quantization=_text(card.get("quantization")),
        kv_cache_dtype=_text(cache.get("dtype")) if isinstance(cache, dict) else None,
        device=_text(card.get("device")),
        isa=_text(card.get("isa")),
        threads=_threads(card.get("threads")),
        url=settings.base_url,
    )
    return ServerFacts(model, subject)


def _threads(value: Any) -> int | None:
    return value if type(value) is int and 0 < value < 2**16 else None


def _check_room(card: dict[str, Any], settings: LoadSettings) -> None:
    """Before prompts are made that the server will refuse."""
    room = card.get("max_model_len")
    wanted = (settings.input_len or 0) + (settings.prefix_len or 0) + (settings.output_len or 1)
    if isinstance(room, int) and wanted > room:
        raise ConfigError(
            f"prompt and answer are {wanted} tokens, but the server's context is {room}: lower --random-input-len, "
            "--random-prefix-len or --random-output-len"
        )


async def _cards(client: HttpClient, settings: LoadSettings) -> tuple[list[dict[str, Any]], str]:
    """The models, and why there are none."""
    try:
        exchange = await client.get("/v1/models")
    except RequestFailedError as error:
        if error.kind in ("connection", "timeout"):
            raise ServerUnreachableError(
                f"no server answers at {settings.base_url}: {error.detail}. Is it running, and is the address right?"
            ) from None
        return [], f" ({error.detail})"
    if exchange.status in (401, 403):
        raise ServerUnreachableError(
            f"{settings.base_url} refuses with HTTP {exchange.status}: give its key with --api-key or LPX_API_KEY"
        )
    if exchange.status == 503:
        raise ServerUnreachableError(f"{settings.base_url} is not ready (HTTP 503): wait until its model is loaded")
    if exchange.status != 200:
        return [], f" (HTTP {exchange.status} for /v1/models)"
    try:
        data = json.loads(exchange.body)["data"]
        return [card for card in data if isinstance(card, dict) and "id" in card], ""
    except (ValueError, KeyError, TypeError, RecursionError):
        return [], " (/v1/models gives no list)"


async def _version(client: HttpClient) -> str | None:
    try:
        exchange = await client.get("/version")
        return _text(json.loads(exchange.body)["version"]) if exchange.status == 200 else None
    except (RequestFailedError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _text(value: Any) -> str | None:
    """What the server calls something, as far as a table has room for it."""
    return value[:_LONGEST_NAME] if isinstance(value, str) else None
