"""What all bodies share: strict parsing, and the fields of everything that generates."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, model_validator
from typing_extensions import Self

from lpx.engine.sampling_params import SamplingParams
from lpx.engine.structured.params import StructuredOutputsParams
from lpx.errors import InvalidRequestError
from lpx.server.errors import clip, renamed
from lpx.server.schemas.fields import BIAS_SCHEMA, IDS_SCHEMA, STOPS_SCHEMA, bias_map, id_list, stop_list
from lpx.server.schemas.foreign import NEUTRAL
from lpx.server.structured import FORM_FIELDS, requested_form


class StrictRequest(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _drop_neutral(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        known = cls.model_fields
        kept: dict[str, Any] = {}
        for key, value in data.items():
            if key in known or key not in NEUTRAL:
                kept[key] = value
                continue
            neutral, reason = NEUTRAL[key]
            if value is not None and not neutral(value):
                raise InvalidRequestError(f"{key}: {reason}.", param=key, code="unsupported_parameter")
        return kept

    @classmethod
    def parse(cls, body: Mapping[str, Any]) -> Self:
        """Validate `body`; raises `InvalidRequestError` that names the first wrong field and repeats no value."""
        try:
            return cls.model_validate(body)
        except ValidationError as exc:
            error = exc.errors(include_url=False, include_input=False, include_context=True)[0]
        location = [str(part) for part in error["loc"] if not isinstance(part, int)]
        name = clip(".".join(location), 64)
        if error["type"] == "missing":
            raise InvalidRequestError(f"{name}: this field is required.", param=name)
        if error["type"] == "extra_forbidden":
            raise InvalidRequestError(
                f"Unknown field {name!r}. Remove it, or check its spelling.", param=name, code="unknown_parameter"
            )
        text = error["msg"]
        text = text if error["type"] == "request" else text[0].lower() + text[1:]
        raise InvalidRequestError(f"{name} {text}." if error["type"] == "request" else f"{name}: {text}.", param=name)


class StreamOptions(StrictRequest):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None  # usage so far in every chunk


class SamplingRequest(StrictRequest):
    """What all generating requests share. `None` means the default everywhere, since clients send nulls."""

    model: str | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    repetition_penalty: float | None = None
    repeat_penalty: float | None = None  # llama.cpp's name
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Annotated[dict[int, float | bool] | None, BeforeValidator(bias_map), BIAS_SCHEMA] = None
    min_tokens: int | None = None
    stop: Annotated[list[str] | None, BeforeValidator(stop_list), STOPS_SCHEMA] = None
    stop_token_ids: Annotated[list[int] | None, BeforeValidator(id_list), IDS_SCHEMA] = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    prompt_logprobs: int | None = None
    cache_salt: str | None = None
    priority: int | None = None
    max_latency_ms: float | None = None
    speculative: str | None = None
    return_drafts: bool | None = None
    repeat_last_n: int | None = None
    truncate_prompt_tokens: int | None = None  # keep so many of the last tokens; -1: as many as fit
    cache_prompt: bool | None = None
    t_max_predict_ms: float | None = None  # llama.cpp's; -1: off
    timings: bool | None = None  # in the answer; None: as the server does
    timings_per_token: bool | None = None
    # What form the text shall have; looked at in `lpx.server.structured`.
    response_format: Any = None
    structured_outputs: Any = None
    json_schema: Any = None
    grammar: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    include_stop_str_in_output: bool | None = None

    @model_validator(mode="after")
    def _one_spelling(self) -> SamplingRequest:
        if self.repeat_penalty is not None and self.repetition_penalty is not None:
            raise InvalidRequestError(
                "Give either repetition_penalty or repeat_penalty, not both.", param="repeat_penalty"
            )
        return self

    @model_validator(mode="after")
    def _llama_cpp_values(self) -> SamplingRequest:
        if self.truncate_prompt_tokens is not None and (
            self.truncate_prompt_tokens < -1 or self.truncate_prompt_tokens == 0
        ):
            raise InvalidRequestError(
                "truncate_prompt_tokens must be at least 1, or -1 for as many as fit.", param="truncate_prompt_tokens"
            )
        return self

    def fit(self, ids: list[int], max_model_len: int, max_tokens: int | None) -> list[int]:
        """The prompt, cut at its beginning if `truncate_prompt_tokens` says so."""
        keep = self.truncate_prompt_tokens
        if keep is None:
            return ids
        if keep == -1:
            keep = max(max_model_len - max(max_tokens or 1, 1), 1)
        return ids[-keep:]

    @property
    def streams(self) -> bool:
        return bool(self.stream)

    @property
    def form(self) -> StructuredOutputsParams | None:
        """The form that the text shall have."""
        return requested_form({name: getattr(self, name) for name in FORM_FIELDS})

    def sampling_params(self, *, max_tokens: int | None, **others: Any) -> SamplingParams:
        """The engine's parameters. Raises `InvalidRequestError` whose `param` is spelled as the client spelled it."""
        given_bias = self.logit_bias or {}
        biases = {key: bias for key, bias in given_bias.items() if bias is not False}
        banned = [key for key, bias in given_bias.items() if bias is False]
        values = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "repetition_penalty": self.repetition_penalty if self.repeat_penalty is None else self.repeat_penalty,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "logit_bias": biases,
            "banned_token_ids": banned or None,
            "repeat_last_n": self.repeat_last_n,
            "max_decode_ms": None if self.t_max_predict_ms == -1 else self.t_max_predict_ms,
            "min_tokens": self.min_tokens,
            "stop": self.stop,
            "stop_token_ids": self.stop_token_ids,
            "include_stop_str_in_output": self.include_stop_str_in_output,
            "ignore_eos": self.ignore_eos,
            "skip_special_tokens": self.skip_special_tokens,
            "prompt_logprobs": self.prompt_logprobs,
            "speculative": self.speculative,
            "return_drafts": self.return_drafts,
            "seed": self.seed,
            # Without the prefix cache: a salt that nobody else has.
            "cache_salt": secrets.token_hex(16) if self.cache_prompt is False else self.cache_salt,
            "priority": self.priority,
            "max_latency_ms": self.max_latency_ms,
            "structured_outputs": self.form,
            **others,
        }
        given: dict[str, Any] = {key: value for key, value in values.items() if value is not None}
        try:
            return SamplingParams(max_tokens=max_tokens, **given)
        except InvalidRequestError as exc:
            raise renamed(exc, self.spellings) from None

    @property
    def spellings(self) -> dict[str, str]:
        """Parameters of the engine that this body has under another name."""
        return self._given_names(repetition_penalty="repeat_penalty")

    def _given_names(self, **names: str) -> dict[str, str]:
        """Of these names by the engine's, those that the body gives a value."""
        return {ours: theirs for ours, theirs in names.items() if getattr(self, theirs) is not None}


