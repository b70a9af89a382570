"""`GET /v1/models`: the model that is served, and what is really in use to serve it."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from lpx.server.service import Service, service_of

router = APIRouter()


def _card(service: Service) -> dict[str, Any]:
    info = service.engine.info
    return {
        "id": service.model_name,
        "object": "model",
        "created": service.started_at,
        "owned_by": "lpx",
        "version": info.model_version,
        "architecture": info.architecture,
        "max_model_len": info.max_model_len,
        "vocab_size": info.vocab_size,
        "quantization": info.quantization,
        "speculation": info.speculation,
        "dtype": info.dtype,
        "device": info.device,
        "isa": info.isa,
        "threads": info.threads,
        "weight_bytes": info.weight_bytes,
        "kv_cache": {
            "dtype": info.kv_cache_dtype,
            "block_size": info.block_size,
            "num_blocks": info.num_blocks,
            "bytes": info.kv_bytes,
            "prefix_caching": info.prefix_caching,
        },
        "max_num_seqs": info.max_num_seqs,
        "max_num_batched_tokens": info.max_num_batched_tokens,
        "itl_target_ms": info.itl_target_ms,
        "chat_template": info.chat_template,
    }


@router.get("/v1/models")
async def list_models(request: Request) -> JSONResponse:
    return JSONResponse({"object": "list", "data": [_card(service_of(request))]})


@router.get("/v1/models/{name:path}")
async def one_model(request: Request, name: str) -> JSONResponse:
    service = service_of(request)
    service.check_model(name)
    return JSONResponse(_card(service))
