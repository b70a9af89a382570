"""Request bodies: names and types, checked strictly.

A bool is not a number and a string is not one either. An unknown field is refused by name. Fields that OpenAI,
vLLM or llama.cpp know and LPX does not have are accepted while they are neutral (they ask for what happens anyway)
and refused with the reason when they would change the answer. Ranges of sampling values are checked in one place,
`lpx.engine.sampling_params`.
"""

from lpx.server.schemas.chat import ChatRequest
from lpx.server.schemas.completions import CompletionRequest
from lpx.server.schemas.embeddings import EmbeddingRequest
from lpx.server.schemas.generate import GenerateRequest
from lpx.server.schemas.reload import ReloadRequest
from lpx.server.schemas.tokenize import DetokenizeRequest, TokenizeRequest

__all__ = [
    "ChatRequest",
    "CompletionRequest",
    "DetokenizeRequest",
    "EmbeddingRequest",
    "GenerateRequest",
    "ReloadRequest",
    "TokenizeRequest",
]
