"""How tokens are drafted: the options of speculative decoding, spelled as vLLM spells them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from lpx.errors import ConfigError

Method = Literal["auto", "suffix", "ngram", "draft_model", "off"]
METHODS: tuple[str, ...] = get_args(Method)
MOST_DRAFTED = 64

# Methods that use a key; all others use the keys that are not listed.
_USERS: dict[str, tuple[Method, ...]] = {
    "prompt_lookup_min": ("ngram",),
    "prompt_lookup_max": ("ngram",),
    "suffix_decoding_max_cached_requests": ("auto", "suffix"),
    "suffix_decoding_min_token_prob": ("suffix",),
}
_EXAMPLE = '{"method": "suffix", "num_speculative_tokens": 8}'


@dataclass(frozen=True, slots=True)
class SpeculativeConfig:
    """Wrong values raise `ConfigError`.

    - `method`: `suffix` drafts what followed the last time that the text went on like this, in the prompt, the output
      or recent requests; `ngram` what followed in prompt and output, by plain lookup; `draft_model` asks the smaller
      model `model`, which must share the vocabulary. These draft whenever they can. `auto` drafts by suffix, and by
      `model` if one is given, just as many tokens as make decoding faster on this machine: often none. `off`: nothing.
    - `num_speculative_tokens`: the most tokens drafted for one sequence in one step; default 15, for `ngram` and
      `draft_model` 5.
    - `prompt_lookup_min`, `prompt_lookup_max`: tokens that `ngram` must and may match.
    - `suffix_decoding_max_cached_requests`: texts of recent requests that `suffix` searches too; 0: none.
    - `suffix_decoding_min_token_prob`: `suffix` drafts no token that it gives a smaller chance.
    """

    method: Method = "auto"
    num_speculative_tokens: int | None = None
    model: str | None = None
    prompt_lookup_min: int = 2
    prompt_lookup_max: int = 5
    suffix_decoding_max_cached_requests: int = 1000
    suffix_decoding_min_token_prob: float = 0.1

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ConfigError(
                f"the speculative method {self.method!r} is not known; use one of {', '.join(METHODS)}, such as "
                f"{_EXAMPLE}"
            )
        if self.num_speculative_tokens is not None:
            _whole("num_speculative_tokens", self.num_speculative_tokens, 1, MOST_DRAFTED)
        _whole("prompt_lookup_min", self.prompt_lookup_min, 1, 64)
        _whole("prompt_lookup_max", self.prompt_lookup_max, 1, 64)
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise ConfigError(
                f"prompt_lookup_min ({self.prompt_lookup_min}) is more than prompt_lookup_max "
                f"({self.prompt_lookup_max})"
            )
        _whole("suffix_decoding_max_cached_requests", self.suffix_decoding_max_cached_requests, 0, 1_000_000)
        chance = self.suffix_decoding_min_token_prob
        if isinstance(chance, bool) or not isinstance(chance, (int, float)) or not 0 <= chance <= 1:
            raise ConfigError(f"suffix_decoding_min_token_prob must be a number from 0 to 1, not {chance!r}")
        if self.model is not None and (not isinstance(self.model, str) or not self.model):
            raise ConfigError(f"the model of a speculative config must be a path or a name, not {self.model!r}")
        if self.method == "draft_model" and self.model is None:
            raise ConfigError('the speculative method "draft_model" needs a "model": a path or a name')
        if self.model is not None and self.method not in ("draft_model", "auto"):
            raise ConfigError(f'the speculative method "{self.method}" has no use for a "model"')

    @property
    def most(self) -> int:
        """The most tokens to draft for one sequence in one step."""
        if self.num_speculative_tokens is not None:
            return self.num_speculative_tokens
        return 5 if self.method in ("ngram", "draft_model") else 15

    @classmethod
    def parse(cls, given: SpeculativeConfig | Mapping[str, Any] | str | None) -> SpeculativeConfig:
        """From what users write: JSON text, a mapping, or None for the default. Unknown keys are refused."""
        if given is None:
            return cls()
        if isinstance(given, cls):
            return given
        if isinstance(given, str):
            try:
                given = json.loads(given, object_pairs_hook=_unlike_keys)
            except RecursionError:
                raise ConfigError(f"the speculative config is nested too deep; write it like {_EXAMPLE}") from None
            except ValueError as error:
                raise ConfigError(
                    f"the speculative config {given!r} is not JSON ({error}); write it like {_EXAMPLE}"
                ) from None
        if not isinstance(given, Mapping):
            raise ConfigError(f"a speculative config is an object like {_EXAMPLE}, not {given!r}")
        known = [field.name for field in fields(cls)]
        for key in given:
            if key not in known:
                raise ConfigError(f"the speculative config has the key {key!r}; known are {', '.join(known)}")
        config = cls(**given)
        for key in given:
            users = _USERS.get(key)
            if users is not None and config.method not in (*users, "off"):
                raise ConfigError(f'the speculative method "{config.method}" has no use for {key}')
        return config


def _unlike_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    for key in keys:
        if keys.count(key) > 1:
            raise ConfigError(f"the speculative config has the key {key!r} twice")
    return dict(pairs)


def _whole(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigError(f"{name} must be a whole number from {low} to {high}, not {value!r}")
