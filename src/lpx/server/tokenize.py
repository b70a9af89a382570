"""`POST /tokenize` and `POST /detokenize`: what the model reads for a text or a conversation, and back.

`GET /tokenizer_info` tells tools that have no files of the model about its special tokens.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from lpx.errors import InvalidRequestError
from lpx.server.limits import read_request
from lpx.server.schemas import DetokenizeRequest, TokenizeRequest
from lpx.server.service import service_of
from lpx.server.streaming import json_response

if TYPE_CHECKING:
    from lpx.engine.async_engine import AsyncEngine
    from lpx.model.tokenizer import Tokenizer

router = APIRouter()

_MANY = 5000  # tokens whose answer takes so long that others would wait for it


@router.post("/tokenize")
async def tokenize(request: Request) -> Response:
    service = service_of(request)
    engine = service.engine
    wanted = await read_request(request, service.settings, TokenizeRequest.parse)
    service.check_model(wanted.model)
    ids = await _ids(engine, wanted)
    tokenizer = engine.tokenizer

    def answer() -> Response:
        return json_response(
            {
                "count": len(ids),
                "max_model_len": engine.info.max_model_len,
                "tokens": [_piece(tokenizer, token_id) for token_id in ids] if wanted.with_pieces else ids,
                "token_strs": [tokenizer.token_text(id) for id in ids] if wanted.return_token_strs else None,
            }
        )

    return await asyncio.to_thread(answer) if len(ids) > _MANY else answer()


async def _ids(engine: AsyncEngine, wanted: TokenizeRequest) -> list[int]:
    if wanted.messages is None:
        text = wanted.prompt if wanted.content is None else wanted.content
        assert text is not None
        return await engine.encode_text(text, add_special=wanted.adds_special, parse_special=bool(wanted.parse_special))
    continued = bool(wanted.continue_final_message)
    return await engine.encode_chat(
        wanted.messages,
        tools=wanted.tools or None,
        add_generation_prompt=not continued if wanted.add_generation_prompt is None else wanted.add_generation_prompt,
        continue_final_message=continued,
        chat_template_kwargs=wanted.chat_template_kwargs,
    )


def _piece(tokenizer: Tokenizer, token_id: int) -> dict[str, Any]:
    """As llama.cpp has it: text, or a list of bytes where they are no text."""
    data = tokenizer.token_bytes(token_id)
    try:
        return {"id": token_id, "piece": data.decode("utf-8")}
    except UnicodeDecodeError:
        return {"id": token_id, "piece": list(data)}


@router.post("/detokenize")
async def detokenize(request: Request) -> Response:
    service = service_of(request)
    engine = service.engine
    wanted = await read_request(request, service.settings, DetokenizeRequest.parse)
    service.check_model(wanted.model)
    vocab_size = engine.info.vocab_size
    if wanted.tokens and max(wanted.tokens) >= vocab_size:
        raise InvalidRequestError(
            f"tokens has the id {max(wanted.tokens)}, but the model's ids are 0 to {vocab_size - 1}", param="tokens"
        )
    text = await engine.decode(wanted.tokens)
    return json_response({"prompt": text, "content": text})  # vLLM's name for it, and llama.cpp's


@router.get("/tokenizer_info")
async def tokenizer_info(request: Request) -> Response:
    """What lm-evaluation-harness asks to use the service's own tokenizer instead of files (vLLM's name for it)."""
    engine = service_of(request).engine
    tokenizer = engine.tokenizer
    return json_response(
        {
            **{
                name: tokenizer.special_texts.get(name) for name in ("bos_token", "eos_token", "pad_token", "unk_token")
            },
            "add_bos_token": tokenizer.add_bos,
            "bos_token_id": tokenizer.bos_id,
            "eos_token_ids": sorted(tokenizer.eos_ids),
            "chat_template": engine.chat_template_source,
            "model_max_length": engine.info.max_model_len,
            "vocab_size": engine.info.vocab_size,
        }
    )
