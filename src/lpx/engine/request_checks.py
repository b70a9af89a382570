"""Checks of a request that need to know the model: token ids and lengths, each in one place."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

from lpx.engine.sampling_params import SamplingParams
from lpx.errors import ContextLengthError, InvalidRequestError


def checked_prompt_ids(prompt: Any, vocab_size: int, *, param: str = "prompt") -> list[int]:
    """A prompt given as token ids, as a list of its own. Raises `InvalidRequestError` for anything else."""
    if not isinstance(prompt, Sequence):
        raise InvalidRequestError(f"{param} must be text or token ids, not {type(prompt).__name__}", param=param)
    ids = list(prompt)
    if not ids:
        raise InvalidRequestError(f"{param} holds no token ids", param=param)
    # Prompts can be long: the good case is settled without a loop in Python.
    if set(map(type, ids)) == {int} and min(ids) >= 0 and max(ids) < vocab_size:
        return ids
    for given in ids:
        if isinstance(given, bool) or not isinstance(given, Integral):
            raise InvalidRequestError(f"{param} token ids must be whole numbers, not {given!r:.60}", param=param)
        token_id = int(given)
        if not 0 <= token_id < vocab_size:
            raise InvalidRequestError(
                f"{param} has the token id {token_id}, but the model's ids are 0 to {vocab_size - 1}", param=param
            )
    return [int(token_id) for token_id in ids]


def check_length(prompt_ids: list[int], params: SamplingParams, max_model_len: int) -> None:
    """Raise `ContextLengthError`, with both lengths, unless the prompt leaves room for one token of output.

    A prompt that is only scored needs no such room.
    """
    limit = max_model_len if params.max_tokens == 0 else max_model_len - 1
    if len(prompt_ids) > limit:
        raise ContextLengthError(
            f"the prompt has {len(prompt_ids)} tokens, but the context holds {max_model_len} tokens of prompt and "
            f"output together, so at most {limit} of the prompt: shorten it or raise --max-model-len"
        )


def check_prompt_length(ids: list[int], max_model_len: int, *, param: str = "prompt") -> None:
    """Raise `ContextLengthError` for a prompt that is only read, and longer than the context."""
    if len(ids) > max_model_len:
        raise ContextLengthError(
            f"{param} has {len(ids)} tokens, but the context holds {max_model_len}: shorten it or raise "
            "--max-model-len",
            param=param,
        )


def check_params_ids(params: SamplingParams, vocab_size: int) -> None:
    """Raise `InvalidRequestError` for token ids in the parameters that the model does not have."""
    for name, token_ids in (
        ("stop_token_ids", params.stop_token_ids),
        ("logit_bias", params.logit_bias),
        ("banned_token_ids", params.banned_token_ids),
    ):
        for token_id in token_ids or ():
            if token_id >= vocab_size:
                raise InvalidRequestError(
                    f"{name} has the token id {token_id}, but the model's ids are 0 to {vocab_size - 1}", param=name
                )
