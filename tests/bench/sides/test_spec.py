"""How sides are written."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lpx.bench.sides.spec import EngineSide, ServerSide, parse_side, parse_sides
from lpx.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "side"),
    [
        ("lpx", EngineSide("A", {"model": "smollm2-135m"})),
        ("lpx:threads=1", EngineSide("A", {"model": "smollm2-135m", "threads": 1})),
        (
            "lpx:model=/m/a.gguf,kv-cache-dtype=q8,q4,kv_cache_memory=1G",
            EngineSide("A", {"model": "/m/a.gguf", "kv_cache_memory": 1 << 30, "kv_cache_dtype": "q8,q4"}),
        ),
        (
            'lpx:speculative={"method":"suffix","num_speculative_tokens":8},name=草稿',
            EngineSide(
                "草稿",
                {"model": "smollm2-135m", "speculative_config": {"method": "suffix", "num_speculative_tokens": 8}},
            ),
        ),
        ("lpx:speculative=off", EngineSide("A", {"model": "smollm2-135m", "speculative_config": {"method": "off"}})),
        ("lpx:python=/old/bin/python", EngineSide("A", {"model": "smollm2-135m"}, "/old/bin/python")),
        ("http://127.0.0.1:8000/v1", ServerSide("A", "http://127.0.0.1:8000")),
        ("https://host,model=a/b:c,name=peer", ServerSide("peer", "https://host", "a/b:c")),
    ],
)
def test_sides(text, side):
    assert parse_side(text, "A") == side


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("smollm2-135m", "no side of a comparison"),
        ("lpx:thread=1", "'thread' is no option"),
        ("lpx:threads=two", "threads=two must be a number"),
        ("lpx:threads=0", "at least 1"),
        ("lpx:threads", "no option; write name=value"),
        ("lpx:threads=1,threads=2", "threads twice"),
        ("lpx:enable_prefix_caching=maybe", "true or false"),
        ("lpx:kv_cache_memory=much", "not a size"),
        ("lpx:kv_cache_dtype=q5", "q5"),
        ("http://host,threads=1", "a server has no option 'threads'"),
        ("http://", "no|not an address"),
        ("missing.toml", "missing.toml"),
    ],
)
def test_what_is_no_side_is_refused_with_the_reason(text, said):
    with pytest.raises(ConfigError, match=said):
        parse_side(text, "A")


def test_sides_have_letters_and_no_two_the_same_name():
    assert [side.name for side in parse_sides(["lpx", "lpx:name=x", "lpx"])] == ["A", "x", "C"]
    with pytest.raises(ConfigError, match="two sides are called 'B'"):
        parse_sides(["lpx:name=B", "lpx"])


def test_profile_with_changes(tmp_path):
    profile = tmp_path / "lpx.toml"
    profile.write_text('[engine]\nthreads = 2\nkv-cache-dtype = "q8"\nkv-cache-memory = "64M"\n[server]\nport = 9000\n')
    (side,) = parse_sides([f"lpx:profile={profile},threads=1"])
    assert side.settings == {
        "model": "smollm2-135m",
        "threads": 1,
        "kv_cache_dtype": "q8",
        "kv_cache_memory": 64 << 20,
    }


@settings(max_examples=50)
@given(st.text(max_size=60))
def test_any_text_is_a_side_or_a_config_error(text):
    with contextlib.suppress(ConfigError):
        parse_side(f"lpx:{text}", "A")
