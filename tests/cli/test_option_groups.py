"""Options that commands share, and how sizes are read."""

from __future__ import annotations

import contextlib

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.main import get_command

from lpx.cli.app import app
from lpx.cli.option_groups import ModelOptions, size_parameter


@given(
    st.integers(0, 2**40),
    st.sampled_from([("", 0), ("K", 10), ("m", 20), ("G", 30), ("T", 40)]),
    st.sampled_from(["", "B", "iB"]),
)
def test_sizes_are_powers_of_1024(number, unit, tail):
    letter, power = unit
    if not letter and tail == "iB":
        return
    assert size_parameter(f"{number}{letter}{tail}") == number << power


@given(st.text())
def test_any_other_text_is_refused_or_a_size(text):
    with contextlib.suppress(typer.BadParameter):
        assert size_parameter(text) >= 0


@pytest.mark.parametrize("text", ["", "-1", "1e9", "0x10", "512 MX", "½G", "1.G", "nan", "٣M", "9" * 400])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(typer.BadParameter, match="512M"):
        size_parameter(text)


def test_fractions_round_down():
    assert size_parameter("1.5K") == 1536
    assert size_parameter("0.1K") == 102


@pytest.mark.parametrize("name", ["run", "chat", "serve"])
def test_model_options_are_the_same_everywhere(name):
    command = get_command(app).commands[name]
    options = {option.name: option for option in command.params}
    for field in ModelOptions.__dataclass_fields__:
        assert options[field].envvar == f"LPX_{field.upper()}"
    assert {"--model", "--model-path", "-m"} <= set(options["model"].opts)
