"""Small pieces of the tables that commands print."""

from __future__ import annotations


def count_of(number: int, what: str) -> str:
    """`1 thread`, `2 threads`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
