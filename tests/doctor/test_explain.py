"""Every code has a page, and every page can be reached."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import lpx
from lpx.doctor.explain import PAGES, all_pages, codes_in, find_page, parse_code
from lpx.errors import ConfigError, LpxError, error_line

SOURCE = Path(lpx.__file__).parent
DOCS = Path(__file__).parents[2] / "docs"

# Symptoms that users meet, and the page of each.
SYMPTOMS = {
    "GPU invisible in the container": "LPX-E060",
    "out of memory after load": "LPX-E030",
    "out of memory on long text": "LPX-E031",
    "precision lost after quantization": "LPX-E051",
    "still slow": "LPX-E050",
    "driver older than the CUDA runtime": "LPX-E061",
    "engine seems to hang at start": "LPX-E025",
    "nvidia-smi missing": "LPX-E062",
    "port in use": "LPX-E040",
    "404 from a wrong path": "LPX-E043",
    "time-outs under load": "LPX-E044",
    "repeated or garbled text": "LPX-E052",
    "slow model load": "LPX-E024",
    "leftovers of an old process": "LPX-E047",
}


def subclasses(kind: type[LpxError]) -> list[type[LpxError]]:
    return [kind, *(each for child in kind.__subclasses__() for each in subclasses(child))]


def test_every_code_in_the_source_has_a_page() -> None:
    known = {page.code for page in all_pages()}
    named = {code for file in SOURCE.rglob("*.py") for code in codes_in(file.read_text(encoding="utf-8"))}
    assert len(named) > 25
    assert named <= known
    assert {error.help_code for error in subclasses(LpxError)} <= known
    assert set(SYMPTOMS.values()) <= known


@pytest.mark.parametrize("symptom", SYMPTOMS)
def test_every_symptom_is_named_where_it_happens(symptom: str) -> None:
    """By a message of LPX's own: not only among what `lpx explain` knows of messages of others."""
    about_pages = {SOURCE / "doctor" / "messages.py", SOURCE / "doctor" / "explain.py", SOURCE / "cli" / "explain.py"}
    messages = [file for file in SOURCE.rglob("*.py") if file not in about_pages]
    assert any(SYMPTOMS[symptom] in codes_in(file.read_text(encoding="utf-8")) for file in messages)


def test_pages_are_whole() -> None:
    pages = all_pages()
    assert len({page.code for page in pages}) == len(pages)
    for page in pages:
        first, *rest = page.text.splitlines()
        assert first == f"# {page.code}: {page.title}"
        assert [line for line in rest if line.startswith("## ")] == ["## You see", "## Why", "## What to do", "## 中文"]
        for code in codes_in(page.text):
            assert find_page(code)


@pytest.mark.skipif(not DOCS.is_dir(), reason="the docs are not beside the tests")
def test_index_names_every_page_and_pages_are_one_text() -> None:
    index = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    linked = re.findall(r"\]\(troubleshooting/([^)]+)\)", index)
    assert linked == [page.path.name for page in all_pages()]
    for page in all_pages():
        assert f"[{page.title}](troubleshooting/{page.path.name})" in index
        assert (DOCS / "troubleshooting" / page.path.name).read_text(encoding="utf-8") == page.text


def test_codes_are_found_as_people_write_them() -> None:
    for text in ("40", "lpx-e40", "LPX-E040", "lpx-e040", "E040", "040", " e040 "):
        assert parse_code(text) == "LPX-E040"
    for text in ("port in use", "LPX-E0400", "", "E04O", "٠٤٠"):
        assert parse_code(text) is None
    with pytest.raises(ConfigError, match="there is no page LPX-E999"):
        find_page("LPX-E999")


def test_error_line_names_its_page() -> None:
    assert error_line("no", "LPX-E040") == "error[LPX-E040]: no (lpx explain LPX-E040)"
    assert error_line("a\x1b[31m\nb\0 你好", "LPX-E040") == "error[LPX-E040]: a?[31m b? 你好 (lpx explain LPX-E040)"
    assert codes_in(error_line(ConfigError("x"), ConfigError.help_code)) == ["LPX-E002"]


def test_pages_lie_in_the_package() -> None:
    assert PAGES.is_dir()
