"""`GET /openapi.json`: what every endpoint takes and gives, for tools that read OpenAPI 3.1.

Bodies are the schemas that requests are checked with; answers are described as far as clients can rely on them.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from fastapi import APIRouter
from fastapi.responses import Response
from pydantic import BaseModel

from lpx import __version__
from lpx.engine.sampling_params import MAX_CHOICES, MAX_LOGPROBS
from lpx.server.schemas import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    EmbeddingRequest,
    GenerateRequest,
    ReloadRequest,
    TokenizeRequest,
)
from lpx.server.schemas.anthropic import CountTokensRequest, MessagesRequest
from lpx.server.schemas.batches import BatchRequest
from lpx.server.schemas.responses import ResponsesRequest
from lpx.server.streaming import json_response

router = APIRouter()

Schema = dict[str, Any]

_STRING: Schema = {"type": "string"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_NUMBER: Schema = {"type": "number"}


def _object(required: dict[str, Schema], optional: dict[str, Schema] | None = None) -> Schema:
    return {"type": "object", "properties": {**required, **(optional or {})}, "required": [*required]}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _nullable(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _const(value: object) -> Schema:
    return {"const": value}


def _page(of: str) -> Schema:
    """A list that goes on behind its last one."""
    return _object(
        {
            "object": _const("list"),
            "data": _list({"$ref": f"#/components/schemas/{of}"}),
            "first_id": _nullable(_STRING),
            "last_id": _nullable(_STRING),
            "has_more": {"type": "boolean"},
        }
    )


_USAGE = _object(
    {
        "prompt_tokens": _COUNT,
        "completion_tokens": _COUNT,
        "total_tokens": _COUNT,
        "prompt_tokens_details": _object({"cached_tokens": _COUNT}),
    }
)
_ERROR = _object(
    {"error": _object({"message": _STRING, "type": _STRING, "param": _nullable(_STRING), "code": _nullable(_STRING)})}
)
_ANTHROPIC_ERROR = _object({"type": _const("error"), "error": _object({"type": _STRING, "message": _STRING})})
_FINISH: Schema = {"enum": ["stop", "length", "timeout", "tool_calls"]}
_ANSWER = {"id": _STRING, "model": _STRING, "usage": _USAGE}
_TIMINGS = {"timings": _nullable({"type": "object"})}


def _choices(more: dict[str, Schema]) -> Schema:
    return _list(_object({"index": _COUNT, "finish_reason": _FINISH, **more}))


_ANSWERS: dict[str, Schema] = {
    "Health": _object(
        {"status": _STRING},
        {
            "phase": _STRING,
            "progress": _NUMBER,
            "loaded_bytes": _COUNT,
            "total_bytes": _COUNT,
            "warm_up_token_ms": _NUMBER,
        },
    ),
    "Version": _object({"version": _STRING}),
    "Model": _object({"id": _STRING, "object": _const("model"), "created": _COUNT, "owned_by": _STRING}),
    "Models": _object({"object": _const("list"), "data": _list({"$ref": "#/components/schemas/Model"})}),
    "Generated": _object({**_ANSWER, "text": _STRING, "token_ids": _list(_COUNT), "finish_reason": _FINISH}, _TIMINGS),
    "Completion": _object(
        {**_ANSWER, "object": _const("text_completion"), "created": _COUNT, "choices": _choices({"text": _STRING})},
        _TIMINGS,
    ),
    "ChatCompletion": _object(
        {
            **_ANSWER,
            "object": _const("chat.completion"),
            "created": _COUNT,
            "choices": _choices({"message": _object({"role": _STRING, "content": _nullable(_STRING)})}),
        },
        _TIMINGS,
    ),
    "ResponsesAnswer": _object(
        {
            "id": _STRING,
            "object": _const("response"),
            "created_at": _COUNT,
            "status": {"enum": ["completed", "incomplete"]},
            "model": _STRING,
            "output": _list(_object({"type": _STRING, "id": _STRING})),
            "usage": _object({"input_tokens": _COUNT, "output_tokens": _COUNT, "total_tokens": _COUNT}),
        },
        _TIMINGS,
    ),
    "Message": _object(
        {
            "id": _STRING,
            "type": _const("message"),
            "role": _const("assistant"),
            "model": _STRING,
            "content": _list(_object({"type": _STRING})),
            "stop_reason": {"enum": ["end_turn", "max_tokens", "stop_sequence", "tool_use"]},
            "stop_sequence": _nullable(_STRING),
            "usage": _object({"input_tokens": _COUNT, "output_tokens": _COUNT}),
        }
    ),
    "TokenCount": _object({"input_tokens": _COUNT}),
    "Embeddings": _object(
        {
            "object": _const("list"),
            "model": _STRING,
            "data": _list(
                _object(
                    {
                        "object": _const("embedding"),
                        "index": _COUNT,
                        "embedding": {"anyOf": [_list(_NUMBER), _STRING]},
                    }
                )
            ),
            "usage": _object({"prompt_tokens": _COUNT, "total_tokens": _COUNT}),
        }
    ),
    "File": _object(
        {
            "id": _STRING,
            "object": _const("file"),
            "bytes": _COUNT,
            "created_at": _COUNT,
            "expires_at": _nullable(_COUNT),
            "filename": _STRING,
            "purpose": {"enum": ["batch", "batch_output"]},
            "status": _const("processed"),
        }
    ),
    "Files": _page("File"),
    "FileDeleted": _object({"id": _STRING, "object": _const("file"), "deleted": _const(True)}),
    "Batch": _object(
        {
            "id": _STRING,
            "object": _const("batch"),
            "endpoint": _STRING,
            "input_file_id": _STRING,
            "completion_window": _STRING,
            "status": {
                "enum": [
                    "validating",
                    "failed",
                    "in_progress",
                    "finalizing",
                    "completed",
                    "expired",
                    "cancelling",
                    "cancelled",
                ]
            },
            "created_at": _COUNT,
            "expires_at": _COUNT,
            "request_counts": _object({"total": _COUNT, "completed": _COUNT, "failed": _COUNT}),
            "output_file_id": _nullable(_STRING),
            "error_file_id": _nullable(_STRING),
            "metadata": _nullable({"type": "object"}),
        }
    ),
    "Batches": _page("Batch"),
    "Tokens": _object(
        {
            "count": _COUNT,
            "max_model_len": _COUNT,
            "tokens": _list({"anyOf": [_COUNT, _object({"id": _COUNT, "piece": {}})]}),
            "token_strs": _nullable(_list(_STRING)),
        }
    ),
    "Reloaded": _object(
        {
            "changed": {"type": "boolean"},
            "model": _STRING,
            "version": _nullable(_STRING),
            "previous": _object({"model": _STRING, "version": _nullable(_STRING)}),
            "seconds": _NUMBER,
        }
    ),
    "ReloadStatus": _object(
        {
            "state": _STRING,
            "progress": _NUMBER,
            "model": _nullable(_STRING),
            "version": _nullable(_STRING),
            "engines_ending": _COUNT,
        }
    ),
    "Text": _object({"prompt": _STRING, "content": _STRING}),
    "TokenizerInfo": _object(
        {
            "bos_token": _nullable(_STRING),
            "eos_token": _nullable(_STRING),
            "pad_token": _nullable(_STRING),
            "unk_token": _nullable(_STRING),
            "add_bos_token": {"type": "boolean"},
            "bos_token_id": _nullable(_COUNT),
            "eos_token_ids": _list(_COUNT),
            "chat_template": _nullable(_STRING),
            "model_max_length": _COUNT,
            "vocab_size": _COUNT,
        }
    ),
    "Error": _ERROR,
    "AnthropicError": _ANTHROPIC_ERROR,
}

# path, method, body, answer, what it does, whether it can be streamed
_OPERATIONS: tuple[tuple[str, str, type[BaseModel] | None, str, str, bool], ...] = (
    ("/health", "get", None, "Health", "Whether requests are taken, and how far loading is.", False),
    ("/health/live", "get", None, "Health", "Whether the process answers.", False),
    ("/health/ready", "get", None, "Health", "Whether requests are taken, and what the warm-up token took.", False),
    ("/version", "get", None, "Version", "The version of LPX.", False),
    ("/v1/models", "get", None, "Models", "The model that is served and what is in use.", False),
    ("/v1/models/{name}", "get", None, "Model", "The model of this name.", False),
    ("/generate", "post", GenerateRequest, "Generated", "One answer to one prompt.", True),
    ("/v1/completions", "post", CompletionRequest, "Completion", "OpenAI's text completion.", True),
    ("/v1/chat/completions", "post", ChatRequest, "ChatCompletion", "OpenAI's chat completion.", True),
    ("/v1/responses", "post", ResponsesRequest, "ResponsesAnswer", "OpenAI's Responses, without state.", True),
    ("/v1/messages", "post", MessagesRequest, "Message", "Anthropic's Messages.", True),
    ("/v1/messages/count_tokens", "post", CountTokensRequest, "TokenCount", "Tokens of a message.", False),
    ("/v1/embeddings", "post", EmbeddingRequest, "Embeddings", "OpenAI's embeddings.", False),
    ("/v1/files", "post", None, "File", "Keep a file of lines for a batch.", False),
    ("/v1/files", "get", None, "Files", "The files that are kept.", False),
    ("/v1/files/{id}", "get", None, "File", "One file.", False),
    ("/v1/files/{id}", "delete", None, "FileDeleted", "Delete a file.", False),
    ("/v1/files/{id}/content", "get", None, "Content", "What is in a file.", False),
    ("/v1/batches", "post", BatchRequest, "Batch", "Answer every line of a file, when there is room.", False),
    ("/v1/batches", "get", None, "Batches", "The batches, the newest first.", False),
    ("/v1/batches/{id}", "get", None, "Batch", "One batch, and how far it is.", False),
    ("/v1/batches/{id}/cancel", "post", None, "Batch", "End a batch with the results that it has.", False),
    ("/tokenize", "post", TokenizeRequest, "Tokens", "Token ids of a text or a conversation.", False),
    ("/detokenize", "post", DetokenizeRequest, "Text", "The text of token ids.", False),
    ("/tokenizer_info", "get", None, "TokenizerInfo", "Special tokens and chat template of the model.", False),
    ("/admin/models/reload", "post", ReloadRequest, "Reloaded", "Serve another version of the model.", False),
    ("/admin/models/reload", "get", None, "ReloadStatus", "What is served, and how far a reload is.", False),
)
_REFUSALS = {
    400: "A wrong value; the error names the field.",
    401: "No key, or a wrong one, where the server asks for one.",
    403: "The Host or Origin header names a foreign site.",
    404: "There is no such path or model.",
    408: "The body stopped coming.",
    413: "The body is too large.",
    414: "The URL is too long.",
    415: "The body is not JSON.",
    429: "Too many requests wait; Retry-After says when to come again.",
    431: "The headers are too large or too many.",
    500: "A fault inside.",
    503: "The model is loading, or the server is ending.",
}
# What `SamplingParams` checks, which the types of the bodies do not say.
_RANGES: dict[str, tuple[float | None, float | None]] = {
    "temperature": (0, 1e6),
    "top_k": (-1, None),
    "min_p": (0, 1),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
    "repetition_penalty": (1e-6, 1e6),
    "repeat_penalty": (1e-6, 1e6),
    "top_p": (1e-300, 1),
    "n": (1, MAX_CHOICES),
    "max_tokens": (0, None),
    "max_completion_tokens": (0, None),
    "max_output_tokens": (1, None),
    "min_tokens": (0, None),
    "seed": (-(2**63), 2**64 - 1),
    "logprobs": (0, MAX_LOGPROBS),
    "top_logprobs": (0, MAX_LOGPROBS),
    "prompt_logprobs": (0, MAX_LOGPROBS),
    "dimensions": (1, None),
}
_WITHOUT_BODY = (401, 403, 404, 414, 431, 500, 503)
_UPLOAD: Schema = {
    "multipart/form-data": {
        "schema": _object(
            {"purpose": _const("batch"), "file": {"type": "string", "contentMediaType": "application/octet-stream"}},
            {
                "expires_after[anchor]": _const("created_at"),
                "expires_after[seconds]": {"type": "integer", "minimum": 3600, "maximum": 30 * 24 * 3600},
            },
        )
    }
}
_PAGING: tuple[tuple[str, Schema], ...] = (("after", _STRING), ("limit", {"type": "integer", "minimum": 1}))
# Of an operation, beyond what all have: query parameters, a body that is no JSON, refusals.
_QUERIES: dict[tuple[str, str], tuple[tuple[str, Schema], ...]] = {
    ("/v1/files", "get"): (*_PAGING, ("order", {"enum": ["asc", "desc"]}), ("purpose", _STRING)),
    ("/v1/batches", "get"): _PAGING,
}
_FORMS: dict[tuple[str, str], Schema] = {("/v1/files", "post"): _UPLOAD}
_MORE_REFUSALS: dict[tuple[str, str], dict[int, str]] = {
    ("/v1/files", "get"): {400: _REFUSALS[400]},
    ("/v1/files", "post"): {507: "The disk is full."},
    ("/v1/batches", "post"): {507: "The disk is full."},
    ("/v1/files/{id}", "delete"): {400: "A batch reads the file."},
    ("/v1/batches", "get"): {400: _REFUSALS[400]},
    ("/v1/batches/{id}/cancel", "post"): {409: "The batch has ended.", 429: _REFUSALS[429]},
}


_SEVERAL_METHODS = ("/v1/files", "/v1/files/{id}", "/v1/batches")


def _reference(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _json(schema: Schema) -> Schema:
    return {"application/json": {"schema": schema}}


def _operation(
    path: str, method: str, body: type[BaseModel] | None, answer: str, summary: str, streamed: bool
) -> Schema:
    form = _FORMS.get((path, method))
    content = {"application/octet-stream": {}} if answer == "Content" else _json(_reference(answer))
    if streamed:
        content["text/event-stream"] = {}
    responses: Schema = {"200": {"description": "The answer.", "content": content}}
    error = "AnthropicError" if path.startswith("/v1/messages") else "Error"
    for status, text in _REFUSALS.items():
        if body is not None or form is not None or status in _WITHOUT_BODY:
            responses[str(status)] = {"description": text, "content": _json(_reference(error))}
    if path.startswith("/admin/"):
        text = "Memory has no room for both models, a reload is under way, or none is possible."
        responses["409"] = {"description": text, "content": _json(_reference(error))}
    if path.startswith("/health"):
        responses["503"] = {"description": "Requests are not taken.", "content": _json(_reference("Health"))}
    for status, text in _MORE_REFUSALS.get((path, method), {}).items():
        responses[str(status)] = {"description": text, "content": _json(_reference(error))}
    name = re.sub(r"\W+", "_", path.strip("/")).strip("_")
    if path in _SEVERAL_METHODS:
        name = f"{method}_{name}"
    operation: Schema = {"summary": summary, "operationId": name, "responses": responses}
    parameters = [
        {"name": each, "in": "path", "required": True, "schema": _STRING} for each in re.findall(r"{(\w+)}", path)
    ]
    parameters += [
        {"name": each, "in": "query", "required": False, "schema": schema}
        for each, schema in _QUERIES.get((path, method), ())
    ]
    if parameters:
        operation["parameters"] = parameters
    if form is not None:
        operation["requestBody"] = {"required": True, "content": form}
    if body is not None:
        operation["requestBody"] = {"required": True, "content": _json(_reference(body.__name__))}
    return operation


def _add_ranges(schema: Schema) -> None:
    for name, (least, most) in _RANGES.items():
        field = schema["properties"].get(name, {})
        for kind in (field, *field.get("anyOf", ())):
            if kind.get("type") in ("integer", "number"):
                kind |= {} if least is None else {"minimum": least}
                kind |= {} if most is None else {"maximum": most}


@cache
def openapi_document() -> Schema:
    """The whole document."""
    schemas: Schema = dict(_ANSWERS)
    paths: Schema = {}
    for path, method, body, answer, summary, streamed in _OPERATIONS:
        if body is not None:
            schema = body.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas |= schema.pop("$defs", {})
            _add_ranges(schema)
            schemas[body.__name__] = schema
        paths.setdefault(path, {})[method] = _operation(path, method, body, answer, summary, streamed)
    return {
        "openapi": "3.1.0",
        "info": {"title": "LPX", "version": __version__, "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"}},
        "paths": paths,
        "components": {"schemas": schemas},
    }


@router.get("/openapi.json")
async def openapi() -> Response:
    return json_response(openapi_document())
