"""What mkdocs adds to the pages of this folder: pages of the commands, and the navigation of what has many pages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from command_pages import command_pages
from mkdocs.structure.files import File

_HEADING_OR_LINK = re.compile(r"^## (.+)$|\]\((troubleshooting/[^)]+)\)", re.MULTILINE)
_PICTURE = re.compile(r"!\[([^\]]*)\]\((images/[^)]+)\.svg\)")


def on_config(config: Any) -> Any:
    docs = Path(config.docs_dir)
    config.extra["command_pages"] = pages = command_pages(docs)
    _section(config.nav, "Commands").extend({f"lpx {name}": f"commands/{name}.md"} for name in pages)
    _section(config.nav, "Troubleshooting").extend(_troubleshooting(docs / "troubleshooting.md"))
    return config


def on_files(files: Any, config: Any) -> Any:
    for name, text in config.extra.pop("command_pages").items():
        files.append(File.generated(config, f"commands/{name}.md", content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Pictures that have a dark twin are shown in the colours of the reader's choice."""

    def both(match: re.Match[str]) -> str:
        text, name = match.groups()
        if files.get_file_from_path(f"{name}-dark.svg") is None:
            return match[0]
        return f"![{text}]({name}.svg#only-light)![{text}]({name}-dark.svg#only-dark)"

    return _PICTURE.sub(both, markdown)


def on_post_page(output: str, page: Any, config: Any) -> str:
    """A page in another language says so to browsers, which choose fonts and voices by it."""
    language = page.meta.get("language")
    return output.replace('<html lang="en"', f'<html lang="{language}"', 1) if language else output


def _section(nav: Any, title: str) -> list[Any]:
    found: list[Any] = next(entry[title] for entry in nav if isinstance(entry, dict) and title in entry)
    return found


def _troubleshooting(index: Path) -> list[dict[str, list[str]]]:
    """The pages as their list has them, by heading: whatever is missing there is missing here, which mkdocs reports."""
    groups: list[dict[str, list[str]]] = []
    for heading, page in _HEADING_OR_LINK.findall(index.read_text(encoding="utf-8")):
        if heading:
            groups.append({heading: []})
        else:
            next(iter(groups[-1].values())).append(page)
    return groups
