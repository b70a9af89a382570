"""`POST /v1/chat/completions`: OpenAI's chat, through the model's own template."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from lpx.engine.outputs import RequestDelta
from lpx.errors import ContextLengthError
from lpx.server.answer_reader import AnswerReader
from lpx.server.chat_plan import plan_chat
from lpx.server.generation import Choice, Generation
from lpx.server.limits import read_request
from lpx.server.openai_logprobs import chat_logprobs, prompt_logprobs_json
from lpx.server.openai_messages import delta_of, message_of
from lpx.server.request_log import Call
from lpx.server.schemas import ChatRequest
from lpx.server.service import service_of
from lpx.server.streaming import LINE_ENDS, ChunkWriter, EventStream, answer_json, dumps, json_string, timings_json
from lpx.server.tools.request import choose_tools

router = APIRouter()

Readers = list[AnswerReader | None]  # one a choice


@router.post("/v1/chat/completions")
async def chat_completions(request: Request) -> Response:
    service = service_of(request)
    engine = service.engine
    wanted = await read_request(request, service.settings, ChatRequest.parse)
    service.check_model(wanted.model)
    params = wanted.sampling_params(max_tokens=wanted.token_limit, n=wanted.choices, logprobs=wanted.wanted_logprobs)
    continued = bool(wanted.continue_final_message)
    plan = plan_chat(
        wanted.messages,
        template_source=engine.chat_template_source,
        choice=choose_tools(wanted.tools, wanted.tool_choice, wanted.parallel_tool_calls),
        splits_reasoning=wanted.splits_reasoning,
        reasoning_effort=wanted.reasoning_effort,
        template_kwargs=wanted.chat_template_kwargs,
    )
    prompt = await engine.encode_chat(
        plan.messages,
        tools=plan.tools,
        add_generation_prompt=not continued if wanted.add_generation_prompt is None else wanted.add_generation_prompt,
        continue_final_message=continued,
        chat_template_kwargs=plan.template_kwargs,
    )
    params = plan.sampling_params(params, prompt, engine.tokenizer)
    grammar = await engine.compile_grammar(params)
    readers = [plan.reader(prompt, engine.tokenizer) for _ in range(wanted.choices)]
    call = service.call(request, "chatcmpl", wanted.streams)
    try:
        generation = Generation.start(engine, [prompt], params, call.id, service.latencies, grammar)
    except ContextLengthError as exc:
        raise ContextLengthError(str(exc), param="messages") from None
    if wanted.streams:
        writer = ChunkWriter(call, "chat.completion.chunk", include_usage=wanted.include_usage)
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
    return {
        "index": choice.index,
        "message": message,
        "logprobs": logprobs,
        "finish_reason": choice.finish_reason if reader is None else reader.finish_reason(choice.finish_reason),
        "stop_reason": choice.stop_reason,
    }


async def _events(
    wanted: ChatRequest, generation: Generation, writer: ChunkWriter, readers: Readers
) -> AsyncGenerator[bytes, None]:
    yield b"".join(writer.chunk(_role_choice(index)) for index in range(wanted.choices))
    async for _, delta in generation.deltas():
        logprobs = "null"
        if delta.logprobs:
            content = chat_logprobs(delta.token_ids, delta.logprobs, wanted.top_logprobs or 0)
            logprobs = dumps({"content": content, "refusal": None})
        reader = readers[delta.index]
        if reader is not None:
            for choice in _read_chunks(reader, delta, logprobs):
                yield writer.chunk(choice)
        elif delta.text or delta.logprobs or delta.finish_reason is not None:
            news = f'{{"content":{json_string(delta.text)}}}' if delta.text else "{}"
            yield writer.chunk(_chunk_choice(delta, news, logprobs, delta.finish_reason))
    if wanted.include_usage:
        yield writer.usage(generation)


def _role_choice(index: int) -> str:
    return f'{{"index":{index},"delta":{{"role":"assistant","content":""}},"logprobs":null,"finish_reason":null}}'


def _read_chunks(reader: AnswerReader, delta: RequestDelta, logprobs: str) -> Iterator[str]:
    """What a reader makes of a delta: a chunk each, the last with the end, the first with the log-probabilities."""
    pieces = reader.feed(delta.text) if delta.text else []
    reason = delta.finish_reason
    if reason is not None:
        pieces += reader.finish()
    news = [dumps(delta_of(piece)).translate(LINE_ENDS) for piece in pieces]
    if reason is not None or (not news and delta.logprobs):
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
