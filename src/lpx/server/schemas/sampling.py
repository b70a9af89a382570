"""What all bodies share: strict parsing, and the fields of everything that generates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, model_validator
from typing_extensions import Self

from lpx.engine.sampling_params import SamplingParams
from lpx.errors import InvalidRequestError
from lpx.server.errors import clip
from lpx.server.schemas.fields import BIAS_SCHEMA, IDS_SCHEMA, STOPS_SCHEMA, bias_map, id_list, stop_list
from lpx.server.schemas.foreign import NEUTRAL


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
    logit_bias: Annotated[dict[int, float] | None, BeforeValidator(bias_map), BIAS_SCHEMA] = None
    min_tokens: int | None = None
    stop: Annotated[list[str] | None, BeforeValidator(stop_list), STOPS_SCHEMA] = None
    stop_token_ids: Annotated[list[int] | None, BeforeValidator(id_list), IDS_SCHEMA] = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    prompt_logprobs: int | None = None
    cache_salt: str | None = None
    priority: int | None = None
    max_latency_ms: float | None = None
    speculative: str | None = None

    @model_validator(mode="after")
    def _one_spelling(self) -> SamplingRequest:
        if self.repeat_penalty is not None and self.repetition_penalty is not None:
            raise InvalidRequestError(
                "Give either repetition_penalty or repeat_penalty, not both.", param="repeat_penalty"
            )
        return self

    @property
    def streams(self) -> bool:
        return bool(self.stream)

    def sampling_params(self, *, max_tokens: int | None, **others: int | None) -> SamplingParams:
        """The engine's parameters. Raises `InvalidRequestError` whose `param` is spelled as the client spelled it."""
        values = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "repetition_penalty": self.repetition_penalty if self.repeat_penalty is None else self.repeat_penalty,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "logit_bias": self.logit_bias,
            "min_tokens": self.min_tokens,
            "stop": self.stop,
            "stop_token_ids": self.stop_token_ids,
            "include_stop_str_in_output": self.include_stop_str_in_output,
            "ignore_eos": self.ignore_eos,
            "skip_special_tokens": self.skip_special_tokens,
            "prompt_logprobs": self.prompt_logprobs,
            "speculative": self.speculative,
            "seed": self.seed,
            "cache_salt": self.cache_salt,
            "priority": self.priority,
            "max_latency_ms": self.max_latency_ms,
            **others,
        }
        given: dict[str, Any] = {key: value for key, value in values.items() if value is not None}
        try:
            return SamplingParams(max_tokens=max_tokens, **given)
        except InvalidRequestError as exc:
            if exc.param == "repetition_penalty" and self.repeat_penalty is not None:
                message = str(exc).replace("repetition_penalty", "repeat_penalty")
                raise InvalidRequestError(message, param="repeat_penalty", code=exc.code) from None
            raise


class OpenAIRequest(SamplingRequest):
    max_tokens: int | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None

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
        return 1 if self.n is None else self.n
