"""OpenAI's `POST /v1/responses`, without state: the request holds the conversation, the answer is not stored."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Iterator
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from lpx.engine.outputs import TokenLogprobDict
from lpx.errors import InvalidRequestError
from lpx.server.answer_blocks import Block, BlockEnd, BlockEvent, Blocks, BlockStart, blocks_of, read, rest
from lpx.server.chat_turn import ChatTurn, start_turn
from lpx.server.errors import describe, renamed
from lpx.server.generation import Choice
from lpx.server.limits import read_request
from lpx.server.openai_logprobs import chat_logprobs
from lpx.server.schemas import ChatRequest
from lpx.server.schemas.responses import RESPONSES_NAMES, ResponsesRequest
from lpx.server.service import service_of
from lpx.server.streaming import EventStream, answer_json, timings_json, typed_event

router = APIRouter()


def _parse(body: dict[str, Any]) -> tuple[ResponsesRequest, ChatRequest]:
    try:
        wanted = ResponsesRequest.parse(body)
        return wanted, wanted.as_chat(body)
    except InvalidRequestError as exc:
        raise renamed(exc, RESPONSES_NAMES) from None


@router.post("/v1/responses")
async def responses(request: Request) -> Response:
    service = service_of(request)
    service.check_ready()
    wanted, chat = await read_request(request, service.settings, _parse)
    try:
        turn = await start_turn(request, service, chat, "resp")
    except InvalidRequestError as exc:
        raise renamed(exc, RESPONSES_NAMES) from None
    answer = _Answer(wanted, turn)
    if wanted.streams:
        return EventStream(turn.call, turn.generation, answer.events(), last=b"", fail=answer.failed)
    return await answer_json(request, turn.call, turn.generation, lambda choices: answer.body(choices[0]))


class _Answer:
    """Shapes one response, whole or as a stream."""

    def __init__(self, wanted: ResponsesRequest, turn: ChatTurn) -> None:
        self._wanted = wanted
        self._turn = turn
        self._sequence_number = 0
        self._item_ids: list[str] = []
        self._logprobs: list[dict[str, Any]] = []  # of all tokens; shown with the first text
        self._text_index: int | None = None  # of the first block of text

    # --- whole ---

    def body(self, choice: Choice) -> dict[str, Any]:
        blocks = blocks_of(choice.text, self._turn.reader())
        self._note_logprobs(choice.token_ids, choice.logprobs)
        return self._response(choice.finish_reason, blocks)

    def _note_logprobs(self, token_ids: list[int], entries: list[TokenLogprobDict] | None) -> list[dict[str, Any]]:
        if not entries:
            return []
        found = chat_logprobs(token_ids, entries, self._wanted.top_logprobs or 0)
        self._logprobs += found
        return found

    def _response(self, finish_reason: str | None, blocks: Blocks) -> dict[str, Any]:
        """The response object; without a `finish_reason` it is in progress."""
        wanted, call, usage = self._wanted, self._turn.call, self._turn.generation.usage
        cut = {"length": "max_output_tokens", "timeout": "max_latency"}.get(finish_reason or "")
        status = "in_progress" if finish_reason is None else "incomplete" if cut else "completed"
        output = [self._item(index, block, "completed") for index, block in enumerate(blocks.blocks)]
        if output and cut:
            output[-1]["status"] = "incomplete"
        body = {
            "id": call.id,
            "object": "response",
            "created_at": call.created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": {"reason": cut} if cut else None,
            "instructions": wanted.instructions,
            "max_output_tokens": wanted.max_output_tokens,
            "model": call.model,
            "output": output if finish_reason is not None else [],
            "parallel_tool_calls": wanted.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None, **(wanted.reasoning or {})},
            "store": False,
            "temperature": 1.0 if wanted.temperature is None else wanted.temperature,
            "text": {"format": (wanted.text or {}).get("format") or {"type": "text"}},
            "tool_choice": "auto" if wanted.tool_choice is None else wanted.tool_choice,
            "tools": [_flat(tool) for tool in wanted.tools or ()],
            "top_p": 1.0 if wanted.top_p is None else wanted.top_p,
            "truncation": "disabled",
            "usage": None,
            "metadata": wanted.metadata or {},
        }
        if finish_reason is not None:
            body["usage"] = {
                "input_tokens": usage.prompt_tokens,
                "input_tokens_details": {"cached_tokens": usage.cached_tokens},
                "output_tokens": usage.completion_tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": usage.prompt_tokens + usage.completion_tokens,
            }
            body["timings"] = timings_json(self._turn.generation)
        return body

    def _item(self, index: int, block: Block, status: str) -> dict[str, Any]:
        while len(self._item_ids) <= index:
            self._item_ids.append(uuid.uuid4().hex)
        name = self._item_ids[index]
        if block.kind == "call":
            return {
                "id": f"fc_{name}",
                "type": "function_call",
                "call_id": block.id,
                "name": block.name,
                "arguments": block.text,
                "status": status,
            }
        if block.kind == "reasoning":
            thoughts = [{"type": "reasoning_text", "text": block.text}] if status != "in_progress" else []
            return {"id": f"rs_{name}", "type": "reasoning", "summary": [], "content": thoughts, "status": status}
        if self._text_index is None:
            self._text_index = index
        done = status != "in_progress"
        content = [self._part(block.text, index)] if done else []
        return {"id": f"msg_{name}", "type": "message", "role": "assistant", "status": status, "content": content}

    def _part(self, text: str, index: int) -> dict[str, Any]:
        logprobs = self._logprobs if index == self._text_index else []
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}

    # --- streamed ---

    def _event(self, kind: str, **more: Any) -> bytes:
        data = typed_event({"type": kind, "sequence_number": self._sequence_number, **more})
        self._sequence_number += 1
        return data

    async def events(self) -> AsyncGenerator[bytes, None]:
        reader, blocks = self._turn.reader(), Blocks()
        start = self._response(None, blocks)
        yield self._event("response.created", response=start) + self._event("response.in_progress", response=start)
        async for _, delta in self._turn.generation.deltas():
            logprobs = self._note_logprobs(delta.token_ids, delta.logprobs)
            news = b""
            for each in blocks.take(read(reader, delta.text)):
                news += b"".join(self._block_events(each, logprobs))
            if delta.finish_reason is not None:
                for each in blocks.finish(rest(reader)):
                    news += b"".join(self._block_events(each, []))
                body = self._response(delta.finish_reason, blocks)
                news += self._event(f"response.{body['status']}", response=body)
            if news:
                yield news

    def _block_events(self, news: BlockEvent, logprobs: list[dict[str, Any]]) -> Iterator[bytes]:
        index, block = news.index, news.block
        if isinstance(news, BlockStart):
            item = self._item(index, block, "in_progress")
            yield self._event("response.output_item.added", output_index=index, item=item)
            if block.kind == "text":
                part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
                yield self._event("response.content_part.added", **self._place(index, block), part=part)
            return
        place = self._place(index, block)
        kind = {"text": "output_text", "reasoning": "reasoning_text", "call": "function_call_arguments"}[block.kind]
        if not isinstance(news, BlockEnd):
            more = {"logprobs": logprobs} if block.kind == "text" else {}
            yield self._event(f"response.{kind}.delta", **place, delta=news.text, **more)
            return
        if block.kind == "text":
            part = self._part(block.text, index)
            yield self._event("response.output_text.done", **place, text=block.text, logprobs=part["logprobs"])
            yield self._event("response.content_part.done", **place, part=part)
        elif block.kind == "reasoning":
            yield self._event("response.reasoning_text.done", **place, text=block.text)
        else:
            yield self._event("response.function_call_arguments.done", **place, name=block.name, arguments=block.text)
        yield self._event("response.output_item.done", output_index=index, item=self._item(index, block, "completed"))

    def _place(self, index: int, block: Block) -> dict[str, Any]:
        item = self._item(index, block, "in_progress")
        place = {"item_id": item["id"], "output_index": index}
        return place if block.kind == "call" else {**place, "content_index": 0}

    def failed(self, exc: Exception) -> bytes:
        error = describe(exc)[1]["error"]
        more = {"code": error["code"], "message": error["message"], "param": error["param"]}
        return self._event("error", **more)


def _flat(tool: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "strict": True, "parameters": None, **tool["function"]}
