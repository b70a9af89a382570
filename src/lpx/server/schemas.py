"""Request bodies: names and types, checked strictly.

A bool is not a number and a string is not one either. An unknown field is refused by name. Fields that OpenAI,
vLLM or llama.cpp know and LPX does not have are accepted while they are neutral (they ask for what happens anyway)
and refused with the reason when they would change the answer. Ranges of sampling values are checked in one place,
`lpx.engine.sampling_params`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import PydanticCustomError
from typing_extensions import Self

from lpx.engine.sampling_params import MAX_LOGPROBS, SamplingParams
from lpx.errors import InvalidRequestError
from lpx.server.errors import clip

_MAX_ID = 2**31 - 1
_MAX_MESSAGES = 4096
_MAX_TEMPLATE_KWARGS = 32

Prompts = list[str] | list[list[int]]


def _fail(message: str) -> PydanticCustomError:
    return PydanticCustomError("request", "{message}", {"message": message})


# --- shapes that pydantic's unions would report badly (and once per item) -----------------------------------------


def _stops(value: Any) -> Any:
    stops = [value] if isinstance(value, str) else value
    if stops is not None and not (isinstance(stops, list) and all(isinstance(stop, str) for stop in stops)):
        raise _fail("must be a string or a list of strings")
    return stops


def _are_ids(values: list[Any]) -> bool:
    # Without a loop in Python: a prompt may hold a million of them.
    return not values or (set(map(type, values)) == {int} and min(values) >= 0 and max(values) <= _MAX_ID)


def _ids(value: Any) -> Any:
    if value is not None and not (isinstance(value, list) and _are_ids(value)):
        raise _fail("must be a list of token ids (integers, 0 or above)")
    return value


def _bias(value: Any) -> Any:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise _fail("must be an object of token ids (as strings) and numbers")
    result: dict[int, float] = {}
    for key, bias in value.items():
        shown = clip(key, 32)
        if not (key.isascii() and key.isdigit() and len(key) <= 10 and int(key) <= _MAX_ID):
            raise _fail(f"has the key {shown!r}, which is not a token id")
        if type(bias) not in (int, float):
            raise _fail(f"has for the key {shown!r} a value that is not a number")
        if int(key) in result:
            raise _fail(f"names the token id {int(key)} twice")
        result[int(key)] = bias
    return result


def _prompts(value: Any) -> Any:
    if isinstance(value, str):
        return [value]
    shape = "must be a string, a list of strings, a list of token ids, or a list of lists of token ids"
    if not isinstance(value, list):
        raise _fail(shape)
    if not value:
        raise _fail("is an empty list; " + shape)
    if set(map(type, value)) == {str}:
        return value
    if _are_ids(value):
        return [value]
    if set(map(type, value)) == {list}:
        for index, item in enumerate(value):
            if not item:
                raise _fail(f"has an empty list of token ids at position {index}")
            if not _are_ids(item):
                raise _fail(f"has at position {index} an item that is not a token id (an integer, 0 or above)")
        return value
    if {int, float, bool} & set(map(type, value)):
        raise _fail("has an item that is not a token id (an integer, 0 or above)")
    raise _fail(shape)


def _template_kwargs(value: Any) -> Any:
    if value is None:
        return None
    if not isinstance(value, dict) or len(value) > _MAX_TEMPLATE_KWARGS:
        raise _fail(f"must be an object of at most {_MAX_TEMPLATE_KWARGS} plain flags")
    for key, item in value.items():
        if (
            not (key.isascii() and key.isidentifier() and len(key) <= 64 and key[0] != "_")
            or key in _RESERVED_TEMPLATE_KWARGS
        ):
            raise _fail(f"must not set {clip(key, 64)!r}: only plain flags of the template may be set")
        plain = item is None or type(item) in (bool, int, float) or (isinstance(item, str) and len(item) <= 256)
        if not plain:
            raise _fail(f"has for {key!r} a value that is not a plain flag (true, false, a number or a short string)")
    return value


# Names that the renderer sets itself, or that other servers let a request replace.
_RESERVED_TEMPLATE_KWARGS = frozenset(
    """
    chat_template template tokenize messages conversation tools documents add_generation_prompt
    continue_final_message return_dict return_tensors return_assistant_tokens_mask padding truncation
    max_length tokenizer_kwargs bos_token eos_token pad_token unk_token sep_token cls_token mask_token
    additional_special_tokens raise_exception strftime_now self kwargs namespace range loop caller varargs
    """.split()  # noqa: SIM905
)


def _content(content: Any, position: int) -> str | None:
    """A message's content with its text parts joined."""
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _fail(f"has at position {position} a content that is neither a string nor a list of parts")
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text":
            named = f" of type {clip(kind, 32)!r}" if isinstance(kind, str) else ""
            raise _fail(
                f"has at position {position} a content part{named} that is not text: this model reads text only"
            )
        text = part.get("text")
        if not isinstance(text, str):
            raise _fail(f"has at position {position} a text part without a string 'text'")
        texts.append(text)
    return "".join(texts)


