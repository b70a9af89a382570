"""What a client asks of the sampler and of the end of generation, checked at once.

Names and defaults are those that vLLM users know. Checks that need the vocabulary (token ids) are the engine's.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Literal, get_args

from lpx.engine.structured.params import StructuredOutputsParams
from lpx.errors import InvalidRequestError
from lpx.runtime.step import SamplerSettings

MAX_CHOICES = 128
MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 16
MAX_STOP_LENGTH = 1024  # characters
MAX_STOP_TOKEN_IDS = 128
MAX_LOGIT_BIAS = 300  # entries
MAX_SALT_LENGTH = 256  # characters
_MAX_TOKEN_ID = 2**31 - 1
_MAX_PRIORITY = 2**31 - 1
_MAX_LATENCY_MS = 1e9  # eleven days
_MAX_COUNT = 2**63 - 1
# Beyond these nothing changes but the float32 of the sampler, which would become infinite or zero.
_MAX_TEMPERATURE = 1e6
_MAX_REPETITION_PENALTY = 1e6
_MASK64 = 2**64 - 1

Speculative = Literal["auto", "off"]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to sample, when to stop and what to report. Wrong values raise `InvalidRequestError` with `param` set.

    - `temperature` 0 is greedy, 1e6 the most. `top_k` 0 or -1 is off. `top_p` is in (0, 1]: 0 is refused. `min_p` is
      in [0, 1], `repetition_penalty` in [1e-6, 1e6].
    - `seed`: the same seed gives the same text, alone or in a batch. Any value in [-2**63, 2**64) counts, modulo
      2**64, except -1, which means what None means: a fresh seed for each request.
    - `presence_penalty` and `frequency_penalty` count generated tokens; `repetition_penalty` prompt and output.
    - `max_tokens` None runs up to the context limit; a value beyond the limit ends there too. 0 generates nothing
      and needs `prompt_logprobs`.
    - `min_tokens` bars end-of-sequence tokens and `stop_token_ids`, and overlooks stop strings, until so many tokens
      exist.
    - `logit_bias` maps token ids (or their decimal text) to a bias in [-100, 100].
    - `speculative`: "off" drafts no tokens for this request; "auto" leaves it to the engine. The text is the same.
    - `return_drafts`: tell the text of each token and whether the token was drafted, see `RequestDelta.pieces`.
    - `logprobs` and `prompt_logprobs` (0 to 20): log-probabilities under the model itself, before penalties, bias
      and temperature.
    - `cache_salt`: the prefix cache shares only among requests with the same one. Prompts of people who must not learn
      of each other, not even by how fast an answer comes, get different ones.
    - `structured_outputs`: the form that the text shall have, see `StructuredOutputsParams`, or a dict of its fields.
      The text ends where the form is complete.
    - `priority`: lower values are served first; 0 is usual.
    - `repeat_last_n`: penalties look at so many of the latest tokens of prompt and output; -1 at all, 0 at none.
    - `banned_token_ids` are never sampled.
    - `max_decode_ms`: so long after its first token the request ends with what there is, and `finish_reason` "timeout".
    - `max_latency_ms`: so long after its arrival the request ends with what there is, and `finish_reason` "timeout".
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: str | Sequence[str] | None = None  # kept as a tuple
    stop_token_ids: Sequence[int] | None = None  # kept as a tuple
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    cache_salt: str | None = None
    priority: int = 0
    max_latency_ms: float | None = None
    speculative: Speculative = "auto"
    repeat_last_n: int = -1
    banned_token_ids: Sequence[int] | None = None  # kept as a tuple
    max_decode_ms: float | None = None
    structured_outputs: StructuredOutputsParams | None = None
    return_drafts: bool = False

    def __post_init__(self) -> None:
        def keep(name: str, check: Callable[..., Any], *limits: Any) -> None:
            object.__setattr__(self, name, check(name, getattr(self, name), *limits))

        keep("n", _whole, 1, MAX_CHOICES)
        keep("temperature", _real, 0.0, _MAX_TEMPERATURE)
        keep("top_p", _real, 0.0, 1.0, True)
        keep("top_k", _whole, -1, _MAX_COUNT)
        keep("min_p", _real, 0.0, 1.0)
        keep("repetition_penalty", _real, 1 / _MAX_REPETITION_PENALTY, _MAX_REPETITION_PENALTY)
        keep("presence_penalty", _real, -2.0, 2.0)
        keep("frequency_penalty", _real, -2.0, 2.0)
        keep("min_tokens", _whole, 0, _MAX_COUNT)
        keep("priority", _whole, -_MAX_PRIORITY, _MAX_PRIORITY)
        keep("repeat_last_n", _whole, -1, _MAX_COUNT)
        for name in ("max_latency_ms", "max_decode_ms"):
            if getattr(self, name) is not None:
                keep(name, _real, 0.0, _MAX_LATENCY_MS, True)
        for name, low, high in (
            ("seed", -(2**63), _MASK64),
            ("max_tokens", 0, _MAX_COUNT),
            ("logprobs", 0, MAX_LOGPROBS),
            ("prompt_logprobs", 0, MAX_LOGPROBS),
        ):
            if getattr(self, name) is not None:
                keep(name, _whole, low, high)
        for name in ("include_stop_str_in_output", "ignore_eos", "skip_special_tokens", "return_drafts"):
            keep(name, _flag)
        if self.speculative not in get_args(Speculative):
            raise _refuse("speculative", f"must be auto or off, not {_shown(self.speculative)}")
        keep("logit_bias", _bias)
        keep("stop", _stop_strings)
        keep("stop_token_ids", _stop_ids)
        keep("banned_token_ids", _stop_ids)
        if self.windowed:  # a draft would be sampled with other windows than its tokens one by one
            object.__setattr__(self, "speculative", "off")
        keep("cache_salt", _salt)
        keep("structured_outputs", _structured)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequestError(
                f"min_tokens ({self.min_tokens}) must not exceed max_tokens ({self.max_tokens})", param="min_tokens"
            )
        if self.max_tokens == 0 and self.prompt_logprobs is None:
            raise InvalidRequestError(
                "max_tokens 0 generates nothing: give at least 1, or ask for prompt_logprobs to score the prompt",
                param="max_tokens",
            )

    @property
    def windowed(self) -> bool:
        """Whether penalties look at a part of the tokens only."""
        return self.repeat_last_n > 0 and (
            self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0
        )

    def sampler_settings(self, seed: int, vocab_size: int) -> SamplerSettings:
        """The part that the sampler needs, for a choice whose seed is `seed` in [0, 2**64)."""
        looks_back = self.repeat_last_n != 0
        return SamplerSettings(
            temperature=self.temperature,
            top_k=min(max(self.top_k, 0), vocab_size),
            top_p=self.top_p,
            min_p=self.min_p,
            seed=seed,
            repetition_penalty=self.repetition_penalty if looks_back else 1.0,
            presence_penalty=self.presence_penalty if looks_back else 0.0,
            frequency_penalty=self.frequency_penalty if looks_back else 0.0,
            logit_bias=dict(self.logit_bias or {}),
        )


def choice_seed(seed: int, index: int) -> int:
    """Seed of choice `index` of a request: choice 0 uses `seed` itself, the others well-mixed ones of their own.

    The mix is the finalizer of SplitMix64 (Steele, Lea, Flood 2014), so it depends on nothing but its arguments.
    """
    seed &= _MASK64
    if index == 0:
        return seed
    z = (seed + index * 0x9E3779B97F4A7C15) & _MASK64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK64
    return z ^ (z >> 31)


def _refuse(name: str, message: str) -> InvalidRequestError:
    return InvalidRequestError(f"{name} {message}", param=name)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _whole(name: str, value: object, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise _refuse(name, f"must be a whole number, not {_shown(value)}")
    number = operator.index(value)
    if not low <= number <= high:
        bound = f"at least {low}" if high == _MAX_COUNT and number < low else f"from {low} to {high}"
        raise _refuse(name, f"must be {bound}, not {_shown(number)}")
    return number


def _real(name: str, value: object, low: float, high: float, above_low: bool = False) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise _refuse(name, f"must be a number, not {_shown(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise _refuse(name, f"must be a finite number, not {_shown(value)}")
    if not low <= number <= high or (above_low and number == low):
        lower = f"{'above' if above_low else 'at least'} {low:g}"
        raise _refuse(name, f"must be {lower} and at most {high:g}, not {number!r}")
    return number


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise _refuse(name, f"must be true or false, not {_shown(value)}")
    return value


def _salt(name: str, value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise _refuse(name, f"must be a string, not {_shown(value)}")
    if not 0 < len(value) <= MAX_SALT_LENGTH:
        raise _refuse(name, f"must have from 1 to {MAX_SALT_LENGTH} characters, not {len(value)}")
    if "\ufffd" in value or any("\ud800" <= character <= "\udfff" for character in value):
        raise _refuse(name, "must be sound text: half a surrogate pair or U+FFFD could stand for something else")
    return value


def _structured(name: str, value: object) -> StructuredOutputsParams | None:
    if value is None or isinstance(value, StructuredOutputsParams):
        return value
    if not isinstance(value, Mapping):
        raise _refuse(name, f"must be StructuredOutputsParams, not {_shown(value)}")
    try:
        return StructuredOutputsParams(**value)
    except TypeError:
        raise _refuse(name, f"has an unknown field among {_shown(sorted(map(str, value)))}") from None


def _stop_strings(name: str, value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    strings = [value] if isinstance(value, str) else value
    if not isinstance(strings, (list, tuple)):
        raise _refuse(name, f"must be a string or a list of strings, not {_shown(value)}")
    if len(strings) > MAX_STOP_STRINGS:
        raise _refuse(name, f"must hold at most {MAX_STOP_STRINGS} strings, not {len(strings)}")
    for string in strings:
        if not isinstance(string, str):
            raise _refuse(name, f"must hold strings, not {_shown(string)}")
        if not string:
            raise _refuse(name, "must not hold an empty string: it would match everywhere")
        if len(string) > MAX_STOP_LENGTH:
            raise _refuse(name, f"strings must have at most {MAX_STOP_LENGTH} characters, not {len(string)}")
    return tuple(dict.fromkeys(strings))


def _stop_ids(name: str, value: object) -> tuple[int, ...]:
    if value is None:
        return ()
    if not isinstance(value, (list, tuple, set, frozenset)):
        raise _refuse(name, f"must be a list of token ids, not {_shown(value)}")
    if len(value) > MAX_STOP_TOKEN_IDS:
        raise _refuse(name, f"must hold at most {MAX_STOP_TOKEN_IDS} ids, not {len(value)}")
    return tuple(dict.fromkeys(_whole(name, token_id, 0, _MAX_TOKEN_ID) for token_id in value))


def _bias(name: str, value: object) -> dict[int, float] | None:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise _refuse(name, f"must map token ids to numbers, not {_shown(value)}")
    if len(value) > MAX_LOGIT_BIAS:
        raise _refuse(name, f"must hold at most {MAX_LOGIT_BIAS} entries, not {len(value)}")
    biases: dict[int, float] = {}
    for key, bias in value.items():
        token_id = key
        if isinstance(key, str) and key.isascii() and key.removeprefix("-").isdigit() and len(key) <= 20:
            token_id = int(key)
        if isinstance(token_id, bool) or not isinstance(token_id, Integral):
            raise _refuse(name, f"has the key {_shown(key)}, which is not a token id")
        if not 0 <= operator.index(token_id) <= _MAX_TOKEN_ID:
            raise _refuse(name, f"has the key {_shown(key)}, which is not a token id of the model")
        try:
            biases[operator.index(token_id)] = _real(name, bias, -100.0, 100.0)
        except InvalidRequestError as error:
            raise InvalidRequestError(f"{error} (key {_shown(key)})", param=name) from None
    return biases
