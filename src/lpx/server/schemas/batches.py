"""The body of `POST /v1/batches`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StringConstraints

from lpx.server.schemas.fields import fail
from lpx.server.schemas.sampling import StrictRequest

_MAX_METADATA = 16


def _metadata(value: Any) -> Any:
    if value is not None and isinstance(value, dict) and len(value) > _MAX_METADATA:
        raise fail(f"may have at most {_MAX_METADATA} entries")
    return value


class BatchRequest(StrictRequest):
    """`POST /v1/batches`."""

    input_file_id: Annotated[str, StringConstraints(max_length=100)]
    endpoint: Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings"]
    completion_window: Literal["24h"]
    metadata: Annotated[
        dict[Annotated[str, StringConstraints(max_length=64)], Annotated[str, StringConstraints(max_length=512)]]
        | None,
        BeforeValidator(_metadata),
        Field(json_schema_extra={"maxProperties": _MAX_METADATA}),
    ] = None
