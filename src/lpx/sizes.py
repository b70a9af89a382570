"""Numbers of bytes as people write them."""

from __future__ import annotations

import re

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def parse_size(text: str | int) -> int:
    """Bytes of `512M`, `2G`, `1.5GiB` or a plain number; K, M, G and T are powers of 1024. Raises ValueError."""
    match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,15})?)\s*([KMGT]?)(?:i?B)?", str(text).strip(), re.ASCII | re.IGNORECASE)
    if match is None:
        raise ValueError(f"{text!r} is not a size; write bytes or a number with K, M, G or T, such as 512M")
    return int(float(match[1]) * _UNITS[match[2].upper()])
