"""Options that cannot be honoured are refused, by name and with their value."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lpx.engine.loading import _check_dtype, _load_chat_template
from lpx.errors import ChatTemplateError, ConfigError
from lpx.options import EngineOptions, parse_kv_cache_dtype
from tests.engine.fake_executor import ByteTokenizer


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model", ""),
        ("model", 5),
        ("dtype", "float8"),
        ("quantization", "int4"),
        ("kv_cache_dtype", "fp8"),
        ("kv_cache_dtype", "q8,q4,q4"),
        ("kv_cache_dtype", "q8,"),
        ("kv_cache_dtype", None),
        ("max_model_len", 0),
        ("max_model_len", "4096"),
        ("max_num_seqs", True),
        ("max_num_seqs", None),
        ("max_num_batched_tokens", -1),
        ("kv_cache_memory", 1.5),
        ("threads", 0),
        ("max_waiting", -1),
        ("enable_prefix_caching", "yes"),
        ("itl_target_ms", 0),
        ("itl_target_ms", float("inf")),
        ("itl_target_ms", "5"),
        ("seed", "1"),
    ],
)
def test_wrong_option_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=name) as refusal:
        EngineOptions(**{"model": "m", name: value})
    assert repr(value) in str(refusal.value) or value == ""
    assert refusal.value.exit_code == 2


def test_every_sequence_needs_a_row_of_the_budget() -> None:
    with pytest.raises(ConfigError, match=r"max_num_batched_tokens \(7\).*max_num_seqs \(64\)"):
        EngineOptions("m", max_num_batched_tokens=7)
    assert EngineOptions("m", max_num_batched_tokens=7, max_num_seqs=7).max_num_seqs == 7


@pytest.mark.parametrize(
    ("text", "types"),
    [("auto", ("f16", "f16")), ("q8", ("q8", "q8")), ("q8,q4", ("q8", "q4")), ("bf16, auto", ("bf16", "f16"))],
)
def test_keys_and_values_may_have_different_types(text: str, types: tuple[str, str]) -> None:
    assert parse_kv_cache_dtype(text) == types
    assert EngineOptions("m", kv_cache_dtype=text).kv_cache_dtype == text


def files(**types: int) -> Any:
    return SimpleNamespace(name="tiny", weight_types=types, chat_template=None)


@pytest.mark.parametrize(
    ("dtype", "held"), [("auto", {"Q4_1": 9}), ("bf16", {"BF16": 9, "F32": 1}), ("half", {"F16": 9})]
)
def test_dtype_of_the_file_is_honoured(dtype: str, held: dict[str, int]) -> None:
    assert _check_dtype(files(**held), dtype) == dtype


@pytest.mark.parametrize(("dtype", "held"), [("f16", {"Q4_1": 9, "F32": 1}), ("f32", {"BF16": 9, "F32": 1})])
def test_other_dtype_is_refused_with_what_the_file_holds(dtype: str, held: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=f"{dtype}.*tiny.*{next(iter(held))}"):
        _check_dtype(files(**held), dtype)


def test_chat_template_is_the_given_one_or_the_models_own(tmp_path: Path) -> None:
    tokenizer: Any = ByteTokenizer()
    assert _load_chat_template(files(), tokenizer, None) is None
    path = tmp_path / "chat.jinja"
    path.write_text("{{ messages[0].content }}")
    assert _load_chat_template(files(), tokenizer, str(path)) is not None
    assert _load_chat_template(files(), tokenizer, "{{ messages }}") is not None
    with pytest.raises(ConfigError, match=r"absent\.jinja"):
        _load_chat_template(files(), tokenizer, str(tmp_path / "absent.jinja"))
    with pytest.raises(ChatTemplateError):
        _load_chat_template(files(), tokenizer, "{% if %}")
