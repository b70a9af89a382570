"""Profiles that are right become option values; every wrong one is refused with file, section, key and a way out."""

from __future__ import annotations

import contextlib
import json
import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lpx.profile import KEYS, SECTIONS, ProfileError, read_profile


@pytest.fixture
def read(tmp_path):
    def call(text: str | bytes):
        path = tmp_path / "lpx.toml"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return dict(read_profile(path).values)

    return call


def test_both_spellings_of_keys_and_a_table_of_speculation(read):
    values = read(
        """
        [engine]
        kv_cache_dtype = "q8"
        max-num-seqs = 8
        kv-cache-memory = "64M"
        itl-target-ms = 20
        enable-prefix-caching = false
        [engine.speculative-config]
        method = "suffix"
        num-speculative-tokens = 4
        [access]
        allowed-hosts = "api.internal"
        """
    )
    speculation = values.pop("speculative_config")
    assert json.loads(speculation) == {"method": "suffix", "num_speculative_tokens": 4}
    assert values == {
        "kv_cache_dtype": "q8",
        "max_num_seqs": 8,
        "kv_cache_memory": "64M",
        "itl_target_ms": 20.0,
        "enable_prefix_caching": False,
        "allowed_hosts": ["api.internal"],
    }


def test_an_empty_file_sets_nothing(read):
    assert read("") == {}
    assert read("# nothing\n[engine]\n") == {}


def test_paths_are_those_beside_the_file(read, tmp_path):
    (tmp_path / "模型.gguf").write_bytes(b"")
    values = read(
        '[model]\nmodel = "模型.gguf"\nmodels-dir = "store"\nchat-template = "chat.jinja"\n'
        '[tls]\nssl-certfile = "/etc/a.pem"'
    )
    assert values == {
        "model": str(tmp_path / "模型.gguf"),
        "models_dir": str(tmp_path / "store"),
        "chat_template": str(tmp_path / "chat.jinja"),
        "ssl_certfile": "/etc/a.pem",
    }


def test_names_and_templates_are_left_as_they_are(read, tmp_path):
    values = read('[model]\nmodel = "smollm2-135m"\nchat-template = "{{ messages }}"')
    assert values == {"model": "smollm2-135m", "chat_template": "{{ messages }}"}
    assert read('[model]\nmodel = "~nobody-of-this-name/x"')["model"].endswith("/~nobody-of-this-name/x")
    assert read('[model]\nmodel = "./absent.gguf"')["model"] == str(tmp_path / "absent.gguf")


def test_a_draft_model_is_found_beside_the_file_too(read, tmp_path):
    (tmp_path / "draft.gguf").write_bytes(b"")
    values = read('[engine]\nspeculative-config = { method = "draft_model", model = "draft.gguf" }')
    assert json.loads(values["speculative_config"])["model"] == str(tmp_path / "draft.gguf")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[engine]\nthread = 2", r"\[engine\] has the key thread, .* nearest is threads in \[engine\]"),
        ("[server]\nmax-seqs = 2", r"nearest is max-num-seqs in \[engine\]"),
        ("[server]\nthreads = 2", r"belongs into the section \[engine\]"),
        ("threads = 2", r"threads belongs into the section \[engine\]"),
        ("nonsense = 2", r"key nonsense is not known\. Sections are"),
        ("[engin]\nthreads = 2", r"did you mean \[engine\]\?"),
        ("engine = 2", r"write \[engine\]"),
        ('[engine]\nthreads = "2"', 'threads .* whole number, not "2"'),
        ("[engine]\nthreads = true", "whole number, not true"),
        ("[engine]\nthreads = 2.0", r"whole number, not 2\.0"),
        ("[engine]\nitl-target-ms = nan", "a number, not nan"),
        ("[engine]\nenable-prefix-caching = 1", "true or false, not 1"),
        ("[engine]\nkv-cache-dtype = 8", "text in quotes, not 8"),
        ('[engine]\nspeculative-config = ["suffix"]', "a table such as"),
        ("[engine]\nspeculative-config = { method = 2020-01-01 }", "a table such as"),
        ("[access]\nallowed-hosts = [1]", "a list of texts"),
        ("[model]\nmodel = ''", "a path or a name"),
        ("[engine]\nmax-num-seqs = 1\nmax_num_seqs = 2", "max-num-seqs twice"),
        ("[engine]\nthreads = 1\nthreads = 2", "is not TOML: Cannot overwrite"),
        ("[engine", "is not TOML"),
        (b"[engine]\nisa = '\xff'", "is not UTF-8"),
    ],
)
def test_what_is_wrong_is_named(read, text, said):
    with pytest.raises(ProfileError, match=said) as caught:
        read(text)
    assert "lpx.toml" in str(caught.value)
    assert caught.value.exit_code == 2


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ProfileError, match=r"absent\.toml cannot be read: No such file"):
        read_profile(tmp_path / "absent.toml")
    with pytest.raises(ProfileError, match="directory"):
        read_profile(tmp_path)
    large = tmp_path / "large.toml"
    large.write_bytes(b"#" * (1 << 21))
    with pytest.raises(ProfileError, match="more than 1048576 bytes"):
        read_profile(large)


def test_keys_in_a_file_that_others_may_read_are_refused(read, tmp_path):
    text = '[access]\napi-key = ["sk-secret-0123456789"]'
    with pytest.raises(ProfileError, match="chmod 600") as caught:
        read(text)
    assert "sk-secret" not in str(caught.value)
    (tmp_path / "lpx.toml").chmod(0o600)
    assert read(text) == {"api_key": ["sk-secret-0123456789"]}


@given(st.text(max_size=200))
def test_no_text_breaks_the_reader(tmp_path_factory, text):
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with contextlib.suppress(ProfileError):
        read_profile(path)


def test_keys_have_names_sections_and_something_to_say():
    assert len({key.name for key in KEYS}) == len(KEYS)
    for key in KEYS:
        assert key.section in SECTIONS
        assert re.fullmatch(r"[a-z][a-z_]+", key.name)
        assert len(key.help) > 5


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[engine]\nthreads = " + "9" * 5000, "is not TOML"),
        ("[engine]\nthreads = " + "9" * 400, "must be a whole number"),
        ("[engine]\nitl-target-ms = " + "9" * 400, "must be a number"),
        ("[engine.speculative-config]\n" + "a." * 9000 + "a = 1", "nested too deep"),
        ("[engine]\nthreads = [{ " + "a." * 9000 + "a = 1 }]", "nested too deep"),
    ],
)
def test_numbers_and_tables_beyond_all_bounds_are_refused(read, text, said):
    with pytest.raises(ProfileError, match=said):
        read(text)


def test_only_a_regular_file_is_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(ProfileError, match="is no regular file"):
            read_profile(path)
    with pytest.raises(ProfileError, match="cannot be read: Is a directory"):
        read_profile(tmp_path)
