"""The bodies of `POST /tokenize` and `POST /detokenize`: vLLM's, and llama.cpp's names for the same."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, model_validator

from lpx.errors import InvalidRequestError
from lpx.server.schemas.fields import (
    FLAGS_SCHEMA,
    MESSAGES_SCHEMA,
    OBJECTS_SCHEMA,
    TOKENS_SCHEMA,
    id_list,
    template_kwargs,
    tool_list,
)
from lpx.server.schemas.messages import chat_messages
from lpx.server.schemas.sampling import StrictRequest


class TokenizeRequest(StrictRequest):
    """Exactly one of `prompt` (vLLM), `content` (llama.cpp) and `messages`."""

    model: str | None = None
    prompt: str | None = None
    content: str | None = None
    messages: Annotated[Any, BeforeValidator(chat_messages), MESSAGES_SCHEMA] = None
    add_special_tokens: bool | None = None
    add_special: bool | None = None  # llama.cpp's name
    parse_special: bool | None = None
    return_token_strs: bool | None = None
    with_pieces: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: Annotated[dict[str, Any] | None, BeforeValidator(template_kwargs), FLAGS_SCHEMA] = None
    tools: Annotated[list[dict[str, Any]] | None, BeforeValidator(tool_list), OBJECTS_SCHEMA] = None

    @model_validator(mode="after")
    def _consistent(self) -> TokenizeRequest:
        given = [name for name in ("prompt", "content", "messages") if getattr(self, name) is not None]
        if len(given) != 1:
            raise InvalidRequestError(
                "Give exactly one of prompt, content and messages.", param=given[1] if given else "prompt"
            )
        if self.add_special_tokens is not None and self.add_special is not None:
            raise InvalidRequestError("Give either add_special_tokens or add_special, not both.", param="add_special")
        if self.messages is None:
            for name in ("add_generation_prompt", "continue_final_message", "chat_template_kwargs", "tools"):
                if getattr(self, name) is not None:
                    raise InvalidRequestError(f"{name} goes with messages only.", param=name)
        elif self.parse_special is not None or self.wants_special is not None:
            name = "parse_special" if self.parse_special is not None else "add_special_tokens"
            raise InvalidRequestError(f"{name} goes with text only: the chat template decides.", param=name)
        if self.continue_final_message and self.add_generation_prompt:
            raise InvalidRequestError(
                "continue_final_message and add_generation_prompt exclude each other.", param="continue_final_message"
            )
        return self

    @property
    def wants_special(self) -> bool | None:
        return self.add_special if self.add_special_tokens is None else self.add_special_tokens

    @property
    def adds_special(self) -> bool:
        """By default as the service itself does it for `prompt`, and as llama.cpp for `content`: nothing is added."""
        return self.content is None if self.wants_special is None else self.wants_special


class DetokenizeRequest(StrictRequest):
    """Token ids to text."""

    model: str | None = None
    tokens: Annotated[list[int], BeforeValidator(id_list), TOKENS_SCHEMA]
