"""`LLM`: the Python API for whole batches, and for one stream, on the caller's own thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lpx.engine.embedding import check_dimensions, finish_embedding
from lpx.engine.engine import Engine
from lpx.engine.outputs import (
    CompletionOutput,
    EmbeddingOutput,
    EngineInfo,
    EngineStats,
    RequestDelta,
    RequestOutput,
    Timings,
)
from lpx.engine.sampling_params import SamplingParams
from lpx.engine.sequence import Request
from lpx.errors import InvalidRequestError
from lpx.options import EngineOptions
from lpx.speculative_config import SpeculativeConfig

PromptInput = str | Sequence[int] | Mapping[str, Any]  # {"prompt": str} or {"prompt_token_ids": [int, ...]}
Messages = list[dict[str, Any]]


class LLM:
    """A loaded model. Use it as a context manager, or call `close`, to give its memory and threads back.

    `model` is a path or a name in the model folder; the other arguments are those of `EngineOptions`. One call
    runs at a time; a second thread waits for the first.

    Raises what `Engine.load` raises.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        dtype: str = "auto",
        quantization: str | None = None,
        max_model_len: int | None = None,
        max_num_seqs: int = 64,
        max_num_batched_tokens: int = 512,
        kv_cache_memory: int | None = None,
        kv_cache_dtype: str = "auto",
        enable_prefix_caching: bool = True,
        itl_target_ms: float | None = None,
        threads: int | None = None,
        isa: str | None = None,
        seed: int | None = None,
        models_dir: str | Path | None = None,
        served_model_name: str | None = None,
        chat_template: str | None = None,
        tokenizer_pre: str | None = None,
        speculative_config: SpeculativeConfig | Mapping[str, Any] | str | None = None,
    ) -> None:
        options = EngineOptions(
            model=str(model),
            models_dir=None if models_dir is None else Path(models_dir),
            dtype=dtype,
            quantization=quantization,
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            kv_cache_memory=kv_cache_memory,
            kv_cache_dtype=kv_cache_dtype,
            enable_prefix_caching=enable_prefix_caching,
            itl_target_ms=itl_target_ms,
            threads=threads,
            isa=isa,
            seed=seed,
            served_model_name=served_model_name,
            chat_template=chat_template,
            tokenizer_pre=tokenizer_pre,
            speculative_config=SpeculativeConfig.parse(speculative_config),
        )
        self._take(Engine.load(options))

    @classmethod
    def from_engine(cls, engine: Engine) -> LLM:
        """An `LLM` that owns an engine which exists already."""
        llm = cls.__new__(cls)
        llm._take(engine)
        return llm

    def _take(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._owner: int | None = None  # thread that has its turn

    @property
    def info(self) -> EngineInfo:
        """What is really in use."""
        return self._engine.info

    def stats(self) -> EngineStats:
        return self._engine.stats()

    def generate(
        self,
        prompts: PromptInput | Sequence[PromptInput],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Complete prompts; one output a prompt, in their order, whatever the order of their ends.

        `prompts`: text, token ids, `{"prompt": …}`, `{"prompt_token_ids": …}`, or a list of these.
        `sampling_params`: one for all, or one a prompt. All are checked before anything runs: raises
        `InvalidRequestError`, and `LpxError` when the model fails on a request. Whatever ends the call, an interrupt
        included, no request stays behind.
        """
        inputs = _as_prompts(prompts)
        params = _as_params(sampling_params, len(inputs))
        texts = [prompt if isinstance(prompt, str) else None for prompt in inputs]
        with self._turn() as engine:
            requests = [engine.make_request(p, s) for p, s in zip(inputs, params, strict=True)]
            return self._run(engine, requests, texts, use_tqdm)

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation or a list of them; like `generate`. Raises `ChatTemplateError` too."""
        single = bool(messages) and isinstance(messages[0], Mapping)
        conversations: Any = [messages] if single or not messages else messages
        prompts = [
            self._engine.encode_chat(
                conversation,
                tools=tools,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                chat_template_kwargs=chat_template_kwargs,
            )
            for conversation in conversations
        ]
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm)

    def embed(
        self,
        prompts: PromptInput | Sequence[PromptInput],
        *,
        dimensions: int | None = None,
        normalize: bool = True,
        use_tqdm: bool = True,
    ) -> list[EmbeddingOutput]:
        """The embedding of each text: its hidden states, pooled as the model says (the mean, if it says nothing).

        `prompts` as for `generate`. With `normalize`, as OpenAI's are, embeddings have length 1, so that a dot product
        is their cosine. `dimensions` keeps so many of their first numbers. Raises `InvalidRequestError`.
        """
        inputs = _as_prompts(prompts)
        with self._turn() as engine:
            check_dimensions(dimensions, engine.hidden_size)
            requests = [engine.make_embedding_request(prompt) for prompt in inputs]
            pooled: dict[str, RequestDelta] = {}
            with _progress_bar(len(requests), use_tqdm) as progress:
                for delta in _deltas(engine, requests):
                    pooled[delta.request_id] = delta
                    progress.update()
            kind = engine.pooling.kind
        outputs = []
        for request in requests:
            delta = pooled[request.request_id]
            assert delta.pooled is not None
            vector = finish_embedding(
                delta.pooled, kind, len(request.prompt_ids), dimensions=dimensions, normalize=normalize
            )
            outputs.append(EmbeddingOutput(vector, request.prompt_ids, delta.timings))
        return outputs

    def stream(self, prompt: PromptInput, sampling_params: SamplingParams | None = None) -> Iterator[RequestDelta]:
        """Deltas of one request as they come. Leaving the loop early ends the request and frees its blocks."""
        (single,) = _as_prompts([prompt])
        with self._turn() as engine:
            request = engine.make_request(single, sampling_params or SamplingParams())
            engine.add(request)
            while request.unfinished:
                for delta in engine.step():
                    if delta.error is not None:
                        raise delta.error
                    yield delta

    def encode(self, text: str) -> list[int]:
        """Token ids of a plain prompt."""
        return self._engine.encode_prompt(text)

    def encode_chat(self, messages: Messages, **options: Any) -> list[int]:
        """Token ids of a conversation; options as of `chat`."""
        return self._engine.encode_chat(messages, **options)

    def close(self) -> None:
        """Free weights, KV cache and threads. Safe to call twice."""
        if self._owner == threading.get_ident():  # inside an open stream, which ends by this
            self._engine.close()
            return
        with self._lock:
            self._engine.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _turn(self) -> Iterator[Engine]:
        """The engine, for one call at a time; nothing stays behind in it, whatever ends the call."""
        me = threading.get_ident()
        if self._owner == me:
            raise InvalidRequestError("a stream of this LLM is open on this thread: finish or close it first")
        with self._lock:
            self._owner = me
            try:
                self._engine.check_open()
                yield self._engine
            except (Exception, GeneratorExit):
                self._engine.abort_all()
                raise
            except BaseException:  # an interrupt can strike in the middle of the book-keeping
                self._engine.reset()
                raise
            finally:
                self._owner = None

    def _run(
        self, engine: Engine, requests: list[Request], texts: list[str | None], use_tqdm: bool
    ) -> list[RequestOutput]:
        collected: dict[str, list[RequestDelta]] = {request.request_id: [] for request in requests}
        open_choices = {request.request_id: request.params.n for request in requests}
        with _progress_bar(len(requests), use_tqdm) as progress:
            for delta in _deltas(engine, requests):
                collected[delta.request_id].append(delta)
                if delta.finish_reason is not None:
                    open_choices[delta.request_id] -= 1
                    progress.update(not open_choices[delta.request_id])
        return [
            _collect(request, text, collected[request.request_id])
            for request, text in zip(requests, texts, strict=True)
        ]


def _deltas(engine: Engine, requests: list[Request]) -> Iterator[RequestDelta]:
    """Of all requests, until every one has ended; raises the first error of any."""
    for request in requests:
        engine.add(request)
    while engine.has_work:
        for delta in engine.step():
            if delta.error is not None:
                raise delta.error
            yield delta


def _collect(request: Request, text: str | None, deltas: list[RequestDelta]) -> RequestOutput:
    """Join the deltas of a finished request."""
    choices = [CompletionOutput(index) for index in range(request.params.n)]
    texts: list[list[str]] = [[] for _ in choices]
    timings: list[Timings] = []
    for delta in deltas:
        choice = choices[delta.index]
        texts[delta.index].append(delta.text)
        choice.token_ids.extend(delta.token_ids)
        if delta.logprobs is not None:
            if choice.logprobs is None:
                choice.logprobs = []
            choice.logprobs.extend(delta.logprobs)
        if delta.finish_reason is not None:
            choice.finish_reason = delta.finish_reason
            choice.stop_reason = delta.stop_reason
        if delta.timings is not None:
            timings.append(delta.timings)
    for choice, parts in zip(choices, texts, strict=True):
        choice.text = "".join(parts)
        if choice.logprobs is not None:
            choice.cumulative_logprob = sum(
                entry[token_id].logprob for entry, token_id in zip(choice.logprobs, choice.token_ids, strict=True)
            )
    return RequestOutput(
        request_id=request.request_id,
        prompt=text,
        prompt_token_ids=request.prompt_ids,
        outputs=choices,
        prompt_logprobs=request.prompt_logprobs,
        finished=True,
        num_cached_tokens=request.cached_tokens or 0,
        timings=request.timings(),
    )


def _as_prompts(prompts: PromptInput | Sequence[PromptInput]) -> list[str | Sequence[int]]:
    """One form for the many that users give."""
    if isinstance(prompts, (str, Mapping)):
        return [_as_prompt(prompts)]
    items = list(prompts)
    if items and not isinstance(items[0], (str, Mapping, list, tuple)) and not hasattr(items[0], "__array__"):
        return [_as_prompt(items)]
    if items and hasattr(items[0], "__array__") and getattr(items[0], "ndim", 1) == 0:
        return [_as_prompt(items)]
    return [_as_prompt(item) for item in items]


def _as_prompt(prompt: Any) -> str | Sequence[int]:
    if isinstance(prompt, Mapping):
        if "prompt_token_ids" in prompt:
            return _as_prompt(prompt["prompt_token_ids"])
        if "prompt" in prompt:
            return _as_prompt(prompt["prompt"])
        raise InvalidRequestError(
            f"a prompt given as a dict needs the key 'prompt' or 'prompt_token_ids', not {sorted(prompt)}",
            param="prompt",
        )
    if isinstance(prompt, str):
        return prompt
    return prompt.tolist() if hasattr(prompt, "tolist") else prompt  # type: ignore[no-any-return]


def _as_params(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
    if params is None:
        return [SamplingParams()] * count
    if isinstance(params, SamplingParams):
        return [params] * count
    if len(params) != count:
        raise InvalidRequestError(
            f"{len(params)} sampling params were given for {count} prompts: give one for all, or one a prompt",
            param="sampling_params",
        )
    return list(params)


def _progress_bar(total: int, shown: bool) -> Any:
    from tqdm.auto import tqdm  # type: ignore[import-untyped]

    return tqdm(total=total, desc="Prompts", unit="prompt", dynamic_ncols=True, disable=not shown)
