"""What is written is read again as it was, tells what it means, and is there as a whole or not at all."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lpx.profile import KEYS, profile_text, read_profile, write_profile

TEXTS = st.text(st.characters(blacklist_categories=("Cs",)), min_size=1, max_size=30)
SPECULATION = st.fixed_dictionaries(
    {"method": st.sampled_from(["auto", "off"]), "num_speculative_tokens": st.integers(1, 9)}
)
VALUES = {
    "text": TEXTS,
    "whole": st.integers(0, 2**62),
    "number": st.floats(allow_nan=False, allow_infinity=False),
    "flag": st.booleans(),
    "size": TEXTS,
    "path": TEXTS.map(lambda text: "/" + text.lstrip("/")),
    "model": TEXTS.map(lambda text: "/" + text.lstrip("/")),
    "template": TEXTS.map(lambda text: "{" + text),
    "list": st.lists(TEXTS, max_size=3),
    "speculation": SPECULATION,
}


@given(st.fixed_dictionaries({}, optional={key.name: VALUES[key.kind] for key in KEYS}))
def test_what_is_written_is_read_again(tmp_path_factory, values):
    path = tmp_path_factory.getbasetemp() / "written.toml"
    path.write_text(profile_text(values, heading=["a heading", ""]), encoding="utf-8")
    path.chmod(0o600)
    read = dict(read_profile(path).values)
    if "speculative_config" in read:
        read["speculative_config"] = json.loads(read["speculative_config"])
    paths = {key.name for key in KEYS if key.kind in ("path", "model")}
    assert read.keys() == values.keys()
    for name, value in values.items():
        assert read[name] == (str(path.parent / value) if name in paths else value)


def test_comments_tell_what_keys_do_and_what_else_there_is():
    text = profile_text(
        {"threads": 2, "speculative_config": {"method": "suffix", "num_speculative_tokens": 4}},
        heading=["tuned for latency"],
        notes={"threads": "1.06 times the speed of 1 thread"},
    )
    assert text.startswith("# tuned for latency\n\n[engine]  # how much of the machine")
    assert "# 1.06 times the speed of 1 thread\nthreads = 2\n" in text
    assert 'speculative-config = { method = "suffix", num-speculative-tokens = 4 }' in text
    assert "# max-num-seqs = 64  # sequences that run at once" in text
    assert "[server]" not in text


def test_names_that_are_no_options_are_refused():
    with pytest.raises(KeyError, match="nonsense"):
        profile_text({"nonsense": 1})


def test_a_write_that_fails_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "lpx.toml"
    write_profile(path, "first")
    assert path.stat().st_mode & 0o777 == 0o666 & ~_umask()

    def fail(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        write_profile(path, "second")
    assert path.read_text() == "first"
    assert os.listdir(tmp_path) == ["lpx.toml"]


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
