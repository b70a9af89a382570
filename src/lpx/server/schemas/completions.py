"""The body of `POST /v1/completions`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, model_validator

from lpx.errors import InvalidRequestError
from lpx.server.caller import default_length
from lpx.server.schemas.fields import PROMPTS_SCHEMA, Prompts, prompts_of
from lpx.server.schemas.sampling import OpenAIRequest


class CompletionRequest(OpenAIRequest):
    """`POST /v1/completions`."""

    prompt: Annotated[Any, BeforeValidator(prompts_of), PROMPTS_SCHEMA]
    echo: bool | None = None
    logprobs: int | None = None
    add_special_tokens: bool | None = None  # whether the begin-of-sequence token comes before text; null: yes
    best_of: int | None = None

    @model_validator(mode="after")
    def _all_are_the_best(self) -> CompletionRequest:
        if self.best_of not in (None, 1, self.choices):
            raise InvalidRequestError(
                "best_of: choices are not ranked; leave it out, or make it equal n.",
                param="best_of",
                code="unsupported_parameter",
            )
        return self

    @property
    def prompts(self) -> Prompts:
        prompts: Prompts = self.prompt
        return prompts

    @property
    def token_limit(self) -> int | None:
        """Absent: 16, as OpenAI and vLLM have it, or less if the key allows less; null: up to the context limit."""
        return self.limit if {"max_tokens", "n_predict"} & self.model_fields_set else default_length(16)
