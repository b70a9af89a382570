"""A real model through the whole engine: what it says, and that bits do not depend on company, chunks or threads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lpx.engine.llm import LLM
from lpx.engine.outputs import RequestOutput
from lpx.engine.sampling_params import SamplingParams
from lpx.errors import ConfigError, MemoryLimitError

pytestmark = pytest.mark.model

SENTENCES = [
    "The capital of France is",
    "def quicksort(items):\n    if len(items) <= 1:\n        return items\n",
    "Once upon a time, in a village at the foot of a mountain, there lived an old clockmaker who",
    "1, 1, 2, 3, 5, 8,",
    "今天天气很好，",
    "Dear Sir or Madam,\n\nI am writing to",
]
# Thirteen prompts, from 5 to some 300 tokens.
PROMPTS = [(SENTENCES[number % 6] + " ") * (1 + number * number // 10) for number in range(13)]
SAMPLED = SamplingParams(temperature=0.8, top_p=0.95, seed=42, max_tokens=12, logprobs=20, ignore_eos=True)
GREEDY = SamplingParams(temperature=0, max_tokens=12, logprobs=0, ignore_eos=True)


@dataclass(frozen=True)
class Answer:
    """Everything of a choice that the invariants speak of; log-probabilities stand for the bits of the logits."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[tuple[tuple[int, float], ...], ...]

    @classmethod
    def of(cls, output: RequestOutput) -> Answer:
        (choice,) = output.outputs
        return cls(
            choice.text,
            tuple(choice.token_ids),
            tuple(tuple((i, entry.logprob) for i, entry in at.items()) for at in choice.logprobs or ()),
        )


def answers(llm: LLM, prompts: list[str], params: SamplingParams = SAMPLED) -> list[Answer]:
    return [Answer.of(output) for output in llm.generate(prompts, params, use_tqdm=False)]


def load(path: Path, **options: Any) -> LLM:
    # Without the cache, so that what is compared has been computed twice.
    return LLM(path, **{"max_model_len": 512, "threads": 2, "enable_prefix_caching": False, **options})


@pytest.fixture(scope="module")
def llm(smollm2_path: Path) -> Iterator[LLM]:
    with load(smollm2_path) as llm:
        yield llm


@pytest.fixture(scope="module")
def alone(llm: LLM) -> list[Answer]:
    """Each prompt by itself, in one piece, on two threads."""
    return [answers(llm, [prompt])[0] for prompt in PROMPTS]


def test_model_knows_the_capital_of_france(llm: LLM) -> None:
    (output,) = llm.generate("The capital of France is", SamplingParams(temperature=0, max_tokens=4), use_tqdm=False)
    assert "Paris" in output.outputs[0].text
    assert output.timings is not None
    assert output.timings.decode_tokens_per_second > 0


def test_chat_ends_at_the_end_of_the_turn(llm: LLM) -> None:
    messages = [{"role": "user", "content": "What is the capital of France? Answer in one short sentence."}]
    (output,) = llm.chat(messages, SamplingParams(temperature=0, max_tokens=64), use_tqdm=False)
    (choice,) = output.outputs
    assert "Paris" in choice.text
    assert choice.finish_reason == "stop"
    assert "<|" not in choice.text


def test_batch_of_thirteen_changes_no_bit(llm: LLM, alone: list[Answer]) -> None:
    assert answers(llm, PROMPTS) == alone


def test_chunks_of_seven_change_no_bit(smollm2_path: Path, alone: list[Answer]) -> None:
    with load(smollm2_path, max_num_seqs=2, max_num_batched_tokens=7) as llm:
        assert answers(llm, PROMPTS[:9]) == alone[:9]


@pytest.mark.parametrize("threads", [1, 3])
def test_number_of_threads_changes_no_bit(smollm2_path: Path, alone: list[Answer], threads: int) -> None:
    with load(smollm2_path, threads=threads) as llm:
        assert answers(llm, PROMPTS[:7]) == alone[:7]


