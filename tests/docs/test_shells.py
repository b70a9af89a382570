"""What a page shows can be typed as it stands: `lpx` is known in the shell, and a server leaves the next line one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, SHELL, blocks_of, commands_of


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_where_an_environment_is_made_a_page_says_how_lpx_becomes_known(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    made = text.find("-m venv .venv")
    plain = re.compile(r"^lpx ", re.MULTILINE).search(text, max(made, 0))
    if made >= 0 and plain is not None:
        assert ". .venv/bin/activate" in text[made : plain.start()]


def test_the_readme_starts_servers_in_a_shell_of_their_own() -> None:
    seen = 0
    for block in blocks_of(ROOT / "README.md"):
        lines = block.text.splitlines() if block.language in SHELL else []
        for line in lines[:-1]:  # behind the last one nothing waits
            if any(command.words[:2] == ("lpx", "serve") for command in commands_of(line)):
                assert "in a shell of its own" in line
                seen += 1
    assert seen >= 2
