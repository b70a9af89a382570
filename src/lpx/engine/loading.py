"""From options to a running engine: find the model, read its text parts, load the weights, put the parts together."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from lpx.errors import ConfigError
from lpx.options import DTYPES
from lpx.regular_file import read_bounded

# A tokenizer of so many tokens takes 200 MB while it is built, and half of it afterwards: it is finished before the
# weights are read.
_LARGE_VOCABULARY = 200_000
_MOST_TEMPLATE_BYTES = 1 << 20

if TYPE_CHECKING:
    from lpx.engine.drafting.speculation import Speculation
    from lpx.engine.engine import Engine
    from lpx.engine.kv_cache import KVCache
    from lpx.model.chat_template import ChatTemplate
    from lpx.model.files import ModelFiles
    from lpx.model.tokenizer import Tokenizer
    from lpx.options import EngineOptions
    from lpx.runtime.cpu.executor import CpuExecutor
    from lpx.runtime.options import RuntimeOptions


def load_engine(options: EngineOptions, progress: Callable[[int, int], None] | None = None) -> Engine:
    """See `Engine.load`."""
    with _collector_paused():
        return _load_engine(options, progress)


def _load_engine(options: EngineOptions, progress: Callable[[int, int], None] | None) -> Engine:
    from lpx.model.files import resolve_model
    from lpx.model.in_use import ModelHold
    from lpx.model.models_dir import models_dir

    path = resolve_model(options.model, models_dir(options.models_dir))
    hold = ModelHold(path)
    try:
        engine = _load_files(path, options, progress)
    except BaseException:
        hold.release()
        raise
    engine.hold = hold
    return engine


def _load_files(path: Path, options: EngineOptions, progress: Callable[[int, int], None] | None) -> Engine:
    from lpx.engine.engine import Engine
    from lpx.model.files import open_model
    from lpx.model.models_dir import version_of
    from lpx.runtime.cpu.executor import CpuExecutor
    from lpx.runtime.memory import available_bytes, plan_memory
    from lpx.runtime.options import RuntimeOptions

    with open_model(path, max_model_len=options.max_model_len) as files:
        dtype = _check_dtype(files, options.dtype)
        max_position = files.config.max_position
        if options.max_model_len is not None and options.max_model_len > max_position:
            raise ConfigError(
                f"max_model_len {options.max_model_len} is more than the {max_position} positions that the model "
                f"{files.name!r} was made for"
            )
        runtime_options = RuntimeOptions(
            threads=options.threads,
            isa=options.isa,
            quantization=options.quantization,
            kv_cache_memory=options.kv_cache_memory,
            kv_cache_dtype=options.kv_cache_dtype,
            max_model_len=options.max_model_len,
            max_num_seqs=options.max_num_seqs,
            max_num_batched_tokens=options.max_num_batched_tokens,
        )
        available = available_bytes()
        # Refuses in milliseconds; a large tokenizer takes a second.
        plan = plan_memory(files, runtime_options, available=available)
        text_parts = _TextParts(files, options)
        try:
            executor = CpuExecutor.load(files, runtime_options, progress, plan=plan)
        finally:
            text_parts.wait()
        try:
            tokenizer, chat_template = text_parts.result()
            make_speculation = _speculation_maker(
                options, runtime_options, executor, tokenizer, available - plan.total_bytes
            )
            engine = Engine(
                executor,
                tokenizer,
                chat_template=chat_template,
                model_name=options.served_model_name or files.name,
                architecture=files.config.architecture,
                pooling=files.pooling,
                dtype=dtype,
                vocab_size=files.config.vocab_size,
                eos_token_ids=files.eos_token_ids,
                max_model_len=executor.max_model_len,
                max_num_seqs=options.max_num_seqs,
                max_num_batched_tokens=options.max_num_batched_tokens,
                max_waiting=options.max_waiting,
                enable_prefix_caching=options.enable_prefix_caching,
                itl_target_ms=options.itl_target_ms,
                seed=options.seed,
                make_speculation=make_speculation,
                model_version=version_of(path),
            )
            if options.measure_steps:
                engine.measure_steps()
            return engine
        except BaseException:
            executor.close()
            raise


def _speculation_maker(
    options: EngineOptions,
    runtime_options: RuntimeOptions,
    executor: CpuExecutor,
    tokenizer: Tokenizer,
    available: int,
) -> Callable[[KVCache], Speculation] | None:
    """What makes the engine's speculation as its config has it; None when it is off."""
    from lpx.engine.drafting.loading import load_drafters
    from lpx.engine.drafting.speculation import Speculation
    from lpx.engine.drafting.step_costs import StepCosts
    from lpx.speculative_config import SpeculativeConfig

    config = SpeculativeConfig.parse(options.speculative_config)
    if config.method == "off":
        return None
    drafters = load_drafters(config, options, runtime_options, executor, tokenizer, available=available)
    return lambda kv_cache: Speculation(
        drafters,
        most=config.most,
        judging=config.method == "auto",
        costs=StepCosts(executor.info.isa),
        kv_cache=kv_cache,
        max_rows=options.max_num_batched_tokens,
    )


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Loading makes no garbage in cycles, but objects by the hundred thousand, which set the collector off in vain."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _TextParts:
    """Tokenizer and chat template, built by a thread while the weights are packed, which leaves Python free.

    Those of a large vocabulary are built at once, and what that raises is raised here.
    """

    def __init__(self, files: ModelFiles, options: EngineOptions) -> None:
        self._files = files
        self._options = options
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        if files.config.vocab_size < _LARGE_VOCABULARY:
            self._thread = threading.Thread(target=self._build, name="lpx-tokenizer")
            self._thread.start()
        else:
            self._build()
            self.result()

    def wait(self) -> None:
        if self._thread is not None:
            self._thread.join()

    def result(self) -> tuple[Tokenizer, ChatTemplate | None]:
        """Wait for both; raises what building them raised."""
        self.wait()
        if self._error is not None:
            raise self._error
        return self._tokenizer, self._chat_template

    def _build(self) -> None:
        from lpx import _native
        from lpx.model.tokenizer import load_tokenizer

        try:
            self._tokenizer = load_tokenizer(self._files, pre_tokenizer=self._options.tokenizer_pre)
            self._files.forget_tokenizer_source()
            self._chat_template = _load_chat_template(self._files, self._tokenizer, self._options.chat_template)
        except BaseException as error:
            self._error = error
        # What building took and freed would else count beside the weights, at the peak.
        _native.trim_heap()


