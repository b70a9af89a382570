from __future__ import annotations

from typing import Any

import pytest

from lpx.errors import ConfigError
from lpx.options import EngineOptions
from lpx.speculative_config import SpeculativeConfig


def test_the_default_judges_by_itself() -> None:
    assert SpeculativeConfig.parse(None) == SpeculativeConfig(method="auto")
    assert EngineOptions(model="m").speculative_config == SpeculativeConfig()


def test_vllms_spelling_is_understood() -> None:
    config = SpeculativeConfig.parse(
        '{"method": "ngram", "num_speculative_tokens": 7, "prompt_lookup_min": 3, "prompt_lookup_max": 4}'
    )
    assert (config.method, config.most, config.prompt_lookup_min, config.prompt_lookup_max) == ("ngram", 7, 3, 4)
    assert SpeculativeConfig.parse({"method": "off"}).method == "off"
    assert SpeculativeConfig.parse({"method": "suffix", "suffix_decoding_max_cached_requests": 0}).most == 15
    assert EngineOptions(model="m", speculative_config='{"method":"off"}').speculative_config.method == "off"


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("{", "not JSON"),
        ("[]", "object"),
        ("3", "object"),
        ("[" * 100_000, "too deep"),
        ('{"method": "suffix", "method": "off"}', "'method' twice"),
        ({"method": "suffix", "prompt_lookup_max": 3}, "no use for prompt_lookup_max"),
        ({"method": "auto", "suffix_decoding_min_token_prob": 0.5}, "no use for"),
        ({"method": "eagle"}, "eagle"),
        ({"method": None}, "None"),
        ({"mode": "suffix"}, "'mode'"),
        ({"num_speculative_tokens": 0}, "num_speculative_tokens"),
        ({"num_speculative_tokens": 65}, "65"),
        ({"num_speculative_tokens": True}, "True"),
        ({"num_speculative_tokens": "5"}, "'5'"),
        ({"method": "ngram", "prompt_lookup_min": 5, "prompt_lookup_max": 3}, "prompt_lookup_min"),
        ({"method": "draft_model"}, '"model"'),
        ({"method": "suffix", "model": "x"}, "suffix"),
        ({"method": "auto", "model": ""}, "''"),
        ({"suffix_decoding_min_token_prob": 1.5}, "1.5"),
        ({"suffix_decoding_min_token_prob": float("nan")}, "nan"),
        ({"suffix_decoding_max_cached_requests": -1}, "-1"),
    ],
)
def test_wrong_configs_name_what_is_wrong(given: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=named.replace("[", r"\[")):
        SpeculativeConfig.parse(given)