def _messages(value: Any) -> Any:
    if not isinstance(value, list):
        raise _fail("must be a list of messages")
    if not value:
        raise _fail("is empty; at least one message is needed")
    if len(value) > _MAX_MESSAGES:
        raise _fail(f"holds {len(value)} messages; at most {_MAX_MESSAGES} are allowed")
    result = []
    for position, message in enumerate(value):
        if not isinstance(message, dict):
            raise _fail(f"has at position {position} an item that is not an object")
        role = message.get("role")
        if not isinstance(role, str) or not role or len(role) > 64:
            raise _fail(f"has at position {position} a message without a role")
        for key in ("name", "tool_call_id", "reasoning_content", "refusal"):
            if not isinstance(message.get(key), str | None):
                raise _fail(f"has at position {position} a {key!r} that is not a string")
        calls = message.get("tool_calls")
        if calls is not None and not (isinstance(calls, list) and all(isinstance(call, dict) for call in calls)):
            raise _fail(f"has at position {position} 'tool_calls' that are not a list of objects")
        content = _content(message.get("content"), position)
        if content is None and not calls:
            raise _fail(f"has at position {position} a message without content")
        cleaned = {key: item for key, item in message.items() if item is not None}
        cleaned["content"] = content
        result.append(cleaned)
    return result


# --- fields that LPX does not have --------------------------------------------------------------------------------


def _one_of(*neutral: Any) -> Callable[[Any], bool]:
    # 1 == True in Python, but not in a request.
    return lambda value: any(type(value) is type(item) and value == item for item in neutral)


def _number(*neutral: float) -> Callable[[Any], bool]:
    return lambda value: type(value) in (int, float) and value in neutral


def _anything(value: Any) -> bool:
    return True


_NEUTRAL: dict[str, tuple[Callable[[Any], bool], str]] = {
    # OpenAI
    "user": (_anything, ""),
    "metadata": (_anything, ""),
    "safety_identifier": (_anything, ""),
    "prompt_cache_key": (_anything, ""),
    "prompt_cache_retention": (_anything, ""),
    "prediction": (_anything, ""),
    "parallel_tool_calls": (_one_of(True, False), "must be true or false"),
    "store": (_one_of(False), "answers are not stored here"),
    "service_tier": (_one_of("auto", "default"), "there is one service tier here"),
    "best_of": (_number(1), "best_of is not supported; use n"),
    "suffix": (_one_of(""), "inserting before a suffix is not supported"),
    "response_format": (_one_of({"type": "text"}), "only the response format 'text' is supported so far"),
    "modalities": (_one_of(["text"]), "only text is generated"),
    "audio": (_one_of(), "only text is generated"),
    "tools": (_one_of([]), "tools are not supported yet"),
    "tool_choice": (_one_of("none", "auto"), "tools are not supported yet"),
    "functions": (_one_of([]), "functions are not supported"),
    "function_call": (_one_of("none", "auto"), "functions are not supported"),
    "reasoning_effort": (_one_of(), "not supported; a model's own flags go into chat_template_kwargs"),
    "verbosity": (_one_of(), "not supported"),
    "web_search_options": (_one_of(), "not supported"),
    # vLLM
    "use_beam_search": (_one_of(False), "beam search is not supported"),
    "length_penalty": (_number(1), "beam search is not supported"),
    "early_stopping": (_one_of(False), "beam search is not supported"),
    "truncate_prompt_tokens": (_one_of(), "prompts are never cut; shorten the prompt"),
    "spaces_between_special_tokens": (_one_of(True), "not supported"),
    "add_special_tokens": (_one_of(), "not supported; send token ids for full control over the prompt"),
    "bad_words": (_one_of([]), "not supported; use logit_bias"),
    "allowed_token_ids": (_one_of(), "not supported; use logit_bias"),
    "structured_outputs": (_one_of(), "structured output is not supported yet"),
    "guided_json": (_one_of(), "structured output is not supported yet"),
    "guided_regex": (_one_of(), "structured output is not supported yet"),
    "guided_choice": (_one_of(), "structured output is not supported yet"),
    "guided_grammar": (_one_of(), "structured output is not supported yet"),
    "chat_template": (_one_of(), "a request cannot bring its own chat template; give it to the server"),
    "documents": (_one_of([]), "not supported"),
    # llama.cpp
    "cache_prompt": (_one_of(True, False), "must be true or false"),
    "grammar": (_one_of(""), "structured output is not supported yet"),
    "json_schema": (_one_of(), "structured output is not supported yet"),
    "typical_p": (_number(1), "locally typical sampling is not supported"),
    "repeat_last_n": (_number(-1), "the repetition penalty always looks at the whole text (-1)"),
    "mirostat": (_number(0), "mirostat is not supported"),
    "dry_multiplier": (_number(0), "DRY is not supported"),
    "xtc_probability": (_number(0), "XTC is not supported"),
    "dynatemp_range": (_number(0), "a dynamic temperature is not supported"),
    "samplers": (_one_of(), "the order of samplers is fixed"),
}


