"""From a schema, expression or grammar to what sequences can follow, compiled by `llguidance` and kept for the next.

Compiling is for threads that may take their time: never for the engine's, nor for an event loop. It is bounded by the
size of the text and by the work that the parser may do, at the beginning and in each step.
"""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from lpx import _native
from lpx.engine.structured.multiples import problem_with_multiples
from lpx.engine.structured.params import JSON_FORM, StructuredOutputsParams
from lpx.errors import InvalidRequestError

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer
    from numpy.typing import NDArray

_MOST_KEPT = 64  # grammars
_SHOWN = 300  # characters of a message of the library
_UNSUPPORTED = re.compile(r"Unimplemented keys: (\[.*?\])")


class GrammarVocabulary(Protocol):
    """What the compiler needs of a `Tokenizer`."""

    @property
    def vocab_size(self) -> int: ...

    def encode_continuation(self, text: str) -> list[int]: ...

    def is_control(self, token_id: int) -> bool: ...

    def vocabulary_bytes(self) -> list[bytes]: ...


class CompiledGrammar:
    """A grammar for one model, before its first token. Safe to use from several threads."""

    def __init__(self, matcher: LLMatcher, first_forced: list[int], first_mask: NDArray[np.uint32]) -> None:
        self.first_forced = first_forced  # ids that every text begins with
        self.first_mask = first_mask  # uint32 [1, words]
        self._matcher = matcher
        self._lock = threading.Lock()

    def begin(self) -> LLMatcher:
        """A matcher of one's own, at the beginning."""
        with self._lock:
            return self._matcher.deep_copy()


class GrammarCompiler:
    """Compiles for one model. `compile` may be called from any thread; one thread compiles at a time."""

    def __init__(self, tokenizer: GrammarVocabulary, *, vocab_size: int, eos_token_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size  # rows of logits
        self._eos_token_ids = eos_token_ids
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, str], CompiledGrammar] = OrderedDict()
        self._ll_tokenizer: LLTokenizer | None = None

    def compile(self, params: StructuredOutputsParams) -> CompiledGrammar:
        """The grammar that `params` ask for. Raises `InvalidRequestError` that says what is wrong with it."""
        key = (params.kind, params.text)
        with self._lock:
            grammar = self._kept.get(key)
            if grammar is None:
                grammar = self._kept[key] = self._compile(params)
                while len(self._kept) > _MOST_KEPT:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(key)
        return grammar

    def forget(self, grammar: CompiledGrammar) -> None:
        """Compile it anew when it is asked for again: one of its sequences ran into a limit."""
        with self._lock:
            for key, kept in list(self._kept.items()):
                if kept is grammar:
                    del self._kept[key]

    def _compile(self, params: StructuredOutputsParams) -> CompiledGrammar:
        from llguidance import LLMatcher

        if self._ll_tokenizer is None:
            self._ll_tokenizer = self._make_tokenizer()
        try:
            source = _source(params)
        except (ValueError, RecursionError) as error:
            raise _refuse(params, str(error)) from None
        if (problem := problem_with_multiples(params)) is not None:
            raise _refuse(params, problem)
        limits = _limits()
        matcher = LLMatcher(self._ll_tokenizer, source, log_level=0, limits=limits)
        if matcher.is_error():
            failed, messages = LLMatcher.validate_grammar_with_warnings(source, self._ll_tokenizer, limits=limits)
            raise _refuse(params, messages[0] if failed else matcher.get_error())
        first = matcher.deep_copy()
        forced = first.compute_ff_tokens()
        mask = np.zeros((1, -(-self._vocab_size // 32)), dtype=np.uint32)
        if (problem := fill_mask(first, forced, mask)) is not None:
            raise _refuse(params, problem)
        return CompiledGrammar(matcher, forced, mask)

    def _make_tokenizer(self) -> LLTokenizer:
        from llguidance import LLTokenizer, TokenizerWrapper

        vocabulary = TokenizerWrapper(_Vocabulary(self._tokenizer, self._vocab_size, self._eos_token_ids))
        made = LLTokenizer(vocabulary, n_vocab=self._vocab_size, eos_token=sorted(self._eos_token_ids))
        vocabulary.tokens = ()  # its own copy is enough
        _native.trim_heap()
        return made


def fill_mask(matcher: LLMatcher, forced: Sequence[int], mask: NDArray[np.uint32]) -> str | None:
    """Write what may come next into `mask`, uint32 [1, words]; `forced` is what must. Returns what is wrong, if so."""
    if forced:
        mask.fill(0)
        mask[0, forced[0] // 32] = 1 << forced[0] % 32
        return None
    matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
    if matcher.is_error():
        return matcher.get_error().partition("\n")[0]
    return None if mask.any() else "no token of the model fits"


class _Vocabulary:
    """A tokenizer as `llguidance` reads it."""

    bos_token_id = None

    def __init__(self, tokenizer: GrammarVocabulary, vocab_size: int, eos_token_ids: frozenset[int]) -> None:
        self.eos_token_id = min(eos_token_ids)
        tokens = tokenizer.vocabulary_bytes()[:vocab_size]
        self.special_token_ids = [i for i in range(len(tokens)) if tokenizer.is_control(i) or i in eos_token_ids]
        self.tokens = tokens + [b""] * (vocab_size - len(tokens))
        self._encode = tokenizer.encode_continuation

    def __call__(self, text: bytes | str) -> list[int]:
        return self._encode(text.decode() if isinstance(text, bytes) else text)


def _limits() -> LLParserLimits:
    from llguidance import LLParserLimits

    return LLParserLimits(
        max_grammar_size=100_000,
        initial_lexer_fuel=1_000_000,  # 20 ms
        step_lexer_fuel=100_000,  # 7 ms, which others wait for
        step_max_items=30_000,  # 1.5 ms
        max_items_in_row=1000,
        max_lexer_states=50_000,  # of up to 2 KB
        verbose_errors=False,  # errors must not repeat what was generated
    )


def _source(params: StructuredOutputsParams) -> str:
    """The grammar in the library's own form. Raises ValueError for a GBNF grammar that cannot be read."""
    from llguidance import LLMatcher, grammar_from

    if params.kind == "json":
        return LLMatcher.grammar_from_json_schema(params.text, defaults=JSON_FORM)
    if params.kind == "regex":
        return LLMatcher.grammar_from_regex(params.text)
    if params.kind == "lark":
        return LLMatcher.grammar_from_lark(params.text)
    return grammar_from("grammar", params.text)


def _refuse(params: StructuredOutputsParams, message: str) -> InvalidRequestError:
    unsupported = _UNSUPPORTED.search(message)
    if unsupported is not None:
        text = f"the JSON schema uses keywords that are not supported: {', '.join(json.loads(unsupported[1]))}"
    else:
        what = {"json": "the JSON schema", "regex": "the regular expression"}.get(params.kind, "the grammar")
        lines = message.strip().splitlines() or ["it cannot be used"]
        # Of a message about an expression, the line that says what is wrong.
        reason = next((line for line in lines if line.startswith("error: ")), lines[0]).removeprefix("error: ")
        text = f"{what} cannot be used: {reason}"
    return InvalidRequestError(f"{params.param}: {text[:_SHOWN]}", param=params.param)