def _load_chat_template(files: ModelFiles, tokenizer: Tokenizer, given: str | None) -> ChatTemplate | None:
    """The template asked for, else the model's own; None when there is none. Broken ones are found here."""
    from lpx.model.chat_template import ChatTemplate

    source = files.chat_template
    if given is not None:
        # A template holds braces; a path does not.
        if "{" in given:
            source = given
        else:
            try:
                source = read_bounded(Path(given), _MOST_TEMPLATE_BYTES).decode("utf-8")
            except (OSError, UnicodeError) as error:
                reason = error.strerror if isinstance(error, OSError) else error
                raise ConfigError(f"the chat template {given!r} cannot be read: {reason}") from error
    return ChatTemplate(source, tokenizer) if source else None


def _check_dtype(files: ModelFiles, dtype: str) -> str:
    """The type that unquantized weights run in: the file's own. Another one is refused, not ignored."""
    wanted = DTYPES[dtype]
    if wanted is None:
        return "auto"
    held = sorted(files.weight_types, key=lambda name: -files.weight_types[name])
    # Norms and biases are F32 in every kind of file; what counts is the type of the matrices.
    if held and held[0] == wanted:
        return dtype
    raise ConfigError(
        f"dtype {dtype!r} cannot be honoured: the weights of {files.name!r} are {', '.join(held)} and run as they are. "
        "Use dtype 'auto', and quantization to change the precision of safetensors"
    )
