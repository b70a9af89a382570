"""Blocks and commands are found as a shell would find them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import blocks_of, commands_of


def words(script: str) -> list[tuple[str, ...]]:
    return [command.words for command in commands_of(script)]


def test_quotes_comments_continued_lines_and_lists() -> None:
    assert words("lpx run 'a b' \\\n  --seed 7   # more\nA=1 lpx x && lpx y | jq '.a|.b' > f 2>&1; lpx z &") == [
        ("lpx", "run", "a b", "--seed", "7"),
        ("lpx", "x"),
        ("lpx", "y"),
        ("jq", ".a|.b"),
        ("lpx", "z"),
    ]
    assert words('lpx run "say \\"hi\\"" a#b c\\ d $(date +%s)') == [
        ("lpx", "run", 'say "hi"', "a#b", "c d", "$(date +%s)"),
    ]
    assert commands_of("LPX_THREADS=2 lpx doctor")[0].assignments == ("LPX_THREADS=2",)


def test_documents_are_no_commands() -> None:
    assert words("cat > in.jsonl <<'END'\nlpx nonsense 'it\nEND\nlpx batch check -i in.jsonl") == [
        ("cat",),
        ("lpx", "batch", "check", "-i", "in.jsonl"),
    ]


@pytest.mark.parametrize("script", ["lpx run 'x", 'lpx run "x', "cat <<END\nx"])
def test_what_is_not_closed_is_a_fault(script: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        commands_of(script)


@pytest.mark.parametrize(
    ("line", "arguments"),
    [
        (".venv/bin/lpx run x", ("run", "x")),
        ("nice -n 10 python -m lpx serve", ("serve",)),
        ("docker run image lpx serve --port 1", ("serve", "--port", "1")),
        ("git diff", None),
        ("docker compose up -d lpx", None),
        ("pip install 'lpx[plot]'", None),
    ],
)
def test_lpx_is_found_behind_whatever_runs_it(line: str, arguments: tuple[str, ...] | None) -> None:
    (command,) = commands_of(line)
    assert command.lpx_arguments == arguments


def test_transcripts_give_what_stands_behind_their_prompts(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# Page\n\n- in a list:\n\n"
        "  ```console\n  $ lpx a \\\n      b\n  output with 'a quote\n  $ lpx 'c\n  d'\n  ```\n\n"
        "````text\n```sh\nno\n```\n````\n\n```\nplain\n```\n"
    )
    first, second, third = blocks_of(page)
    assert (first.language, first.line) == ("console", 6)
    assert words(first.script) == [("lpx", "a", "b"), ("lpx", "c\nd")]
    assert (second.language, second.text) == ("text", "```sh\nno\n```\n")
    assert (third.language, third.text) == ("", "plain\n")