class OpenAIRequest(SamplingRequest):
    max_tokens: int | None = None
    n_predict: int | None = None  # llama.cpp's name; -1: up to the context limit
    stream_options: StreamOptions | None = None
    n: int | None = None
    n_cmpl: int | None = None  # llama.cpp's name
    return_token_ids: bool | None = None

    @model_validator(mode="after")
    def _one_name(self) -> OpenAIRequest:
        for ours, theirs in (("max_tokens", "n_predict"), ("n", "n_cmpl")):
            if getattr(self, ours) is not None and getattr(self, theirs) is not None:
                raise InvalidRequestError(f"Give either {ours} or {theirs}, not both.", param=theirs)
        return self

    @property
    def limit(self) -> int | None:
        """`max_tokens` under either name."""
        if self.n_predict is None:
            return self.max_tokens
        return None if self.n_predict == -1 else self.n_predict

    @property
    def spellings(self) -> dict[str, str]:
        return super().spellings | self._given_names(max_tokens="n_predict", n="n_cmpl")

    @property
    def continuous_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.continuous_usage_stats)

    @model_validator(mode="after")
    def _usage_needs_stream(self) -> OpenAIRequest:
        if self.stream_options is not None and not self.stream:
            raise InvalidRequestError("stream_options may only be given when stream is true.", param="stream_options")
        if self.prompt_logprobs is not None and self.stream:
            raise InvalidRequestError("prompt_logprobs cannot be streamed; leave out stream.", param="prompt_logprobs")
        return self

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def choices(self) -> int:
        n = self.n if self.n_cmpl is None else self.n_cmpl
        return 1 if n is None else n