def test_preemption_changes_no_bit(smollm2_path: Path, llm: LLM) -> None:
    params = SamplingParams(temperature=0.8, seed=7, max_tokens=90, logprobs=5, ignore_eos=True)
    undisturbed = [answers(llm, [sentence], params)[0] for sentence in SENTENCES[:4]]
    block_bytes = llm.info.kv_bytes // llm.info.num_blocks
    # Eight blocks: four sequences start in them, two can end in them.
    with load(smollm2_path, kv_cache_memory=8 * block_bytes, max_model_len=8 * llm.info.block_size) as tight:
        assert answers(tight, SENTENCES[:4], params) == undisturbed
        stats = tight.stats()
        assert stats.preemptions_total > 0
        assert stats.free_blocks == stats.total_blocks == 8


def test_cached_beginning_changes_no_bit(smollm2_path: Path, alone: list[Answer]) -> None:
    with load(smollm2_path, enable_prefix_caching=True) as llm:
        assert answers(llm, PROMPTS) == alone
        for prompts in (PROMPTS, [PROMPTS[8]] * 5):
            before = llm.stats().prefix_cache_hits_total
            assert answers(llm, prompts) == [alone[PROMPTS.index(prompt)] for prompt in prompts]
            assert llm.stats().prefix_cache_hits_total > before
        # A conversation whose first turn, the answer included, is in the cache.
        (first,) = llm.generate(PROMPTS[8], GREEDY, use_tqdm=False)
        turn = first.prompt_token_ids + first.outputs[0].token_ids + llm.encode(PROMPTS[4])
        (second,) = llm.generate([turn], SAMPLED, use_tqdm=False)
        assert second.timings is not None
        assert second.timings.cached_tokens > len(first.prompt_token_ids) - llm.info.block_size
    with load(smollm2_path) as llm:
        (plain,) = llm.generate([turn], SAMPLED, use_tqdm=False)
        assert Answer.of(plain) == Answer.of(second)


def test_choices_share_a_prompt_and_change_no_bit(smollm2_path: Path, alone: list[Answer]) -> None:
    with load(smollm2_path, enable_prefix_caching=True) as llm:
        (output,) = llm.generate(
            PROMPTS[8],
            SamplingParams(n=3, temperature=0.8, top_p=0.95, seed=42, max_tokens=12, ignore_eos=True),
            use_tqdm=False,
        )
    assert tuple(output.outputs[0].token_ids) == alone[8].token_ids
    assert len({choice.text for choice in output.outputs}) == 3


def test_prompt_scores_are_those_of_generation(llm: LLM) -> None:
    """Scoring prompt plus answer gives the answer's own log-probabilities, bit by bit."""
    (made,) = llm.generate(PROMPTS[2], GREEDY, use_tqdm=False)
    (choice,) = made.outputs
    ids = made.prompt_token_ids + choice.token_ids
    (scored,) = llm.generate([ids], SamplingParams(max_tokens=0, prompt_logprobs=0), use_tqdm=False)
    assert scored.prompt_logprobs is not None
    assert choice.logprobs is not None
    tail = scored.prompt_logprobs[len(made.prompt_token_ids) :]
    assert [at[i].logprob for at, i in zip(tail, choice.token_ids, strict=True) if at] == [
        at[i].logprob for at, i in zip(choice.logprobs, choice.token_ids, strict=True)
    ]


def test_stream_is_the_text(llm: LLM) -> None:
    for prompt in ("今天天气很好，", "Emoji: \N{GRINNING FACE}\N{GRINNING FACE}"):
        pieces = [delta.text for delta in llm.stream(prompt, GREEDY)]
        assert "".join(pieces) == llm.generate(prompt, GREEDY, use_tqdm=False)[0].outputs[0].text


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"max_model_len": 10**6}, ConfigError, r"1000000.*positions"),
        ({"kv_cache_memory": 1024}, MemoryLimitError, r"MiB"),
        ({"dtype": "bf16"}, ConfigError, r"bf16.*Q4_1"),
        ({"quantization": "q4"}, ConfigError, r"already quantized"),
        ({"isa": "mmx"}, ConfigError, r"mmx"),
    ],
)
def test_option_that_cannot_be_honoured_is_refused(
    smollm2_path: Path, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        load(smollm2_path, **options)


def test_what_is_in_use_is_told_without_paths(llm: LLM, smollm2_path: Path) -> None:
    info = llm.info
    assert (info.device, info.threads, info.max_model_len, info.chat_template) == ("cpu", 2, 512, True)
    assert "Q4_1" in info.quantization
    assert info.kv_bytes > 0 < info.weight_bytes
    assert str(smollm2_path.parent) not in repr(info)
