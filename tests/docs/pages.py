"""The pages that people read, and what docs/hooks makes of them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS / "hooks"))  # as mkdocs does

from command_pages import command_pages, examples_of, leaf_commands  # noqa: E402
from fenced_blocks import SHELL, Block, Command, blocks_of, commands_of  # noqa: E402

__all__ = [
    "BLOCKS",
    "DOCS",
    "PAGES",
    "ROOT",
    "SHELL",
    "Block",
    "Command",
    "blocks_of",
    "command_pages",
    "commands_of",
    "examples_of",
    "in_language",
    "leaf_commands",
    "name_of",
]

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
BLOCKS = [block for page in PAGES for block in blocks_of(page)]


def in_language(*languages: str) -> list[Block]:
    return [block for block in BLOCKS if block.language in languages]


def name_of(block: Any) -> str:
    """The id of a test of one block."""
    return f"{block.page.relative_to(ROOT)}:{block.line}" if isinstance(block, Block) else repr(block)
