"""One turn of a conversation, whatever protocol asks for it: the prompt by the model's template, and its requests."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import HTTPConnection

from lpx.errors import InvalidRequestError
from lpx.server.answer_reader import AnswerReader
from lpx.server.chat_plan import ChatPlan, plan_chat
from lpx.server.errors import renamed
from lpx.server.generation import Generation
from lpx.server.request_log import Call
from lpx.server.schemas import ChatRequest
from lpx.server.service import Service
from lpx.server.tools.request import choose_tools


@dataclass(slots=True)
class ChatTurn:
    """What runs for one chat request."""

    wanted: ChatRequest
    call: Call
    generation: Generation
    plan: ChatPlan
    prompt: list[int]

    def reader(self) -> AnswerReader | None:
        """What finds thoughts, text and calls in the answer of one choice; None where it is nothing but text."""
        return self.plan.reader(self.prompt, self.generation.engine.tokenizer)


async def encode_turn(service: Service, wanted: ChatRequest) -> tuple[ChatPlan, list[int]]:
    """How the conversation is put to the model, and the prompt's token ids."""
    engine = service.engine
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
    return plan, prompt


async def start_turn(connection: HTTPConnection, service: Service, wanted: ChatRequest, prefix: str) -> ChatTurn:
    """Submit the requests of a turn. Raises `InvalidRequestError` and what `AsyncEngine.submit` raises."""
    engine = service.engine
    service.check_model(wanted.model)
    params = wanted.sampling_params(max_tokens=wanted.token_limit, n=wanted.choices, logprobs=wanted.wanted_logprobs)
    plan, prompt = await encode_turn(service, wanted)
    prompt = wanted.fit(prompt, engine.info.max_model_len, params.max_tokens)
    params = plan.sampling_params(params, prompt, engine.tokenizer)
    grammar = await engine.compile_grammar(params)
    call = service.call(connection, prefix, wanted.streams)
    timings = service.shows_timings(wanted.timings)
    try:
        generation = await Generation.start(engine, [prompt], params, call.id, service.latencies, grammar, timings)
    except InvalidRequestError as exc:
        raise renamed(exc, {**wanted.spellings, "prompt": "messages"}) from None
    return ChatTurn(wanted, call, generation, plan, prompt)