class _Request(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _drop_neutral(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        known = cls.model_fields
        kept: dict[str, Any] = {}
        for key, value in data.items():
            if key in known or key not in _NEUTRAL:
                kept[key] = value
                continue
            neutral, reason = _NEUTRAL[key]
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


class StreamOptions(_Request):
    include_usage: bool | None = None


class SamplingRequest(_Request):
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
    logit_bias: Annotated[dict[int, float] | None, BeforeValidator(_bias)] = None
    min_tokens: int | None = None
    stop: Annotated[list[str] | None, BeforeValidator(_stops)] = None
    stop_token_ids: Annotated[list[int] | None, BeforeValidator(_ids)] = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    prompt_logprobs: int | None = None
    cache_salt: str | None = None
    priority: int | None = None
    max_latency_ms: float | None = None
    speculative: str | None = None
    return_drafts: bool | None = None

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
            "return_drafts": self.return_drafts,
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


class _OpenAIRequest(SamplingRequest):
    max_tokens: int | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None

    @model_validator(mode="after")
    def _usage_needs_stream(self) -> _OpenAIRequest:
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


class CompletionRequest(_OpenAIRequest):
    """`POST /v1/completions`."""

    prompt: Annotated[Any, BeforeValidator(_prompts)]
    echo: bool | None = None
    logprobs: int | None = None

    @property
    def prompts(self) -> Prompts:
        prompts: Prompts = self.prompt
        return prompts

    @property
    def token_limit(self) -> int | None:
        """Absent: 16, as OpenAI and vLLM have it; null: up to the context limit."""
        return self.max_tokens if "max_tokens" in self.model_fields_set else 16


class ChatRequest(_OpenAIRequest):
    """`POST /v1/chat/completions`."""

    messages: Annotated[Any, BeforeValidator(_messages)]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: Annotated[dict[str, Any] | None, BeforeValidator(_template_kwargs)] = None

    @model_validator(mode="after")
    def _consistent(self) -> ChatRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidRequestError("top_logprobs needs logprobs to be true.", param="top_logprobs")
        if self.continue_final_message and self.add_generation_prompt:
            raise InvalidRequestError(
                "continue_final_message and add_generation_prompt exclude each other.", param="continue_final_message"
            )
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            raise InvalidRequestError(
                "max_tokens and max_completion_tokens differ; give one of them.", param="max_completion_tokens"
            )
        return self

    @property
    def token_limit(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def wanted_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None


class GenerateRequest(SamplingRequest):
    """`POST /generate`: one prompt, one answer."""

    prompt: Annotated[Any, BeforeValidator(_prompts)]
    max_tokens: int | None = None
    n_predict: int | None = None  # llama.cpp's name; -1: up to the context limit
    logprobs: int | None = None

    @field_validator("prompt", mode="after")
    @classmethod
    def _one_prompt(cls, prompts: Prompts) -> Prompts:
        if len(prompts) != 1:
            raise _fail("must be one string or one list of token ids; /v1/completions takes several")
        return prompts

    @model_validator(mode="after")
    def _consistent(self) -> GenerateRequest:
        if self.max_tokens is not None and self.n_predict is not None:
            raise InvalidRequestError("Give either max_tokens or n_predict, not both.", param="n_predict")
        if self.prompt_logprobs is not None and self.stream:
            raise InvalidRequestError("prompt_logprobs cannot be streamed; leave out stream.", param="prompt_logprobs")
        return self

    @property
    def token_limit(self) -> int | None:
        """Absent: 128; null (or n_predict -1): up to the context limit."""
        if self.n_predict is not None:
            return None if self.n_predict == -1 else self.n_predict
        return self.max_tokens if "max_tokens" in self.model_fields_set else 128
