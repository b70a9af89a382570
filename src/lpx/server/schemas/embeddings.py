"""The body of `POST /v1/embeddings`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

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
    truncate_prompt_tokens: Annotated[int, Field(ge=-1)] | None = None

    def fit(self, ids: list[int], max_model_len: int) -> list[int]:
        """The input, cut behind the tokens that `truncate_prompt_tokens` keeps; -1 keeps as many as fit."""
        keep = self.truncate_prompt_tokens
        return ids if keep is None else ids[: max_model_len if keep == -1 else keep]

    @property
    def inputs(self) -> Prompts:
        inputs: Prompts = self.input
        return inputs

    def engine_params(self) -> SamplingParams:
        """Nothing is sampled, but salt and priority count."""
        return SamplingParams(cache_salt=self.cache_salt, priority=self.priority or 0)
