"""Keys that are sent to servers (`Authorization: Bearer …`)."""

from __future__ import annotations

from lpx.errors import ConfigError


def check_bearer_key(key: str) -> None:
    """Raises ConfigError, without the key, for one that no header can hold or no server gives."""
    if not all("!" <= character <= "~" for character in key):
        raise ConfigError("the API key holds characters that no key has; is there a space or a line end in it?")
