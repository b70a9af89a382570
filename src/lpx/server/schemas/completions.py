"""The body of `POST /v1/completions`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator

from lpx.server.schemas.fields import PROMPTS_SCHEMA, Prompts, prompts_of
from lpx.server.schemas.sampling import OpenAIRequest


class CompletionRequest(OpenAIRequest):
    """`POST /v1/completions`."""

    prompt: Annotated[Any, BeforeValidator(prompts_of), PROMPTS_SCHEMA]
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
