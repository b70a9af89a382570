"""`POST /v1/chat/completions`: OpenAI's chat, through the model's own template."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from lpx.engine.outputs import RequestDelta
from lpx.server.answer_reader import AnswerReader
from lpx.server.chat_turn import start_turn
from lpx.server.generation import Choice, Generation
from lpx.server.limits import read_request
from lpx.server.openai_logprobs import chat_logprobs, prompt_logprobs_json
from lpx.server.openai_messages import delta_of, message_of
from lpx.server.request_log import Call
from lpx.server.schemas import ChatRequest
from lpx.server.service import service_of
from lpx.server.streaming import (
    LINE_ENDS,
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

Readers = list[AnswerReader | None]  # one a choice


@router.post("/v1/chat/completions")
async def chat_completions(request: Request) -> Response:
    service = service_of(request)
    service.check_ready()
    wanted = await read_request(request, service.settings, ChatRequest.parse)
    turn = await start_turn(request, service, wanted, "chatcmpl")
    call, generation = turn.call, turn.generation
    readers = [turn.reader() for _ in range(wanted.choices)]
    if wanted.streams:
        writer = ChunkWriter(call, "chat.completion.chunk", wanted, generation)
        return EventStream(call, generation, _events(wanted, generation, writer, readers))
    return await answer_json(
        request, call, generation, lambda choices: _body(wanted, call, generation, choices, readers)
    )


def _body(
    wanted: ChatRequest, call: Call, generation: Generation, choices: list[Choice], readers: Readers
) -> dict[str, Any]:
    body = {
        "id": call.id,
        "object": "chat.completion",
        "created": call.created,
        "model": call.model,
        "choices": [_choice(wanted, choice, readers[choice.index]) for choice in choices],
        "usage": generation.usage.as_json(),
        "timings": timings_json(generation),
    }
    if wanted.return_token_ids:
        body["prompt_token_ids"] = generation.prompt_token_ids
    if wanted.prompt_logprobs is not None:
        body["prompt_logprobs"] = prompt_logprobs_json(generation.prompt_logprobs[0])
    return body


def _choice(wanted: ChatRequest, choice: Choice, reader: AnswerReader | None) -> dict[str, Any]:
    logprobs = None
    if choice.logprobs is not None:
        content = chat_logprobs(choice.token_ids, choice.logprobs, wanted.top_logprobs or 0)
        logprobs = {"content": content, "refusal": None}
    message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
    if reader is not None:
        message |= message_of(reader.read(choice.text))
    shaped = {
        "index": choice.index,
        "message": message,
        "logprobs": logprobs,
        "finish_reason": choice.finish_reason if reader is None else reader.finish_reason(choice.finish_reason),
        "stop_reason": choice.stop_reason,
    }
    if wanted.return_token_ids:
        shaped["token_ids"] = choice.token_ids
    if choice.pieces is not None:
        shaped["pieces"] = pieces_json(choice.pieces)
    return shaped


async def _events(
    wanted: ChatRequest, generation: Generation, writer: ChunkWriter, readers: Readers
) -> AsyncGenerator[bytes, None]:
    prompt = f',"prompt_token_ids":{dumps(generation.prompt_token_ids)}' if wanted.return_token_ids else ""
    yield b"".join(writer.chunk(_role_choice(index), prompt) for index in range(wanted.choices))
    async for _, delta in generation.deltas():
        logprobs = "null"
        if delta.logprobs:
            content = chat_logprobs(delta.token_ids, delta.logprobs, wanted.top_logprobs or 0)
            logprobs = dumps({"content": content, "refusal": None})
        if wanted.return_token_ids and delta.token_ids:
            logprobs += f',"token_ids":{dumps(delta.token_ids)}'
        if delta.pieces is not None:
            logprobs += f',"pieces":{pieces_text(delta.pieces)}'
        reader = readers[delta.index]
        if reader is not None:
            for choice in _read_chunks(reader, delta, logprobs):
                yield writer.chunk(choice)
        elif delta.text or logprobs != "null" or delta.finish_reason is not None:
            news = f'{{"content":{json_string(delta.text)}}}' if delta.text else "{}"
            yield writer.chunk(_chunk_choice(delta, news, logprobs, delta.finish_reason))
    if wanted.include_usage:
        yield writer.usage(generation)


def _role_choice(index: int) -> str:
    return f'{{"index":{index},"delta":{{"role":"assistant","content":""}},"logprobs":null,"finish_reason":null}}'


def _read_chunks(reader: AnswerReader, delta: RequestDelta, logprobs: str) -> Iterator[str]:
    """What a reader makes of a delta: a chunk each, the last with the end, the first with the log-probabilities
    (and what else stands beside them, as JSON text)."""
    pieces = reader.feed(delta.text) if delta.text else []
    reason = delta.finish_reason
    if reason is not None:
        pieces += reader.finish()
    news = [dumps(delta_of(piece)).translate(LINE_ENDS) for piece in pieces]
    if reason is not None or (not news and logprobs != "null"):
        news.append("{}")
    for each in news[:-1]:
        yield _chunk_choice(delta, each, logprobs, None)
        logprobs = "null"
    if news:
        yield _chunk_choice(delta, news[-1], logprobs, None if reason is None else reader.finish_reason(reason))


def _chunk_choice(delta: RequestDelta, news: str, logprobs: str, finish_reason: str | None) -> str:
    end = '"finish_reason":null'
    if finish_reason is not None:
        end = f'"finish_reason":"{finish_reason}","stop_reason":{dumps(delta.stop_reason)}'
    return f'{{"index":{delta.index},"delta":{news},"logprobs":{logprobs},{end}}}'
