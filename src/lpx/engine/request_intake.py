"""From what a client gives to a request that is sound: texts and conversations to ids, checks, seeds, sequences.

Everything here may be called from any thread; nothing here changes the engine.
"""

from __future__ import annotations

import itertools
import secrets
import threading
from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from lpx.engine.detokenizer import Detokenizer, PieceDetokenizer
from lpx.engine.request_checks import check_length, check_params_ids, check_prompt_length, checked_prompt_ids
from lpx.engine.sampling_params import SamplingParams, choice_seed
from lpx.engine.sequence import Request, Sequence
from lpx.errors import ChatTemplateError, ContextLengthError, InvalidRequestError
from lpx.model.pooling import Pooling
from lpx.runtime.step import SequenceInput

if TYPE_CHECKING:
    from lpx.engine.structured.compiler import CompiledGrammar, GrammarCompiler
    from lpx.engine.structured.position import GrammarPosition
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
        pooling: Pooling | None = None,
        hidden_size: int = 0,
        logit_rows: int | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.chat_template = chat_template
        self.vocab_size = vocab_size  # ids that a client may name
        self.eos_token_ids = eos_token_ids
        self.max_model_len = max_model_len
        self.pooling = pooling or Pooling()
        self.hidden_size = hidden_size  # numbers of an embedding
        self._model_name = model_name
        self._seed = seed
        self._seeds_drawn = itertools.count(1)
        self._ids = itertools.count(1)
        self._longest_token: int | None = None  # bytes; found when a text is long enough to ask
        self._logit_rows = logit_rows or vocab_size  # ids that the model scores
        self._grammars: GrammarCompiler | None = None  # made when the first grammar is asked for
        self._grammars_lock = threading.Lock()

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

    def compile_grammar(self, params: SamplingParams) -> CompiledGrammar | None:
        """The grammar of `params.structured_outputs`, for `make_request`; takes milliseconds when it is new.

        Raises `InvalidRequestError` for what is wrong with it.
        """
        if params.structured_outputs is None:
            return None
        with self._grammars_lock:
            if self._grammars is None:
                from lpx.engine.structured.compiler import GrammarCompiler

                self._grammars = GrammarCompiler(
                    self.tokenizer, vocab_size=self._logit_rows, eos_token_ids=self.eos_token_ids
                )
        return self._grammars.compile(params.structured_outputs)

    def make_request(
        self,
        prompt: Prompt,
        params: SamplingParams,
        request_id: str | None = None,
        grammar: CompiledGrammar | None = None,
    ) -> Request:
        """A validated request, ready for `add`. Without the `grammar` of its params, that is compiled here."""
        ids = self.validate(prompt, params)
        grammar = grammar or self.compile_grammar(params)
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
                grammar=None if grammar is None else _begin(grammar, params),
            )
            if settings.needs_history and not params.windowed:
                row.prompt_ids = ids
                row.output_ids = sequence.output_ids
            request.sequences.append(sequence)
        request.unfinished = params.n
        return request

    def encode_text(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Token ids of a text, with (`add_special`) what the model wants before it; with `parse_special` the spelling
        of a control token means that token. To look at: a prompt that is to run is encoded by `encode_prompt`."""
        self._check_text_length(text)
        if not parse_special:
            return self.tokenizer.encode(text, add_special=add_special)
        return self.tokenizer.encode_segments(self.tokenizer.split_markers(text), add_special=add_special)

    def encode_for_embedding(self, text: str) -> list[int]:
        """Token ids of a text to embed, with what the model wants before and behind it."""
        return [*self.encode_prompt(text), *self.pooling.end_ids]

    def make_embedding_request(
        self, prompt: Prompt, params: SamplingParams | None = None, request_id: str | None = None
    ) -> Request:
        """A validated request whose last delta has the sum of hidden states; of `params` only what is not sampling
        counts (salt, priority, latency)."""
        if isinstance(prompt, str):
            ids = self.encode_for_embedding(prompt)
            if not ids:
                raise InvalidRequestError("input is empty, and the model adds no token of its own", param="input")
        else:
            ids = checked_prompt_ids(prompt, self.vocab_size, param="input")
        check_prompt_length(ids, self.max_model_len, param="input")
        request = Request(request_id or f"request-{next(self._ids)}", ids, params or SamplingParams(), monotonic_ns())
        request.pooling = self.pooling.kind
        row = SequenceInput((), 0, ())
        sequence = Sequence(
            request, 0, max_length=len(ids), row=row, stop_ids=frozenset(), detokenizer=Detokenizer(self.tokenizer)
        )
        request.sequences.append(sequence)
        request.unfinished = 1
        return request

    def _forget_grammar(self, grammar: CompiledGrammar) -> None:
        if self._grammars is not None:
            self._grammars.forget(grammar)

    def _fresh_seed(self) -> int:
        if self._seed is None:
            return secrets.randbits(64)
        return choice_seed(self._seed, next(self._seeds_drawn))


def _begin(grammar: CompiledGrammar, params: SamplingParams) -> GrammarPosition:
    from lpx.engine.structured.position import GrammarPosition

    # Every token that is reported with its log-probability needs a row of its own.
    return GrammarPosition(grammar, hasty=params.logprobs is None)
