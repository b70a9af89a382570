"""`POST /v1/chat/completions`: OpenAI's chat, through the model's own template."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from lpx.engine.outputs import RequestDelta
from lpx.server.chat_turn import start_turn
from lpx.server.generation import Choice, Generation
from lpx.server.limits import read_request
from lpx.server.openai_logprobs import chat_logprobs, prompt_logprobs_json
from lpx.server.request_log import Call
from lpx.server.schemas import ChatRequest
from lpx.server.service import service_of
from lpx.server.streaming import ChunkWriter, EventStream, answer_json, dumps, json_string, timings_json

router = APIRouter()


@router.post("/v1/chat/completions")
async def chat_completions(request: Request) -> Response:
    service = service_of(request)
    service.check_ready()
    wanted = await read_request(request, service.settings, ChatRequest.parse)
    turn = await start_turn(request, service, wanted, "chatcmpl")
    call, generation = turn.call, turn.generation
    if wanted.streams:
        writer = ChunkWriter(call, "chat.completion.chunk", wanted, generation)
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
    if wanted.return_token_ids:
        body["prompt_token_ids"] = generation.prompt_token_ids
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
    return {**shaped, "token_ids": choice.token_ids} if wanted.return_token_ids else shaped


async def _events(wanted: ChatRequest, generation: Generation, writer: ChunkWriter) -> AsyncGenerator[bytes, None]:
    prompt = f',"prompt_token_ids":{dumps(generation.prompt_token_ids)}' if wanted.return_token_ids else ""
    yield b"".join(writer.chunk(_role_choice(index), prompt) for index in range(wanted.choices))
    async for _, delta in generation.deltas():
        logprobs = "null"
        if delta.logprobs:
            content = chat_logprobs(delta.token_ids, delta.logprobs, wanted.top_logprobs or 0)
            logprobs = dumps({"content": content, "refusal": None})
        elif not delta.text and delta.finish_reason is None and not (wanted.return_token_ids and delta.token_ids):
            continue
        ids = f'"token_ids":{dumps(delta.token_ids)},' if wanted.return_token_ids else ""
        yield writer.chunk(_chunk_choice(delta, logprobs, ids))
    if wanted.include_usage:
        yield writer.usage(generation)


def _role_choice(index: int) -> str:
    return f'{{"index":{index},"delta":{{"role":"assistant","content":""}},"logprobs":null,"finish_reason":null}}'


def _chunk_choice(delta: RequestDelta, logprobs: str, ids: str = "") -> str:
    content = f'{{"content":{json_string(delta.text)}}}' if delta.text else "{}"
    end = '"finish_reason":null'
    if delta.finish_reason is not None:
        end = f'"finish_reason":"{delta.finish_reason}","stop_reason":{dumps(delta.stop_reason)}'
    return f'{{"index":{delta.index},"delta":{content},{ids}"logprobs":{logprobs},{end}}}'
