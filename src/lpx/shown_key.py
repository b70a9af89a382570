"""The key that LPX shows to a server as its client: what can be one, and how a server's words are kept free of it."""

from __future__ import annotations

from typing import Any

from lpx.errors import ConfigError

_IN_PLACE = "***"
_SHORTEST = 8  # characters of a key that is one


def check_shown_key(key: str | None) -> str | None:
    """The key as a header can carry it; None for none. Raises ConfigError, which repeats nothing of it."""
    if key is not None and not all("!" <= character <= "~" for character in key):
        raise ConfigError("the API key holds characters that no key has; is there a space or a line end in it?")
    return key or None


def without_key(text: str, key: str | None) -> str:
    """What a server said, without the key, which servers like to repeat. Shorter keys than any are parts of words."""
    return text.replace(key, _IN_PLACE) if key and len(key) >= _SHORTEST else text


def short_without_key(text: str, key: str | None, most: int) -> str:
    """As `without_key`, then as one line of at most `most` characters: a text that was cut first keeps half a key."""
    text = " ".join(without_key(text, key).split())
    return text if len(text) <= most else text[: most - 1] + "…"


def json_without_key(value: Any, key: str | None) -> Any:
    """As `without_key`, for every text of parsed JSON."""
    if isinstance(value, str):
        return without_key(value, key)
    if isinstance(value, list):
        return [json_without_key(item, key) for item in value]
    if isinstance(value, dict):
        return {without_key(name, key): json_without_key(item, key) for name, item in value.items()}
    return value
