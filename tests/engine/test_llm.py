"""The Python API on the fake model."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from lpx.engine.engine import Engine
from lpx.engine.llm import LLM
from lpx.engine.sampling_params import SamplingParams
from lpx.errors import EngineStoppedError, InvalidRequestError, LpxError
from tests.engine.fake_executor import FakeExecutor, expected_tokens

MakeEngine = Callable[..., Engine]
GREEDY = SamplingParams(temperature=0, max_tokens=8)


@pytest.mark.parametrize(
    ("prompts", "ids"),
    [
        ("ab", [[97, 98]]),
        (["ab", "c"], [[97, 98], [99]]),
        ([97, 98], [[97, 98]]),
        ((97, 98), [[97, 98]]),
        ([[97, 98], [99]], [[97, 98], [99]]),
        ({"prompt": "ab"}, [[97, 98]]),
        ([{"prompt_token_ids": [97]}, {"prompt": "c"}, "d", [101]], [[97], [99], [100], [101]]),
        ([], []),
    ],
)
def test_prompts_come_in_every_form(make_engine: MakeEngine, prompts: Any, ids: list[list[int]]) -> None:
    outputs = LLM.from_engine(make_engine()).generate(prompts, GREEDY, use_tqdm=False)
    assert [output.prompt_token_ids for output in outputs] == ids
    for output in outputs:
        assert output.outputs[0].token_ids == expected_tokens(output.prompt_token_ids, 8)
        assert output.outputs[0].text == bytes(output.outputs[0].token_ids).decode()


def test_arrays_are_token_ids(make_engine: MakeEngine) -> None:
    import numpy as np

    llm = LLM.from_engine(make_engine())
    wanted = expected_tokens([97, 98], 8)
    for prompts in (np.array([97, 98]), [np.int64(97), np.int64(98)], [np.array([97, 98])]):
        assert llm.generate(prompts, GREEDY, use_tqdm=False)[0].outputs[0].token_ids == wanted


def test_outputs_keep_the_order_of_the_prompts(make_engine: MakeEngine) -> None:
    llm = LLM.from_engine(make_engine())
    params = [SamplingParams(temperature=0, max_tokens=count) for count in (9, 1, 5)]
    outputs = llm.generate(["a", "b", "c"], params, use_tqdm=False)
    assert [output.prompt for output in outputs] == ["a", "b", "c"]
    assert [len(output.outputs[0].token_ids) for output in outputs] == [9, 1, 5]
    assert all(output.finished for output in outputs)
    with pytest.raises(InvalidRequestError, match="3 sampling params were given for 1"):
        llm.generate("a", params, use_tqdm=False)


def test_output_tells_everything(make_engine: MakeEngine) -> None:
    params = SamplingParams(n=2, seed=1, max_tokens=4, logprobs=2, prompt_logprobs=0)
    (output,) = LLM.from_engine(make_engine()).generate("hello", params, use_tqdm=False)
    assert output.prompt_logprobs is not None
    assert len(output.prompt_logprobs) == 5
    for choice in output.outputs:
        assert choice.logprobs is not None
        assert choice.cumulative_logprob == pytest.approx(
            sum(entry[i].logprob for entry, i in zip(choice.logprobs, choice.token_ids, strict=True))
        )
        assert (choice.finish_reason, choice.stop_reason) == ("length", None)
    timings = output.timings
    assert timings is not None
    assert (timings.prompt_tokens, timings.completion_tokens) == (5, 8)
    assert timings.decode_tokens_per_second > 0


def test_all_prompts_are_checked_before_any_runs(make_engine: MakeEngine) -> None:
    engine = make_engine()
    with pytest.raises(InvalidRequestError):
        LLM.from_engine(engine).generate(["fine", "x" * 500], GREEDY, use_tqdm=False)
    assert engine.stats().requests_total == 0


def test_chat_takes_one_or_several_conversations(make_engine: MakeEngine) -> None:
    llm = LLM.from_engine(make_engine())
    one = [{"role": "user", "content": "hi"}]
    (single,) = llm.chat(one, GREEDY, use_tqdm=False)
    assert bytes(single.prompt_token_ids) == b"user: hi\nassistant: "
    several = llm.chat([one, [{"role": "user", "content": "ho"}]], GREEDY, use_tqdm=False)
    assert [bytes(o.prompt_token_ids) for o in several] == [b"user: hi\nassistant: ", b"user: ho\nassistant: "]


def test_interrupt_leaves_nothing_behind(make_engine: MakeEngine) -> None:
    def interrupt(step: int) -> None:
        if step == 3:
            raise KeyboardInterrupt

    executor = FakeExecutor(before_step=interrupt)
    engine = make_engine(executor)
    llm = LLM.from_engine(engine)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["a"] * 12, GREEDY, use_tqdm=False)
    assert engine.stats().free_blocks == engine.stats().total_blocks
    executor.before_step = None
    assert llm.generate("a", GREEDY, use_tqdm=False)[0].outputs[0].token_ids == expected_tokens([97], 8)


def test_interrupt_in_the_middle_of_book_keeping(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine()
    llm = LLM.from_engine(engine)
    with monkeypatch.context() as patch:

        def interrupted(table: list[int]) -> None:
            table.clear()
            raise KeyboardInterrupt

        patch.setattr(type(engine.kv_cache), "free", lambda self, table: interrupted(table))
        with pytest.raises(KeyboardInterrupt):
            llm.generate(["a", "b"], GREEDY, use_tqdm=False)
    assert engine.kv_cache.num_free == engine.kv_cache.num_blocks
    assert llm.generate("a", GREEDY, use_tqdm=False)[0].outputs[0].token_ids == expected_tokens([97], 8)


def test_error_of_a_request_is_raised_and_the_rest_ended(make_engine: MakeEngine) -> None:
    llm = LLM.from_engine(make_engine(FakeExecutor(poisoned=200)))
    with pytest.raises(LpxError, match="not a number"):
        llm.generate([[200], [97]], GREEDY, use_tqdm=False)
    assert llm.stats().free_blocks == llm.stats().total_blocks
    assert llm.generate([97], GREEDY, use_tqdm=False)


def test_device_fault_is_raised_and_remembered(make_engine: MakeEngine) -> None:
    llm = LLM.from_engine(make_engine(FakeExecutor(fail_at_step=1)))
    for _ in range(2):
        with pytest.raises(EngineStoppedError, match="injected"):
            llm.generate(["a", "b"], GREEDY, use_tqdm=False)


def test_stream_gives_the_deltas_of_generate(make_engine: MakeEngine) -> None:
    engine = make_engine()
    llm = LLM.from_engine(engine)
    deltas = list(llm.stream("hello", GREEDY))
    assert "".join(delta.text for delta in deltas) == llm.generate("hello", GREEDY, use_tqdm=False)[0].outputs[0].text
    stream = llm.stream("hello", SamplingParams(max_tokens=100))
    next(stream)
    with pytest.raises(InvalidRequestError, match="open"):
        llm.generate("hello", GREEDY, use_tqdm=False)
    stream.close()
    assert engine.stats().free_blocks == engine.stats().total_blocks
    assert llm.generate("hello", GREEDY, use_tqdm=False)


def test_closing_frees_the_device(make_engine: MakeEngine) -> None:
    executor = FakeExecutor()
    with LLM.from_engine(make_engine(executor)) as llm:
        stream = llm.stream("hello", SamplingParams(max_tokens=100))
        next(stream)
    assert executor.closed == 1
    assert [delta.finish_reason for delta in stream] == []
    llm.close()
    with pytest.raises(EngineStoppedError):
        llm.generate("hello", GREEDY, use_tqdm=False)
    assert executor.closed == 1


def test_progress_counts_prompts(make_engine: MakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    llm = LLM.from_engine(make_engine())
    llm.generate(["a", "b"], SamplingParams(n=2, seed=1))
    assert "2/2" in capsys.readouterr().err
    llm.generate(["a", "b"], GREEDY, use_tqdm=False)
    assert capsys.readouterr().err == ""


def test_importing_the_package_is_light() -> None:
    heavy = "numpy tokenizers jinja2 fastapi tqdm lpx.engine lpx.runtime"
    code = f"import sys, lpx; print([m for m in {heavy.split()!r} if m in sys.modules]); lpx.SamplingParams(); lpx.LLM"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
