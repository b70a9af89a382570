"""From what a client gives to a request that is sound: texts and conversations to ids, checks, seeds, sequences.

Everything here may be called from any thread; nothing here changes the engine.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from lpx.engine.detokenizer import Detokenizer, PieceDetokenizer
from lpx.engine.request_checks import check_length, check_params_ids, checked_prompt_ids
from lpx.engine.sampling_params import SamplingParams, choice_seed
from lpx.engine.sequence import Request, Sequence
from lpx.errors import ChatTemplateError, ContextLengthError, InvalidRequestError
from lpx.runtime.step import SequenceInput

if TYPE_CHECKING:
    from lpx.model.chat_template import ChatTemplate
    from lpx.model.tokenizer import Tokenizer

Prompt = str | SequenceOf[int]

_SURELY_FITTING = 4  # characters per token of context below which no text is measured
_NORMALIZED_AWAY = 4  # how much shorter a normalizer may make text, at most


class RequestIntake:
    """Knows the text side of a model and its limits; makes requests for its engine."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        chat_template: ChatTemplate | None,
        *,
        model_name: str,
        vocab_size: int,
        eos_token_ids: frozenset[int],
        max_model_len: int,
        seed: int | None,
    ) -> None:
        self.tokenizer = tokenizer
        self.chat_template = chat_template
        self.vocab_size = vocab_size  # ids that a client may name
        self.eos_token_ids = eos_token_ids
        self.max_model_len = max_model_len
        self._model_name = model_name
        self._seed = seed
        self._seeds_drawn = itertools.count(1)
        self._ids = itertools.count(1)
        self._longest_token: int | None = None  # bytes; found when a text is long enough to ask

    def encode_prompt(self, text: str) -> list[int]:
        """Token ids of a plain prompt, with the begin-of-sequence token if the model wants one."""
        if not isinstance(text, str):
            raise InvalidRequestError(f"prompt must be text or token ids, not {type(text).__name__}", param="prompt")
        self._check_text_length(text)
        return self.tokenizer.encode(text)

    def _check_text_length(self, text: str) -> None:
        """Refuse text that no split into tokens could make short enough, before megabytes of it are split."""
        size = len(text)  # characters: no more than bytes
        if size <= _SURELY_FITTING * self.max_model_len:
            return
        if self._longest_token is None:
            self._longest_token = max(len(self.tokenizer.token_bytes(i)) for i in range(self.tokenizer.vocab_size))
        least = size // (self._longest_token * _NORMALIZED_AWAY)
        if least >= self.max_model_len:
            raise ContextLengthError(
                f"the prompt has {size} characters, which are more than {least} tokens, but the context holds "
                f"{self.max_model_len} tokens of prompt and output together: shorten it or raise --max-model-len"
            )

    def encode_chat(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Token ids of a conversation. Raises `ChatTemplateError` without a template or when it refuses."""
        if self.chat_template is None:
            raise ChatTemplateError(
                f"the model {self._model_name!r} has no chat template: use plain completion, or give one with "
                "--chat-template",
                param="messages",
            )
        return self.chat_template.encode(
            messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            kwargs=chat_template_kwargs,
        )

    def validate(self, prompt: Prompt, params: SamplingParams) -> list[int]:
        """Check a request against the model and return its prompt as token ids. Changes nothing.

        Raises `InvalidRequestError` or, with both lengths, `ContextLengthError`.
        """
        if isinstance(prompt, str):
            ids = self.encode_prompt(prompt)
            if not ids:
                raise InvalidRequestError("prompt is empty, and the model adds no token of its own", param="prompt")
        else:
            if isinstance(prompt, list):
                check_length(prompt, params, self.max_model_len)  # before a look at each of millions of ids
            ids = checked_prompt_ids(prompt, self.vocab_size)
        check_length(ids, params, self.max_model_len)
        check_params_ids(params, self.vocab_size)
        return ids

    def make_request(self, prompt: Prompt, params: SamplingParams, request_id: str | None = None) -> Request:
        """A validated request, ready for `add`."""
        ids = self.validate(prompt, params)
        request = Request(request_id or f"request-{next(self._ids)}", ids, params, monotonic_ns())
        room = self.max_model_len if params.max_tokens is None else len(ids) + params.max_tokens
        stop_ids = frozenset(params.stop_token_ids or ())
        make_detokenizer = PieceDetokenizer if params.return_drafts else Detokenizer
        if not params.ignore_eos:
            stop_ids |= self.eos_token_ids
        seed = self._fresh_seed() if params.seed is None or params.seed == -1 else params.seed
        for index in range(params.n):
            settings = params.sampler_settings(choice_seed(seed, index), self.vocab_size)
            row = SequenceInput((), 0, (), sampling=settings, logprobs=params.logprobs, stop_ids=stop_ids)
            sequence = Sequence(
                request,
                index,
                max_length=min(room, self.max_model_len),
                row=row,
                stop_ids=stop_ids,
                detokenizer=make_detokenizer(
                    self.tokenizer,
                    stop=params.stop or (),
                    include_stop=params.include_stop_str_in_output,
                    skip_special=params.skip_special_tokens,
                ),
            )
            if settings.needs_history:
                row.prompt_ids = ids
                row.output_ids = sequence.output_ids
            request.sequences.append(sequence)
        request.unfinished = params.n
        return request

    def _fresh_seed(self) -> int:
        if self._seed is None:
            return secrets.randbits(64)
        return choice_seed(self._seed, next(self._seeds_drawn))
