"""`POST /v1/completions`: OpenAI's text completion, with several prompts, token ids, echo and log-probabilities.

Choices are numbered prompt-major: prompt p, choice c has index p * n + c.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from lpx.engine.outputs import RequestDelta
from lpx.errors import InvalidRequestError
from lpx.server.errors import renamed
from lpx.server.generate import encode_given
from lpx.server.generation import Choice, Generation
from lpx.server.limits import read_request
from lpx.server.openai_logprobs import CompletionLogprobs, prompt_logprobs_json
from lpx.server.request_log import Call
from lpx.server.schemas import CompletionRequest
from lpx.server.service import Service, service_of
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

if TYPE_CHECKING:
    from lpx.engine.async_engine import AsyncEngine

router = APIRouter()


@router.post("/v1/completions")
async def completions(request: Request) -> Response:
    service = service_of(request)
    engine = service.engine
    wanted = await read_request(request, service.settings, CompletionRequest.parse)
    service.check_model(wanted.model)
    _check_size(wanted, service)
    scored = wanted.echo and (wanted.logprobs is not None or wanted.token_limit == 0)
    prompt_logprobs = wanted.prompt_logprobs
    if scored and prompt_logprobs is None:
        prompt_logprobs = wanted.logprobs or 0
    params = wanted.sampling_params(
        max_tokens=wanted.token_limit, n=wanted.choices, logprobs=wanted.logprobs, prompt_logprobs=prompt_logprobs
    )
    prompts = []
    for given in wanted.prompts:  # the first one that cannot run ends the request before the others are encoded
        prompt = await encode_given(engine, given, add_special=wanted.add_special_tokens is not False)
        prompts.append(wanted.fit(prompt, engine.info.max_model_len, params.max_tokens))
        engine.validate(prompts[-1], params)
    grammar = await engine.compile_grammar(params)
    call = service.call(request, "cmpl", wanted.streams)
    timings = service.shows_timings(wanted.timings)
    try:
        generation = await Generation.start(engine, prompts, params, call.id, service.latencies, grammar, timings)
    except InvalidRequestError as exc:
        raise renamed(exc, wanted.spellings) from None
    answer = _Answer(wanted, prompts, engine, generation)
    if wanted.streams:
        writer = ChunkWriter(call, "text_completion", wanted, generation)
        return EventStream(call, generation, answer.events(writer))
    return await answer_json(request, call, generation, lambda choices: answer.body(call, choices))


def _check_size(wanted: CompletionRequest, service: Service) -> None:
    settings = service.settings
    count = len(wanted.prompts)
    if count > settings.max_prompts:
        raise InvalidRequestError(
            f"prompt holds {count} prompts; at most {settings.max_prompts} may come in one request.", param="prompt"
        )
    if count * wanted.choices > settings.max_choices:
        raise InvalidRequestError(
            f"{count} prompts with n={wanted.choices} make more than {settings.max_choices} choices.", param="n"
        )


class _Answer:
    """Shapes the choices of one request, whole or as a stream."""

    def __init__(
        self, wanted: CompletionRequest, prompts: list[list[int]], engine: AsyncEngine, generation: Generation
    ) -> None:
        self._wanted = wanted
        self._prompts = prompts
        self._tokenizer = engine.tokenizer
        self._generation = generation
        self._logprobs: dict[int, CompletionLogprobs] = {}
        self._told: set[int] = set()  # choices whose prompt's ids were streamed

    def _echo(self, prompt_index: int) -> str:
        if not self._wanted.echo:
            return ""
        given = self._wanted.prompts[prompt_index]
        return given if isinstance(given, str) else self._tokenizer.decode(given)

    def _prompt_part(self, index: int, prompt_index: int) -> dict[str, Any] | None:
        """Log-probabilities of the echoed prompt."""
        if self._wanted.logprobs is None:
            return None
        # None for all: a request that timed out before its prompt was scored.
        scores = self._generation.prompt_logprobs[prompt_index] or [None] * len(self._prompts[prompt_index])
        self._logprobs[index] = CompletionLogprobs(self._tokenizer)
        if not self._wanted.echo:
            return None
        return self._logprobs[index].add(self._prompts[prompt_index], scores)

    # --- whole ---

    def body(self, call: Call, choices: list[Choice]) -> dict[str, Any]:
        return {
            "id": call.id,
            "object": "text_completion",
            "created": call.created,
            "model": call.model,
            "choices": [self._choice(choice) for choice in choices],
            "usage": self._generation.usage.as_json(),
            "timings": timings_json(self._generation),
        }

    def _choice(self, choice: Choice) -> dict[str, Any]:
        logprobs = self._prompt_part(choice.index, choice.prompt_index)
        if choice.logprobs is not None:
            generated = self._logprobs[choice.index].add(choice.token_ids, choice.logprobs)
            logprobs = {key: logprobs[key] + generated[key] for key in generated} if logprobs else generated
        shaped = {
            "index": choice.index,
            "text": self._echo(choice.prompt_index) + choice.text,
            "logprobs": logprobs,
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
        }
        if self._wanted.return_token_ids:
            shaped |= {"prompt_token_ids": self._prompts[choice.prompt_index], "token_ids": choice.token_ids}
        if choice.pieces is not None:
            shaped["pieces"] = pieces_json(choice.pieces)
        if self._wanted.prompt_logprobs is not None:
            shaped["prompt_logprobs"] = prompt_logprobs_json(self._generation.prompt_logprobs[choice.prompt_index])
        return shaped

    # --- streamed ---

    async def events(self, writer: ChunkWriter) -> AsyncGenerator[bytes, None]:
        n = self._wanted.choices
        echoes_scores = bool(self._wanted.echo) and self._wanted.logprobs is not None
        if not echoes_scores:
            for index in range(len(self._prompts) * n):
                self._prompt_part(index, index // n)
                if self._wanted.echo:
                    yield writer.chunk(_chunk_choice(index, self._echo(index // n), None, None))
        held: dict[int, list[tuple[int, RequestDelta]]] = {}  # deltas ahead of their prompt's scores
        async for prompt_index, delta in self._generation.deltas():
            index = prompt_index * n + delta.index
            if not echoes_scores or index in self._logprobs:
                data = self._chunk(writer, index, delta)
            elif self._generation.prompt_logprobs[prompt_index] is None and delta.finish_reason != "timeout":
                held.setdefault(prompt_index, []).append((index, delta))
                continue
            else:
                held.setdefault(prompt_index, []).append((index, delta))
                data = b""
                for each in range(prompt_index * n, prompt_index * n + n):
                    part = self._prompt_part(each, prompt_index)
                    data += writer.chunk(_chunk_choice(each, self._echo(prompt_index), part, None))
                for each, delta in held.pop(prompt_index):
                    data += self._chunk(writer, each, delta)
            if data:
                yield data
        if self._wanted.include_usage:
            yield writer.usage(self._generation)

    def _chunk(self, writer: ChunkWriter, index: int, delta: RequestDelta) -> bytes:
        logprobs = None
        if delta.logprobs:
            logprobs = self._logprobs[index].add(delta.token_ids, delta.logprobs)
        ids = self._new_ids(index, delta) if self._wanted.return_token_ids else None
        if not delta.text and logprobs is None and delta.finish_reason is None and ids is None:
            return b""
        return writer.chunk(_chunk_choice(index, delta.text, logprobs, delta, ids))

    def _new_ids(self, index: int, delta: RequestDelta) -> str | None:
        """Token ids of a delta as JSON members; those of the prompt come with the first."""
        if not delta.token_ids and delta.finish_reason is None:
            return None
        members = f'"token_ids":{dumps(delta.token_ids)},'
        if index not in self._told:
            self._told.add(index)
            members += f'"prompt_token_ids":{dumps(self._prompts[index // self._wanted.choices])},'
        return members


def _chunk_choice(
    index: int, text: str, logprobs: dict[str, Any] | None, delta: RequestDelta | None, ids: str | None = None
) -> str:
    logprobs_json = "null" if logprobs is None else dumps(logprobs)
    end = '"finish_reason":null'
    if delta is not None and delta.finish_reason is not None:
        end = f'"finish_reason":"{delta.finish_reason}","stop_reason":{dumps(delta.stop_reason)}'
    if delta is not None and delta.pieces is not None:
        end += f',"pieces":{pieces_text(delta.pieces)}'
    return f'{{"index":{index},"text":{json_string(text)},{ids or ""}"logprobs":{logprobs_json},{end}}}'
