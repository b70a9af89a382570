"""What distributions are compared on: the bundled texts (English, Chinese, code; ours) or the user's files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lpx.errors import InvalidRequestError
from lpx.regular_file import read_bounded

_FOLDER = Path(__file__).parent / "texts"
_MOST_BYTES = 256 << 20  # of one text
_BUNDLED = ("english", "chinese", "code")


@dataclass(frozen=True, slots=True)
class Text:
    """A text and the name under which its figures are shown."""

    name: str
    content: str


def bundled_texts() -> list[Text]:
    """About 12 kB: prose and questions in English and in Chinese, and Python, JavaScript, SQL and shell code."""
    return [Text(name, (_FOLDER / f"{name}.txt").read_text(encoding="utf-8")) for name in _BUNDLED]


def read_texts(paths: Sequence[Path]) -> list[Text]:
    """The user's files, as UTF-8 without a byte order mark. Raises InvalidRequestError that names the file.

    A newline at the very end is dropped, as `llama-perplexity -f` does.
    """
    texts = []
    for path in paths:
        try:
            content = read_bounded(path, _MOST_BYTES).decode("utf-8-sig")
        except OSError as error:
            raise InvalidRequestError(f"the text {path} cannot be read: {error.strerror}", param="text") from error
        except UnicodeDecodeError as error:
            raise InvalidRequestError(
                f"the text {path} is not valid UTF-8 (byte {error.start}): convert it first, for instance by iconv",
                param="text",
            ) from error
        content = content.removesuffix("\n")
        if not content.strip():
            raise InvalidRequestError(f"the text {path} is empty: give one with some thousand words", param="text")
        texts.append(Text(path.name, content))
    return texts
