"""`POST /v1/embeddings`: OpenAI's embeddings, one for each text or list of token ids."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from lpx.engine.embedding import check_dimensions, finish_embedding
from lpx.errors import ContextLengthError, InvalidRequestError
from lpx.server.errors import renamed
from lpx.server.generation import Choice, Generation
from lpx.server.limits import read_request
from lpx.server.request_log import Call
from lpx.server.schemas import EmbeddingRequest
from lpx.server.service import service_of
from lpx.server.streaming import answer_json

if TYPE_CHECKING:
    from lpx.engine.async_engine import AsyncEngine

router = APIRouter()


@router.post("/v1/embeddings")
async def embeddings(request: Request) -> Response:
    service = service_of(request)
    engine = service.engine
    wanted = await read_request(request, service.settings, EmbeddingRequest.parse)
    service.check_model(wanted.model)
    check_dimensions(wanted.dimensions, engine.hidden_size)
    if len(wanted.inputs) > service.settings.max_prompts:
        raise InvalidRequestError(
            f"input holds {len(wanted.inputs)} texts; at most {service.settings.max_prompts} may come in one request.",
            param="input",
        )
    prompts = []
    for given in wanted.inputs:
        try:
            ids = await engine.encode_for_embedding(given) if isinstance(given, str) else given
            prompts.append(wanted.fit(ids, engine.info.max_model_len))
        except ContextLengthError as exc:
            raise ContextLengthError(str(exc), param="input") from None
    call = service.call(request, "embd", False)
    try:
        generation = await Generation.start_embeddings(
            engine, prompts, wanted.engine_params(), call.id, service.latencies
        )
    except InvalidRequestError as exc:
        raise renamed(exc, {"prompt": "input"}) from None
    return await answer_json(
        request, call, generation, lambda choices: _body(wanted, call, engine, prompts, generation, choices)
    )


def _body(
    wanted: EmbeddingRequest,
    call: Call,
    engine: AsyncEngine,
    prompts: list[list[int]],
    generation: Generation,
    choices: list[Choice],
) -> dict[str, Any]:
    data = []
    for choice in choices:
        assert choice.pooled is not None
        vector = finish_embedding(
            choice.pooled,
            engine.pooling.kind,
            len(prompts[choice.index]),
            dimensions=wanted.dimensions,
            normalize=wanted.normalize is not False,
        )
        shown: Any = vector.tolist()
        if wanted.encoding_format == "base64":
            shown = base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")
        data.append({"object": "embedding", "index": choice.index, "embedding": shown})
    tokens = generation.usage.prompt_tokens
    return {
        "object": "list",
        "id": call.id,
        "data": data,
        "model": call.model,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }
