"""One line on stderr that says what is going on, where that is a terminal."""

from __future__ import annotations

import sys


class StatusLine:
    """Shows one text after the other in the same place, and leaves nothing behind."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()

    def __enter__(self) -> StatusLine:
        return self

    def __exit__(self, *ending: object) -> None:
        self._write("")

    def show(self, what: str) -> None:
        self._write(f"{what} …")

    def _write(self, text: str) -> None:
        if self._shown:
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
