"""Fenced code blocks of Markdown pages, and the commands in those of a shell.

Knows as much of the shell as the documentation uses: quotes, continued lines, comments, pipes and lists, redirections,
here-documents, and `$ ` prompts of transcripts. Owns no judgement of what it finds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

SHELL = frozenset({"sh", "console"})

_FENCE = re.compile(r"^( *)(`{3,})([^\n]*)\n(.*?)^\1\2[ ]*$", re.MULTILINE | re.DOTALL)
_OPERATORS = ("&&", "||", ";;", "|", "&", ";", "\n", "(", ")")
_REDIRECTION = re.compile(r"\d*(?:>>|>&|<<-?|[<>])")
_KEYWORDS = frozenset({"if", "then", "else", "elif", "fi", "for", "while", "until", "do", "done", "!", "{", "}"})
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block; `line` is that of its first line of text, from 1."""

    page: Path
    line: int
    language: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def script(self) -> str:
        """What a shell would be given: the text, or what stands behind the prompts of a transcript."""
        return _behind_prompts(self.text) if self.language == "console" else self.text


@dataclass(frozen=True, slots=True)
class Command:
    """One simple command: variables set in front of it, and its words without their quotes."""

    assignments: tuple[str, ...]
    words: tuple[str, ...]

    @property
    def lpx_arguments(self) -> tuple[str, ...] | None:
        """What follows `lpx`, `path/lpx` or `python -m lpx`, whatever runs it (`nice`, `docker run`); else None.

        As the last word of another command it is a service, a user or a folder.
        """
        names = [word.rpartition("/")[2] for word in self.words]
        if "lpx" not in names or 0 < names.index("lpx") == len(names) - 1:
            return None
        return self.words[names.index("lpx") + 1 :]


def blocks_of(page: Path) -> list[Block]:
    """All fenced blocks of a page, in order, without the indentation of the list that they are in."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in _FENCE.finditer(text):
        indent, body = match[1], match[4]
        if indent:
            body = re.sub(rf"^ {{0,{len(indent)}}}", "", body, flags=re.MULTILINE)
        line = text.count("\n", 0, match.start(4)) + 1
        found.append(Block(page, line, match[3].strip().split(" ")[0], body))
    return found


def commands_of(script: str) -> list[Command]:
    """The simple commands of a script, in order. ValueError when a quote is not closed."""
    commands: list[Command] = []
    words: list[str] = []
    target: Literal["file", "here"] | None = None  # what the next word is for, behind a redirection
    ends_of_documents: list[str] = []

    def finish() -> None:
        while words and words[0] in _KEYWORDS:
            del words[0]
        assigned = 0
        while assigned < len(words) and _ASSIGNMENT.match(words[assigned]):
            assigned += 1
        if words:
            commands.append(Command(tuple(words[:assigned]), tuple(words[assigned:])))
        words.clear()

    place = 0
    while place < len(script):
        kind, token, place = _next_token(script, place)
        if kind == "redirection":
            target = "here" if token.lstrip("0123456789").startswith("<<") else "file"
        elif kind == "operator":
            finish()
            if token == "\n":
                for end in ends_of_documents:
                    place = _behind_document(script, place, end)
                ends_of_documents.clear()
        elif kind == "word":
            if target == "here":
                ends_of_documents.append(token)
            elif target is None:
                words.append(token)
            target = None
    finish()
    return commands


def _next_token(script: str, place: int) -> tuple[str, str, int]:
    """Kind, text and end of what stands at `place`."""
    if script[place] in " \t":
        return "space", "", place + 1
    if script.startswith("\\\n", place):
        return "space", "", place + 2
    if script[place] == "#":
        end = script.find("\n", place)
        return "comment", "", len(script) if end < 0 else end
    if found := _REDIRECTION.match(script, place):
        return "redirection", found[0], found.end()
    for operator in _OPERATORS:
        if script.startswith(operator, place):
            return "operator", operator, place + len(operator)
    return _word(script, place)


def _word(script: str, place: int) -> tuple[str, str, int]:
    parts: list[str] = []
    while place < len(script) and script[place] not in " \t\n|&;()<>":
        letter = script[place]
        if letter == "\\":
            if script[place + 1 : place + 2] != "\n":
                parts.append(script[place + 1 : place + 2])
            place += 2
        elif letter == "'":
            end = script.index("'", place + 1)
            parts.append(script[place + 1 : end])
            place = end + 1
        elif letter == '"':
            end = place + 1
            while script[end : end + 1] != '"':
                if end >= len(script):
                    raise ValueError("a quote is not closed")
                end += 2 if script[end] == "\\" else 1
            parts.append(re.sub(r'\\(["\\$`\n])', r"\1", script[place + 1 : end]))
            place = end + 1
        elif script.startswith("$(", place):
            end = script.index(")", place) + 1
            parts.append(script[place:end])
            place = end
        else:
            parts.append(letter)
            place += 1
    return "word", "".join(parts), place


def _behind_document(script: str, place: int, end: str) -> int:
    found = re.compile(rf"^{re.escape(end)}$\n?", re.MULTILINE).search(script, place)
    if found is None:
        raise ValueError(f"the here-document does not end with {end}")
    return found.end()


def _behind_prompts(text: str) -> str:
    return "".join(_prompted(text.splitlines(keepends=True)))


def _prompted(lines: list[str]) -> Iterator[str]:
    """Lines with a prompt, and those that continue one: behind a backslash, or inside quotes."""
    begun = ""
    for line in lines:
        if begun:
            begun += line
        elif line.startswith("$ "):
            begun = line[2:]
        if begun and not begun.endswith("\\\n"):
            try:
                commands_of(begun)
            except ValueError:
                continue
            yield begun
            begun = ""
    yield begun
