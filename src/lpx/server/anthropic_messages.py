"""Anthropic's `POST /v1/messages` and `POST /v1/messages/count_tokens`, answered by the model's own chat template."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterator
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from lpx.errors import InvalidRequestError
from lpx.server.answer_blocks import Block, BlockEnd, BlockEvent, Blocks, BlockStart, blocks_of, read, rest
from lpx.server.chat_turn import ChatTurn, encode_turn, start_turn
from lpx.server.errors import anthropic_error, anthropic_response, renamed
from lpx.server.generation import Choice, Generation
from lpx.server.limits import read_request
from lpx.server.schemas import ChatRequest
from lpx.server.schemas.anthropic import MESSAGES_NAMES, CountTokensRequest, MessagesRequest
from lpx.server.service import service_of
from lpx.server.streaming import EventStream, answer_json, json_response, typed_event

router = APIRouter()


def _parse(kind: type[MessagesRequest], body: dict[str, Any]) -> ChatRequest:
    try:
        return kind.parse(body).as_chat(body)
    except InvalidRequestError as exc:
        raise renamed(exc, MESSAGES_NAMES) from None


@router.post("/v1/messages")
async def messages(request: Request) -> Response:
    service = service_of(request)
    service.check_ready()
    wanted = await read_request(request, service.settings, lambda body: _parse(MessagesRequest, body))
    try:
        turn = await start_turn(request, service, wanted, "msg")
    except InvalidRequestError as exc:
        raise renamed(exc, MESSAGES_NAMES) from None
    if wanted.streams:
        events = _events(turn)
        return EventStream(turn.call, turn.generation, events, last=typed_event({"type": "message_stop"}), fail=_failed)
    return await answer_json(
        request,
        turn.call,
        turn.generation,
        lambda choices: _message(turn, choices[0]),
        refuse=anthropic_response,
    )


@router.post("/v1/messages/count_tokens")
async def count_tokens(request: Request) -> Response:
    service = service_of(request)
    service.check_ready()
    wanted = await read_request(request, service.settings, lambda body: _parse(CountTokensRequest, body))
    service.check_model(wanted.model)
    return json_response({"input_tokens": len((await encode_turn(service, wanted))[1])})


def _failed(exc: Exception) -> bytes:
    return typed_event(anthropic_error(exc)[1])


def _usage(generation: Generation) -> dict[str, int]:
    """Anthropic's counts exclude what came from the cache."""
    usage = generation.usage
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }


def _stop(finish_reason: str, stop_reason: int | str | None, blocks: Blocks) -> dict[str, Any]:
    if finish_reason in ("length", "timeout"):
        reason = "max_tokens"
    elif blocks.has_calls:
        reason = "tool_use"
    elif isinstance(stop_reason, str):
        return {"stop_reason": "stop_sequence", "stop_sequence": stop_reason}
    else:
        reason = "end_turn"
    return {"stop_reason": reason, "stop_sequence": None}


def _head(turn: ChatTurn, content: list[dict[str, Any]], end: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": turn.call.id,
        "type": "message",
        "role": "assistant",
        "model": turn.call.model,
        "content": content,
        **end,
        "usage": _usage(turn.generation),
    }


def _message(turn: ChatTurn, choice: Choice) -> dict[str, Any]:
    blocks = blocks_of(choice.text, turn.reader())
    content = [_content(block) for block in blocks.blocks if block.text or block.kind != "text"]
    return _head(turn, content, _stop(choice.finish_reason, choice.stop_reason, blocks))


def _content(block: Block) -> dict[str, Any]:
    if block.kind == "call":
        return {"type": "tool_use", "id": block.id, "name": block.name, "input": _arguments(block.text)}
    if block.kind == "reasoning":
        return {"type": "thinking", "thinking": block.text, "signature": ""}
    return {"type": "text", "text": block.text}


def _arguments(text: str) -> dict[str, Any]:
    """A call that was cut, or that a model wrote wrongly, has no input that could be trusted."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


async def _events(turn: ChatTurn) -> AsyncGenerator[bytes, None]:
    start = _head(turn, [], {"stop_reason": None, "stop_sequence": None})
    yield typed_event({"type": "message_start", "message": start}) + typed_event({"type": "ping"})
    reader, blocks = turn.reader(), Blocks()
    async for _, delta in turn.generation.deltas():
        news = b"".join(map(_event, blocks.take(read(reader, delta.text)))) if delta.text else b""
        if delta.finish_reason is not None:
            news += b"".join(map(_event, blocks.finish(rest(reader))))
            end = _stop(delta.finish_reason, delta.stop_reason, blocks)
            news += typed_event({"type": "message_delta", "delta": end, "usage": _usage(turn.generation)})
        if news:
            yield news


def _event(news: BlockEvent) -> bytes:
    return b"".join(typed_event({"type": kind, "index": news.index, **more}) for kind, more in _shapes(news))


def _shapes(news: BlockEvent) -> Iterator[tuple[str, dict[str, Any]]]:
    block = news.block
    if isinstance(news, BlockStart):
        yield "content_block_start", {"content_block": _content(Block(block.kind, id=block.id, name=block.name))}
    elif isinstance(news, BlockEnd):
        yield "content_block_stop", {}
    elif block.kind == "call":
        yield "content_block_delta", {"delta": {"type": "input_json_delta", "partial_json": news.text}}
    elif block.kind == "reasoning":
        yield "content_block_delta", {"delta": {"type": "thinking_delta", "thinking": news.text}}
    else:
        yield "content_block_delta", {"delta": {"type": "text_delta", "text": news.text}}
