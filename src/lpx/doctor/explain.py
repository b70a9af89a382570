"""The troubleshooting pages, which come with the package: one a code, to be read without a network.

`pages` beside this file is the folder `docs/troubleshooting` of the source, so that there is one text of each page.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from lpx.errors import ConfigError

PAGES = Path(__file__).with_name("pages")
_CODE = re.compile(r"(?:LPX-)?E?(\d{1,3})", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True, slots=True)
class Page:
    """A page of Markdown; its first line is the heading `# LPX-E040: The port is in use`."""

    code: str
    path: Path

    @property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @property
    def title(self) -> str:
        with self.path.open(encoding="utf-8") as file:
            return file.readline().partition(":")[2].strip()


def all_pages() -> list[Page]:
    """Every page, by code. File names begin with the code's last part: `E040-port-in-use.md`."""
    return [Page(f"LPX-{file.name[:4]}", file) for file in sorted(PAGES.glob("E[0-9][0-9][0-9]-*.md"))]


def parse_code(text: str) -> str | None:
    """`LPX-E040` for `LPX-E040`, `e040`, `040` or `40`; None for what is no code."""
    match = _CODE.fullmatch(text.strip())
    return f"LPX-E{int(match[1]):03}" if match else None


def codes_in(text: str) -> list[str]:
    """The codes that a message names, each once."""
    return list(dict.fromkeys(f"LPX-E{number}" for number in re.findall(r"LPX-E(\d{3})\b", text)))


def find_page(code: str) -> Page:
    """Raises ConfigError where there is none."""
    for page in all_pages():
        if page.code == code:
            return page
    raise ConfigError(f"there is no page {code}; lpx explain lists them")
