"""`POST /v1/chat/completions`: OpenAI's chat, through the model's own template."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from lpx.engine.outputs import RequestDelta
from lpx.errors import ContextLengthError
from lpx.server.generation import Choice, Generation
from lpx.server.limits import read_request
from lpx.server.openai_logprobs import chat_logprobs, prompt_logprobs_json
from lpx.server.request_log import Call
from lpx.server.schemas import ChatRequest
from lpx.server.service import service_of
from lpx.server.streaming import (
    ChunkWriter,
    EventStream,
    answer_json,
    dumps,
    json_string,
    pieces_json,
    pieces_text,
    timings_json,
)

router = APIRouter()


@router.post("/v1/chat/completions")
async def chat_completions(request: Request) -> Response:
    service = service_of(request)
    engine = service.engine
    wanted = await read_request(request, service.settings, ChatRequest.parse)
    service.check_model(wanted.model)
    params = wanted.sampling_params(max_tokens=wanted.token_limit, n=wanted.choices, logprobs=wanted.wanted_logprobs)
    continued = bool(wanted.continue_final_message)
    prompt = await engine.encode_chat(
        wanted.messages,
        add_generation_prompt=not continued if wanted.add_generation_prompt is None else wanted.add_generation_prompt,
        continue_final_message=continued,
        chat_template_kwargs=wanted.chat_template_kwargs,
    )
    call = service.call(request, "chatcmpl", wanted.streams)
    try:
        generation = Generation.start(engine, [prompt], params, call.id, service.latencies)
    except ContextLengthError as exc:
        raise ContextLengthError(str(exc), param="messages") from None
    if wanted.streams:
        writer = ChunkWriter(call, "chat.completion.chunk", include_usage=wanted.include_usage)
        return EventStream(call, generation, _events(wanted, generation, writer))
    return await answer_json(request, call, generation, lambda choices: _body(wanted, call, generation, choices))


def _body(wanted: ChatRequest, call: Call, generation: Generation, choices: list[Choice]) -> dict[str, Any]:
    body = {
        "id": call.id,
        "object": "chat.completion",
        "created": call.created,
        "model": call.model,
        "choices": [_choice(wanted, choice) for choice in choices],
        "usage": generation.usage.as_json(),
        "timings": timings_json(generation),
    }
    if wanted.prompt_logprobs is not None:
        body["prompt_logprobs"] = prompt_logprobs_json(generation.prompt_logprobs[0])
    return body


def _choice(wanted: ChatRequest, choice: Choice) -> dict[str, Any]:
    logprobs = None
    if choice.logprobs is not None:
        content = chat_logprobs(choice.token_ids, choice.logprobs, wanted.top_logprobs or 0)
        logprobs = {"content": content, "refusal": None}
    shaped = {
        "index": choice.index,
        "message": {"role": "assistant", "content": choice.text, "refusal": None},
        "logprobs": logprobs,
        "finish_reason": choice.finish_reason,
        "stop_reason": choice.stop_reason,
    }
    if choice.pieces is not None:
        shaped["pieces"] = pieces_json(choice.pieces)
    return shaped


async def _events(wanted: ChatRequest, generation: Generation, writer: ChunkWriter) -> AsyncGenerator[bytes, None]:
    yield b"".join(writer.chunk(_role_choice(index)) for index in range(wanted.choices))
    async for _, delta in generation.deltas():
        logprobs = "null"
        if delta.logprobs:
            content = chat_logprobs(delta.token_ids, delta.logprobs, wanted.top_logprobs or 0)
            logprobs = dumps({"content": content, "refusal": None})
        elif not delta.text and delta.finish_reason is None:
            continue
        yield writer.chunk(_chunk_choice(delta, logprobs))
    if wanted.include_usage:
        yield writer.usage(generation)


def _role_choice(index: int) -> str:
    return f'{{"index":{index},"delta":{{"role":"assistant","content":""}},"logprobs":null,"finish_reason":null}}'


def _chunk_choice(delta: RequestDelta, logprobs: str) -> str:
    content = f'{{"content":{json_string(delta.text)}}}' if delta.text else "{}"
    end = '"finish_reason":null'
    if delta.finish_reason is not None:
        end = f'"finish_reason":"{delta.finish_reason}","stop_reason":{dumps(delta.stop_reason)}'
    if delta.pieces is not None:
        end += f',"pieces":{pieces_text(delta.pieces)}'
    return f'{{"index":{delta.index},"delta":{content},"logprobs":{logprobs},{end}}}'
