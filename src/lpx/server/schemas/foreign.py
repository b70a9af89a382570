"""Fields that OpenAI, vLLM or llama.cpp know and LPX does not have: accepted while they ask for what happens anyway."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def _one_of(*neutral: Any) -> Callable[[Any], bool]:
    # 1 == True in Python, but not in a request.
    return lambda value: any(type(value) is type(item) and value == item for item in neutral)


def _number(*neutral: float) -> Callable[[Any], bool]:
    return lambda value: type(value) in (int, float) and value in neutral


def _any_number(value: Any) -> bool:
    return type(value) in (int, float)


def _anything(value: Any) -> bool:
    return True


NEUTRAL: dict[str, tuple[Callable[[Any], bool], str]] = {
    # OpenAI
    "user": (_anything, ""),
    "metadata": (_anything, ""),
    "safety_identifier": (_anything, ""),
    "prompt_cache_key": (_anything, ""),
    "prompt_cache_retention": (_anything, ""),
    "prediction": (_anything, ""),
    "parallel_tool_calls": (_one_of(True, False), "must be true or false"),
    "store": (_one_of(False), "answers are not stored here"),
    "service_tier": (_one_of("auto", "default", "standard_only"), "there is one service tier here"),
    "max_tool_calls": (_one_of(), "no tool runs here"),
    "suffix": (_one_of(""), "inserting before a suffix is not supported"),
    "modalities": (_one_of(["text"]), "only text is generated"),
    "audio": (_one_of(), "only text is generated"),
    "tools": (_one_of([]), "tools need a chat: /v1/chat/completions"),
    "tool_choice": (_one_of("none", "auto"), "tools need a chat: /v1/chat/completions"),
    "functions": (_one_of([]), "functions are not supported; use tools"),
    "function_call": (_one_of("none", "auto"), "functions are not supported; use tools"),
    "reasoning_effort": (_one_of(), "not supported; a model's own flags go into chat_template_kwargs"),
    "verbosity": (_one_of(), "not supported"),
    "web_search_options": (_one_of(), "not supported"),
    # Anthropic
    "cache_control": (_anything, ""),  # what was computed is kept anyway
    "container": (_one_of(), "nothing runs here"),
    "inference_geo": (_one_of(), "not supported"),
    "speed": (_one_of("standard"), "there is one speed here"),
    # vLLM
    "use_beam_search": (_one_of(False), "beam search is not supported"),
    "length_penalty": (_number(1), "beam search is not supported"),
    "early_stopping": (_one_of(False), "beam search is not supported"),
    "spaces_between_special_tokens": (_one_of(True), "not supported"),
    "add_special_tokens": (_one_of(False), "the chat template decides what stands before a conversation"),
    "echo": (_one_of(False), "the conversation is not repeated here"),
    "best_of": (_number(1), "choices are not ranked; use n"),
    "logits_processors": (_one_of(), "not supported"),
    "vllm_xargs": (_one_of({}), "not supported"),
    "kv_transfer_params": (_one_of(), "not supported"),
    "mm_processor_kwargs": (_one_of(), "this model reads text only"),
    "return_tokens_as_token_ids": (_one_of(False), "not supported; return_token_ids gives the ids"),
    "request_id": (_one_of(), "send it as the header X-Request-Id"),
    "bad_words": (_one_of([]), "not supported; use logit_bias"),
    "allowed_token_ids": (_one_of(), "not supported; use logit_bias"),
    "chat_template": (_one_of(), "a request cannot bring its own chat template; give it to the server"),
    "documents": (_one_of([]), "not supported"),
    # llama.cpp
    "n_keep": (_any_number, "must be a number"),  # the context is never shifted
    "n_discard": (_any_number, "must be a number"),
    "min_keep": (_number(0), "not supported"),
    "id_slot": (_number(-1), "there are no slots here; what was computed is found by its content"),
    "return_progress": (_one_of(False), "the progress of a prompt is not reported"),
    "return_tokens": (_one_of(False), "return_token_ids gives the ids"),
    "post_sampling_probs": (_one_of(False), "log-probabilities are the model's own"),
    "response_fields": (_one_of([]), "answers always have all their fields"),
    "lora": (_one_of([]), "adapters are not supported"),
    "n_indent": (_number(0), "not supported"),
    "top_n_sigma": (_number(-1), "top-n-sigma is not supported"),
    "adaptive_target": (_number(-1), "adaptive-p is not supported"),
    "adaptive_decay": (_any_number, "must be a number"),  # means nothing without adaptive_target
    "mirostat_tau": (_any_number, "must be a number"),  # nor these without what they belong to
    "mirostat_eta": (_any_number, "must be a number"),
    "dynatemp_exponent": (_any_number, "must be a number"),
    "dry_base": (_any_number, "must be a number"),
    "dry_allowed_length": (_any_number, "must be a number"),
    "dry_penalty_last_n": (_any_number, "must be a number"),
    "dry_sequence_breakers": (_anything, ""),
    "xtc_threshold": (_any_number, "must be a number"),
    "typical_p": (_number(1), "locally typical sampling is not supported"),
    "mirostat": (_number(0), "mirostat is not supported"),
    "dry_multiplier": (_number(0), "DRY is not supported"),
    "xtc_probability": (_number(0), "XTC is not supported"),
    "dynatemp_range": (_number(0), "a dynamic temperature is not supported"),
    "samplers": (_one_of(), "the order of samplers is fixed"),
}
