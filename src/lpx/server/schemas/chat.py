"""The body of `POST /v1/chat/completions`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from lpx.engine.sampling_params import MAX_LOGPROBS
from lpx.errors import InvalidRequestError
from lpx.server.schemas.fields import FLAGS_SCHEMA, MESSAGES_SCHEMA, OBJECTS_SCHEMA, template_kwargs
from lpx.server.schemas.messages import chat_messages
from lpx.server.schemas.sampling import OpenAIRequest


class ChatRequest(OpenAIRequest):
    """`POST /v1/chat/completions`."""

    messages: Annotated[Any, BeforeValidator(chat_messages), MESSAGES_SCHEMA]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: Annotated[dict[str, Any] | None, BeforeValidator(template_kwargs), FLAGS_SCHEMA] = None

    tools: Annotated[list[Any] | None, OBJECTS_SCHEMA] = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    reasoning_format: Literal["none", "auto", "deepseek"] | None = None  # llama.cpp's name
    separate_reasoning: bool | None = None  # SGLang's
    reasoning_effort: str | None = None

    @model_validator(mode="after")
    def _consistent(self) -> ChatRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidRequestError("top_logprobs needs logprobs to be true.", param="top_logprobs")
        if self.continue_final_message and self.add_generation_prompt:
            raise InvalidRequestError(
                "continue_final_message and add_generation_prompt exclude each other.", param="continue_final_message"
            )
        if None not in (self.limit, self.max_completion_tokens) and self.limit != self.max_completion_tokens:
            raise InvalidRequestError(
                "max_tokens and max_completion_tokens differ; give one of them.", param="max_completion_tokens"
            )
        return self

    @property
    def token_limit(self) -> int | None:
        return self.limit if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def spellings(self) -> dict[str, str]:
        return super().spellings | self._given_names(max_tokens="max_completion_tokens")

    @property
    def splits_reasoning(self) -> bool:
        return bool(self.separate_reasoning) or self.reasoning_format in ("auto", "deepseek")

    @property
    def wanted_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None
