"""From the speculative config to drafters; loads the draft model."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lpx.engine.drafting.drafter import Drafter
from lpx.engine.drafting.ngram import NgramDrafter
from lpx.engine.drafting.odds import LEAST_WORTH
from lpx.engine.drafting.suffix import SuffixDrafter
from lpx.errors import MemoryLimitError
from lpx.options import parse_kv_cache_dtype

if TYPE_CHECKING:
    from lpx.engine.drafting.draft_model import DraftModelDrafter
    from lpx.model.tokenizer import Tokenizer
    from lpx.options import EngineOptions
    from lpx.runtime.cpu.executor import CpuExecutor
    from lpx.runtime.options import RuntimeOptions
    from lpx.speculative_config import SpeculativeConfig


def load_drafters(
    config: SpeculativeConfig,
    options: EngineOptions,
    runtime_options: RuntimeOptions,
    executor: CpuExecutor,
    tokenizer: Tokenizer,
    *,
    available: int,
) -> list[Drafter]:
    """Drafters in order of preference. `available`: bytes that a draft model may take.

    Raises what loading a model raises, and `ConfigError` for a draft model of another vocabulary.
    """
    drafters: list[Drafter] = []
    if config.method == "ngram":
        drafters.append(NgramDrafter(config.prompt_lookup_min, config.prompt_lookup_max, config.most))
    if config.method in ("auto", "suffix"):
        # When drafts are judged by their cost there is no other bound on their chances.
        bound = {"least_chance": config.suffix_decoding_min_token_prob}
        if config.method == "auto":
            bound = {"least_worth": LEAST_WORTH}
        drafters.append(SuffixDrafter(config.suffix_decoding_max_cached_requests, **bound))
    if config.model is not None:
        drafters.append(
            _load_draft_model(config.model, config.most, options, runtime_options, executor, tokenizer, available)
        )
    return drafters


def _load_draft_model(
    model: str,
    most: int,
    options: EngineOptions,
    runtime_options: RuntimeOptions,
    executor: CpuExecutor,
    tokenizer: Tokenizer,
    available: int,
) -> DraftModelDrafter:
    from lpx.engine.drafting.draft_model import DraftModelDrafter, check_same_vocabulary
    from lpx.model.files import open_model, resolve_model
    from lpx.model.models_dir import models_dir
    from lpx.model.tokenizer import load_tokenizer
    from lpx.runtime.cpu.executor import CpuExecutor
    from lpx.runtime.memory import native_config, plan_memory

    path = resolve_model(model, models_dir(options.models_dir))
    with open_model(path) as files:
        draft_tokenizer = load_tokenizer(files, pre_tokenizer=options.tokenizer_pre)
        check_same_vocabulary(tokenizer, draft_tokenizer, files.name)
        files.forget_tokenizer_source()
        max_model_len = min(executor.max_model_len, files.config.max_position)
        # As many positions as the large model has, so that the pools run full together.
        kv_types = parse_kv_cache_dtype(runtime_options.kv_cache_dtype)
        kv_bytes = executor.info.num_blocks * native_config(files.config).kv_block_bytes(*kv_types)
        draft_options = replace(
            runtime_options, quantization=None, max_model_len=max_model_len, kv_cache_memory=kv_bytes
        )
        try:
            plan = plan_memory(files, draft_options, available=available)
        except MemoryLimitError as error:
            raise MemoryLimitError(f"the draft model does not fit beside the model: {error}") from error
        draft_executor = CpuExecutor.load(files, draft_options, plan=plan)
        return DraftModelDrafter(
            draft_executor,
            most=most,
            max_model_len=max_model_len,
            max_rows=runtime_options.max_num_batched_tokens,
            vocab_size=tokenizer.vocab_size,
        )
