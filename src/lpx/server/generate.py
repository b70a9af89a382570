"""`POST /generate`: one prompt in, one answer out, with the figures that tell where the time went.

Streamed, each event holds the new text; the last one before `[DONE]` holds `finish_reason`, `usage` and `timings`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.requests import HTTPConnection

from lpx.errors import InvalidRequestError
from lpx.server.errors import renamed
from lpx.server.generation import Choice, Generation
from lpx.server.limits import read_request
from lpx.server.openai_logprobs import chat_logprobs, prompt_logprobs_json
from lpx.server.request_log import Call
from lpx.server.schemas import GenerateRequest
from lpx.server.service import Service, service_of
from lpx.server.streaming import EventStream, answer_json, event, pieces_json, timings_json

if TYPE_CHECKING:
    from lpx.engine.async_engine import AsyncEngine

router = APIRouter()


@router.post("/generate")
async def generate(request: Request) -> Response:
    service = service_of(request)
    service.check_ready()
    wanted = await read_request(request, service.settings, GenerateRequest.parse)
    call, generation = await start_generate(request, service, wanted)
    if wanted.streams:
        return EventStream(call, generation, _events(wanted, call, generation))
    return await answer_json(request, call, generation, lambda choices: _body(wanted, call, generation, choices[0]))


async def start_generate(
    connection: HTTPConnection, service: Service, wanted: GenerateRequest
) -> tuple[Call, Generation]:
    """Submit the one request. Raises `InvalidRequestError` and what `AsyncEngine.submit` raises."""
    engine = service.engine
    service.check_model(wanted.model)
    params = wanted.sampling_params(max_tokens=wanted.token_limit, logprobs=wanted.wanted_logprobs)
    prompt = await encode_given(engine, wanted.prompt[0], add_special=wanted.add_special_tokens is not False)
    prompt = wanted.fit(prompt, engine.info.max_model_len, params.max_tokens)
    grammar = await engine.compile_grammar(params)
    call = service.call(connection, "gen", wanted.streams)
    timings = service.shows_timings(wanted.timings)
    try:
        return call, await Generation.start(engine, [prompt], params, call.id, service.latencies, grammar, timings)
    except InvalidRequestError as exc:
        raise renamed(exc, wanted.spellings) from None


async def encode_given(engine: AsyncEngine, given: str | list[int], *, add_special: bool) -> list[int]:
    """A prompt as token ids; text without special tokens when that is asked for."""
    if not isinstance(given, str):
        return given
    return await engine.encode_prompt(given) if add_special else await engine.encode_text(given, add_special=False)


def _body(wanted: GenerateRequest, call: Call, generation: Generation, choice: Choice) -> dict[str, Any]:
    body: dict[str, Any] = {
        "id": call.id,
        "model": call.model,
        "text": choice.text,
        "token_ids": choice.token_ids,
        "finish_reason": choice.finish_reason,
        "stop_reason": choice.stop_reason,
        "usage": generation.usage.as_json(),
        "timings": timings_json(generation),
    }
    if choice.logprobs is not None:
        body["logprobs"] = chat_logprobs(choice.token_ids, choice.logprobs, wanted.wanted_logprobs or 0)
    if choice.pieces is not None:
        body["pieces"] = pieces_json(choice.pieces)
    if wanted.prompt_logprobs is not None:
        body["prompt_logprobs"] = prompt_logprobs_json(generation.prompt_logprobs[0])
    return body


async def _events(wanted: GenerateRequest, call: Call, generation: Generation) -> AsyncGenerator[bytes, None]:
    async for _, delta in generation.deltas():
        if not delta.text and not delta.token_ids and delta.finish_reason is None:
            continue
        news: dict[str, Any] = {"text": delta.text, "token_ids": delta.token_ids}
        if delta.logprobs:
            news["logprobs"] = chat_logprobs(delta.token_ids, delta.logprobs, wanted.wanted_logprobs or 0)
        if delta.pieces is not None:
            news["pieces"] = pieces_json(delta.pieces)
        if delta.finish_reason is not None:
            news |= {
                "id": call.id,
                "model": call.model,
                "finish_reason": delta.finish_reason,
                "stop_reason": delta.stop_reason,
                "usage": generation.usage.as_json(),
                "timings": timings_json(generation),
            }
        yield event(news)
