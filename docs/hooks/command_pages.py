"""One Markdown page for each command of `lpx`, written from the command line's own help, so that it is never behind."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fenced_blocks import SHELL, blocks_of, commands_of

_EXAMPLE = re.compile(r"([^:`]+): (lpx .+)")


def leaf_commands() -> list[tuple[tuple[str, ...], Any]]:
    """Every command that does something, as (("models", "pull"), command), in the order of the help."""
    root, context = _root()
    return [
        found for name in root.list_commands(context) for found in _leaves((name,), root.get_command(context, name))
    ]


def examples_of(command: Any) -> list[tuple[str, str]]:
    """The examples in the help of a command: (what it is for, command line)."""
    return [(found[1], found[2]) for part in _paragraphs(command) if (found := _EXAMPLE.fullmatch(part))]


def command_pages(docs: Path) -> dict[str, str]:
    """Name to text of a page for each command of the first level; pages of `docs` that show a command are linked."""
    shown = _pages_by_command(docs)
    root, context = _root()
    pages = {}
    for name in root.list_commands(context):
        command = root.get_command(context, name)
        lines = [f"# lpx {name}", ""]
        leaves = list(_leaves((name,), command))
        if len(leaves) == 1 and leaves[0][0] == (name,):
            lines += _described((name,), command, shown)
        else:
            below = [path for path, _ in leaves if path != (name,)]
            contents = [f"- [`lpx {' '.join(path)}`](#{'-'.join(('lpx', *path))})" for path in below]
            if leaves[0][0] == (name,):
                lines += [*_described(*leaves.pop(0), shown), *contents]
            else:
                lines += [*_plain(_paragraphs(command)), "", *contents]
            for path, leaf in leaves:
                lines += ["", f"## lpx {' '.join(path)}", "", *_described(path, leaf, shown)]
        pages[name] = "\n".join(lines) + "\n"
    return pages


def _root() -> tuple[Any, Any]:
    from typer.main import get_command

    from lpx.cli.app import app

    root: Any = get_command(app)
    return root, root.make_context("lpx", ["--"], resilient_parsing=True)


def _leaves(path: tuple[str, ...], command: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    below = getattr(command, "commands", None)
    if not below or command.invoke_without_command:
        yield path, command
    for name, child in (below or {}).items():
        yield from _leaves((*path, name), child)


def _paragraphs(command: Any) -> list[str]:
    return [" ".join(part.split()) for part in (command.help or "").split("\n\n")]


def _plain(paragraphs: Sequence[str]) -> list[str]:
    """Paragraphs as Markdown, with an empty line between them."""
    kept = [_escaped(part) for part in paragraphs if part and not _EXAMPLE.fullmatch(part)]
    return "\n\n".join(kept).split("\n")


def _described(path: tuple[str, ...], command: Any, shown: dict[tuple[str, ...], list[str]]) -> list[str]:
    _, root = _root()
    with command.context_class(command, info_name=" ".join(path), parent=root) as context:
        usage = " ".join(context.get_usage().removeprefix("Usage:").split())
        lines = [*_plain(_paragraphs(command)), "", "```text", usage, "```", ""]
        if examples := examples_of(command):
            lines += [
                "```sh",
                *(f"{line}    # {_purpose(purpose)}".rstrip(" #") for purpose, line in examples),
                "```",
                "",
            ]
        if pages := shown.get(path):
            lines += [f"In use: {', '.join(f'[{title}](../{page})' for page, title in pages)}.", ""]
        for title, rows in _parameters(command, context).items():
            lines += [f"| {title} | |", "|---|---|"]
            lines += [f"| `{_in_table(names)}` | {_in_table(_escaped(text))} |" for names, text in rows]
            lines.append("")
    return lines


def _purpose(words: str) -> str:
    return "" if words == "Example" else words[0].lower() + words[1:]


def _parameters(command: Any, context: Any) -> dict[str, list[tuple[str, str]]]:
    """Arguments and options by the heading that the help gives them."""
    found: dict[str, list[tuple[str, str]]] = {"arguments": [], "options": []}
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is None:
            continue
        if parameter.param_type_name == "argument":
            found["arguments"].append(record)
        else:
            panel = getattr(parameter, "rich_help_panel", None) or "Options"
            found.setdefault(panel.lower(), []).append(record)
    return {title: rows for title, rows in found.items() if rows}


def _pages_by_command(docs: Path) -> dict[tuple[str, ...], list[tuple[str, str]]]:
    """For each command, the pages that show it: (path, title)."""
    known = {path for path, _ in leaf_commands()}
    found: dict[tuple[str, ...], list[tuple[str, str]]] = {}
    for page in sorted(docs.glob("*.md")):
        title = page.read_text(encoding="utf-8").split("\n", 1)[0].removeprefix("# ").replace("`", "")
        for block in blocks_of(page):
            for command in commands_of(block.script) if block.language in SHELL else ():
                words = command.lpx_arguments or ()
                path = next((words[:size] for size in (3, 2, 1) if words[:size] in known), None)
                if path and (page.name, title) not in found.setdefault(path, []):
                    found[path].append((page.name, title))
    return found


def _escaped(text: str) -> str:
    """Text of a help as Markdown; what is between backticks stays code."""
    parts = text.split("`")
    parts[::2] = [re.sub(r"([\\*_\[\]#])", r"\\\1", part).replace("<", "&lt;") for part in parts[::2]]
    return "`".join(parts)


def _in_table(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
