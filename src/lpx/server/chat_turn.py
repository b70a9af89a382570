"""One turn of a conversation, whatever protocol asks for it: the prompt by the model's template, and its requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from starlette.requests import HTTPConnection

from lpx.errors import ContextLengthError, InvalidRequestError
from lpx.server.answer_blocks import PieceReader, PlainReader
from lpx.server.generation import Generation
from lpx.server.request_log import Call
from lpx.server.schemas import ChatRequest
from lpx.server.service import Service


@dataclass(slots=True)
class ChatTurn:
    """What runs for one chat request."""

    wanted: ChatRequest
    call: Call
    generation: Generation

    def reader(self) -> PieceReader:
        """What finds text and calls in the answer of one choice."""
        return PlainReader()


async def encode_turn(service: Service, wanted: ChatRequest) -> list[int]:
    """The prompt's token ids."""
    continued = bool(wanted.continue_final_message)
    return await service.engine.encode_chat(
        wanted.messages,
        add_generation_prompt=not continued if wanted.add_generation_prompt is None else wanted.add_generation_prompt,
        continue_final_message=continued,
        chat_template_kwargs=wanted.chat_template_kwargs,
    )


async def start_turn(connection: HTTPConnection, service: Service, wanted: ChatRequest, prefix: str) -> ChatTurn:
    """Submit the requests of a turn. Raises `InvalidRequestError` and what `AsyncEngine.submit` raises."""
    service.check_model(wanted.model)
    params = wanted.sampling_params(max_tokens=wanted.token_limit, n=wanted.choices, logprobs=wanted.wanted_logprobs)
    prompt = await encode_turn(service, wanted)
    prompt = wanted.fit(prompt, service.engine.info.max_model_len, params.max_tokens)
    call = service.call(connection, prefix, wanted.streams)
    try:
        generation = Generation.start(service.engine, [prompt], params, call.id, service.latencies)
    except ContextLengthError as exc:
        raise ContextLengthError(str(exc), param="messages") from None
    return ChatTurn(wanted, call, generation)


def renamed(exc: InvalidRequestError, names: Mapping[str, str]) -> InvalidRequestError:
    """The same error with the field called as the client's protocol calls it."""
    if exc.param is None:
        return exc
    head, separator, rest = exc.param.partition("[")
    name = names.get(head)
    if name is None:
        return exc
    text = str(exc)
    if text.startswith(head):
        text = name + text.removeprefix(head)
    if isinstance(exc, ContextLengthError):
        return ContextLengthError(text, param=name)
    return InvalidRequestError(text, param=name + separator + rest, code=exc.code)
