"""`/v1/stream`: several generations at once over one WebSocket, in JSON messages.

The client sends `{"type": "start", "id": …, <fields of /generate or of a chat>}` and `{"type": "cancel", "id": …}`. For
each start it gets `delta` messages and one `done` or `error`. A message that makes no sense is answered by an `error`
and changes nothing else. When the connection ends, everything that it started ends.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from fastapi import APIRouter, WebSocket
from starlette.websockets import WebSocketDisconnect

from lpx.engine.outputs import RequestDelta
from lpx.errors import InvalidRequestError, LpxError
from lpx.off_loop import off_loop
from lpx.server.answer_blocks import Blocks, BlockStart, BlockText, read, rest
from lpx.server.chat_turn import ChatTurn, start_turn
from lpx.server.engines import one_use
from lpx.server.errors import HttpError, describe
from lpx.server.generate import start_generate
from lpx.server.generation import Generation
from lpx.server.limits import check_size, parse_json_object
from lpx.server.openai_logprobs import chat_logprobs
from lpx.server.request_log import Call
from lpx.server.schemas import ChatRequest, GenerateRequest
from lpx.server.service import Service
from lpx.server.streaming import dumps, timings_json

logger = logging.getLogger("lpx.server")

MAX_GENERATIONS = 64  # at once on one connection
MAX_ID_LENGTH = 64
SEND_TIMEOUT_S = 30.0  # a client that takes no message for so long has gone, or should

router = APIRouter()


@router.websocket("/v1/stream")
async def stream(socket: WebSocket) -> None:
    await socket.accept()
    await _Connection(socket, socket.app.state.service).run()


class _Connection:
    """One client: reads its messages, and owns a task for each of its generations."""

    def __init__(self, socket: WebSocket, service: Service) -> None:
        self._socket = socket
        self._service = service
        self._generations: dict[str, asyncio.Task[None]] = {}
        self._sending = asyncio.Lock()  # messages go out whole, one after the other
        self._run: asyncio.Task[Any] | None = None
        self._stuck = False
        self._leaving = False  # nobody is there to be told anything

    async def run(self) -> None:
        """Until the client leaves; nothing of it runs on afterwards."""
        self._run = asyncio.current_task()
        try:
            while (message := await self._socket.receive())["type"] != "websocket.disconnect":
                await self._take(message.get("text"))
        except WebSocketDisconnect:
            pass
        except asyncio.CancelledError:
            if not self._stuck:
                raise
            logger.info("a WebSocket client took no message for %g s and was cut off", SEND_TIMEOUT_S)
        finally:
            self._leaving = True
            tasks = list(self._generations.values())
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)

    # --- messages from the client ---

    async def _take(self, text: str | None) -> None:
        name: str | None = None
        try:
            if text is None:
                raise HttpError(400, "Messages are JSON in text frames, not binary ones.", code="invalid_json")
            data = text.encode("utf-8", "replace")
            check_size(len(data))
            message = await off_loop(data, lambda: parse_json_object(data, self._service.settings.max_json_depth))
            name = _id_of(message)
            kind = message.get("type")
            if kind == "start":
                self._start(name, message)
                await asyncio.sleep(0)  # it begins before a cancel can come: one that has not would end without a word
            elif kind == "cancel":
                if (task := self._generations.get(name)) is not None:  # one that has just ended is no error
                    task.cancel()
            else:
                raise InvalidRequestError("type must be start or cancel.", param="type")
        except (HttpError, LpxError) as exc:
            await self._send_error(name, exc)

    def _start(self, name: str, message: dict[str, Any]) -> None:
        if name in self._generations:
            raise InvalidRequestError("id is in use by a generation that runs: choose another.", param="id")
        if len(self._generations) >= MAX_GENERATIONS:
            raise HttpError(
                429, f"{MAX_GENERATIONS} generations run on this connection: wait for one to end.", code="too_many"
            )
        body = {key: value for key, value in message.items() if key not in ("type", "id", "stream")}
        self._generations[name] = asyncio.create_task(self._generate(name, body))

    # --- one generation ---

    async def _generate(self, name: str, body: dict[str, Any]) -> None:
        generation: Generation | None = None
        try:
            with one_use() as use:
                await self._service.enter(use)
                self._service.check_ready()
                if "messages" in body:
                    turn = await self._start_chat(body)
                    generation = turn.generation
                    await self._answer(name, turn.call, generation, turn)
                else:
                    wanted = GenerateRequest.parse({**body, "stream": True})
                    call, generation = await start_generate(self._socket, self._service, wanted)
                    await self._answer(name, call, generation, None, wanted.wanted_logprobs)
        except WebSocketDisconnect:
            pass
        except asyncio.CancelledError:
            if not self._leaving:
                usage = generation.usage.as_json() if generation is not None else None
                await self._forget_and_send(
                    name,
                    {"type": "done", "id": name, "finish_reason": "cancelled", "stop_reason": None, "usage": usage},
                )
            raise
        except Exception as exc:
            self._generations.pop(name, None)
            await self._send_error(name, exc)
        finally:
            self._generations.pop(name, None)

    async def _start_chat(self, body: dict[str, Any]) -> ChatTurn:
        chat = ChatRequest.parse({**body, "stream": True})
        if chat.choices != 1:
            raise InvalidRequestError("n must be 1 here: start several generations instead.", param="n")
        return await start_turn(self._socket, self._service, chat, "ws")

    async def _answer(
        self, name: str, call: Call, generation: Generation, turn: ChatTurn | None, top: int | None = None
    ) -> None:
        status = 499
        top = turn.wanted.top_logprobs if turn is not None else top
        reader, blocks = (turn.reader() if turn is not None else None), Blocks()
        call.begin()
        try:
            async with generation:
                async for _, delta in generation.deltas():
                    news: dict[str, Any] = {}
                    if reader is None:
                        if delta.text:
                            news["text"] = delta.text
                    else:
                        events = [*blocks.take(read(reader, delta.text))]
                        if delta.finish_reason is not None:
                            events += blocks.finish(rest(reader))
                        news = _chat_news(events)
                    if delta.logprobs:
                        news["logprobs"] = chat_logprobs(delta.token_ids, delta.logprobs, top or 0)
                    if news:
                        await self._send({"type": "delta", "id": name, **news, "token_ids": delta.token_ids})
                    if delta.finish_reason is not None:
                        end = _end(name, delta, generation, blocks)
                        status = 200
                        await self._forget_and_send(name, end)
        except (asyncio.CancelledError, WebSocketDisconnect):
            raise
        except Exception as exc:
            call.failed = type(exc).__name__
            status = describe(exc)[0]
            raise
        finally:
            call.end(status, generation)

    # --- messages to the client ---

    async def _forget_and_send(self, name: str, message: dict[str, Any]) -> None:
        """The last message of a generation: its id is free when the client sees it."""
        self._generations.pop(name, None)
        await self._send(message)

    async def _send_error(self, name: str | None, exc: Exception) -> None:
        status, body, _ = describe(exc)
        await self._send({"type": "error", "id": name, "status": status, **body})

    async def _send(self, message: dict[str, Any]) -> None:
        """Waits for as long as the client is slow, and so does the generation, whose news are then joined."""
        text = dumps(message).encode("utf-8", "replace").decode()
        async with self._sending:
            timer = asyncio.get_running_loop().call_later(SEND_TIMEOUT_S, self._give_up)
            try:
                await self._socket.send_text(text)
            except RuntimeError:  # closed meanwhile
                raise WebSocketDisconnect from None
            finally:
                timer.cancel()

    def _give_up(self) -> None:
        self._stuck = True
        if self._run is not None:
            self._run.cancel()


def _id_of(message: dict[str, Any]) -> str:
    name = message.get("id")
    if not isinstance(name, str) or not 0 < len(name) <= MAX_ID_LENGTH:
        raise InvalidRequestError(f"id must be a string of 1 to {MAX_ID_LENGTH} characters.", param="id")
    return name


def _chat_news(events: list[Any]) -> dict[str, Any]:
    """Text, and parts of calls by their place among the calls."""
    texts = {"text": "", "reasoning": ""}
    calls: list[dict[str, Any]] = []
    for event in events:
        if isinstance(event, BlockText) and event.block.kind != "call":
            texts[event.block.kind] += event.text
        elif isinstance(event, BlockText):
            calls.append({"block": event.index, "arguments": event.text})
        elif isinstance(event, BlockStart) and event.block.kind == "call":
            calls.append({"block": event.index, "id": event.block.id, "name": event.block.name, "arguments": ""})
    news: dict[str, Any] = {kind: text for kind, text in texts.items() if text}
    return news | ({"tool_calls": calls} if calls else {})


def _end(name: str, delta: RequestDelta, generation: Generation, blocks: Blocks) -> dict[str, Any]:
    calls = delta.finish_reason == "stop" and blocks.has_calls
    return {
        "type": "done",
        "id": name,
        "finish_reason": "tool_calls" if calls else delta.finish_reason,
        "stop_reason": delta.stop_reason,
        "usage": generation.usage.as_json(),
        "timings": timings_json(generation),
    }
