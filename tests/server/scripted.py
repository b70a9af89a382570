"""A fake model that answers a chat with a given text."""

from __future__ import annotations

from collections.abc import Callable

from tests.engine.fake_executor import END_OF_TURN

_MARK = list(b"assistant: ")


def says(text: str) -> Callable[[list[int]], int]:
    """Behind the prompt of a chat, `text` and the end of the turn; for `FakeExecutor(choose=…)`."""
    written = [*text.encode(), END_OF_TURN]

    def choose(tokens: list[int]) -> int:
        behind = next(
            (
                at + len(_MARK)
                for at in range(len(tokens) - len(_MARK), -1, -1)
                if tokens[at : at + len(_MARK)] == _MARK
            ),
            len(tokens),
        )
        return written[min(len(tokens) - behind, len(written) - 1)]

    return choose
