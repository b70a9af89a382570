"""The body of `POST /v1/embeddings`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from lpx.engine.sampling_params import SamplingParams
from lpx.server.schemas.fields import PROMPTS_SCHEMA, Prompts, prompts_of
from lpx.server.schemas.sampling import StrictRequest


class EmbeddingRequest(StrictRequest):
    """`POST /v1/embeddings`; `normalize` is vLLM's."""

    input: Annotated[Any, BeforeValidator(prompts_of), PROMPTS_SCHEMA]
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    normalize: bool | None = None
    cache_salt: str | None = None
    priority: int | None = None

    @property
    def inputs(self) -> Prompts:
        inputs: Prompts = self.input
        return inputs

    def engine_params(self) -> SamplingParams:
        """Nothing is sampled, but salt and priority count."""
        return SamplingParams(cache_salt=self.cache_salt, priority=self.priority or 0)
