"""The body of `POST /generate`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, field_validator, model_validator

from lpx.errors import InvalidRequestError
from lpx.server.caller import default_length
from lpx.server.schemas.fields import PROMPT_SCHEMA, Prompts, fail, prompts_of
from lpx.server.schemas.sampling import SamplingRequest


class GenerateRequest(SamplingRequest):
    """`POST /generate`: one prompt, one answer."""

    prompt: Annotated[Any, BeforeValidator(prompts_of), PROMPT_SCHEMA]
    max_tokens: int | None = None
    n_predict: int | None = None  # llama.cpp's name; -1: up to the context limit
    logprobs: int | None = None
    n_probs: int | None = None  # llama.cpp's name for logprobs; 0: none
    add_special_tokens: bool | None = None  # whether the begin-of-sequence token comes before text; null: yes

    @field_validator("prompt", mode="after")
    @classmethod
    def _one_prompt(cls, prompts: Prompts) -> Prompts:
        if len(prompts) != 1:
            raise fail("must be one string or one list of token ids; /v1/completions takes several")
        return prompts

    @model_validator(mode="after")
    def _consistent(self) -> GenerateRequest:
        if self.max_tokens is not None and self.n_predict is not None:
            raise InvalidRequestError("Give either max_tokens or n_predict, not both.", param="n_predict")
        if self.logprobs is not None and self.n_probs is not None:
            raise InvalidRequestError("Give either logprobs or n_probs, not both.", param="n_probs")
        if self.prompt_logprobs is not None and self.stream:
            raise InvalidRequestError("prompt_logprobs cannot be streamed; leave out stream.", param="prompt_logprobs")
        return self

    @property
    def wanted_logprobs(self) -> int | None:
        return self.logprobs if self.n_probs is None else self.n_probs or None

    @property
    def token_limit(self) -> int | None:
        """Absent: 128, or less if the key allows less; null (or n_predict -1): up to the context limit."""
        if self.n_predict is not None:
            return None if self.n_predict == -1 else self.n_predict
        return self.max_tokens if "max_tokens" in self.model_fields_set else default_length(128)

    @property
    def spellings(self) -> dict[str, str]:
        return super().spellings | self._given_names(max_tokens="n_predict", logprobs="n_probs")
