"""Sessions of real engines in processes of their own, on a tiny model."""

import pytest

from lpx.bench.gate.pairs import EnginePairs
from lpx.bench.gate.sessions import EngineSessions, EngineWorkload
from lpx.bench.sides.spec import EngineSide
from lpx.bench.sides.worker import EngineWorker, SideError
from lpx.bench.weather import Look, WeatherGlass
from lpx.errors import ConfigError
from tests.reference.model_files import write_hf_folder
from tests.reference.tiny_models import make_tiny

LOOK = Look(20e9, 200e9)


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    config, weights = make_tiny("llama", seed=1)
    folder = write_hf_folder(tmp_path_factory.mktemp("model"), config, weights)
    return {"model": str(folder), "threads": 1, "max_model_len": 64, "kv_cache_memory": 1 << 20}


@pytest.fixture
def fair_weather(monkeypatch):
    monkeypatch.setattr(WeatherGlass, "__init__", lambda self: None)
    monkeypatch.setattr(WeatherGlass, "look", lambda self: LOOK)


def test_a_session_that_fills_the_whole_context(settings, fair_weather, monkeypatch):
    # Pieces of one step: the engine may run several at once, so the context ends before the pieces do.
    monkeypatch.setattr("lpx.bench.gate.sessions._LEAST_STEPS", 1)
    monkeypatch.setattr("lpx.bench.gate.sessions._PIECE_SECONDS", 0.0)
    sessions = EngineSessions(EngineWorkload(engine=settings, input_len=24, output_len=40, batch_size=2))
    pieces = sessions.session(3)
    assert [piece.phase for piece in pieces].count("prefill") == 2
    assert "decode" in {piece.phase for piece in pieces}
    assert all(value > 0 for piece in pieces for value in piece.figures.values())
    assert all(piece.session == 3 and piece.weather == LOOK and 0 <= piece.others_share <= 1 for piece in pieces)
    assert (sessions.subject.engine, sessions.subject.threads) == ("lpx", 1)


def test_pairs_do_the_same_work(settings):
    ours, theirs = EngineSide("A", settings), EngineSide("B", {**settings, "threads": 2})
    pairs = EnginePairs(ours, theirs, input_len=8, output_len=16, batch_size=1)
    found = pairs.session(0)
    assert {pair.phase for pair in found} == {"prefill", "decode"}
    assert all(set(pair.ours) == set(pair.theirs) for pair in found)
    assert [subject.threads for subject in pairs.subjects] == [1, 2]


@pytest.mark.parametrize(
    ("changed", "said"),
    [({"input_len": 60}, "do not fit the context of 64"), ({"batch_size": 65}, "--max-num-seqs 65")],
)
def test_what_does_not_fit_is_refused(settings, fair_weather, changed, said):
    workload = EngineWorkload(**{"engine": settings, "input_len": 24, "output_len": 40, "batch_size": 1, **changed})
    with pytest.raises(ConfigError, match=said):
        EngineSessions(workload).session(0)


def test_a_killed_engine_is_told_as_such(settings):
    import os
    import signal

    with EngineWorker("A", settings) as worker:
        os.kill(worker.pid, signal.SIGKILL)
        with pytest.raises(SideError, match="A: its process ended with exit code -9"):
            worker.ask("decode", steps=1)


def test_an_error_of_a_command_leaves_the_engine_as_it_was(settings):
    with EngineWorker("A", settings) as worker:
        with pytest.raises(SideError, match="no streams to decode"):
            worker.ask("decode", steps=1)
        assert worker.ask("answer", prompt="你好", max_tokens=3, ignore_eos=True, chat=False)["tokens"] == 3


def test_the_same_question_again_finds_no_drafts_in_earlier_answers(settings):
    suffix = {**settings, "speculative_config": {"method": "suffix"}}
    with EngineWorker("A", suffix) as worker:
        answers = [worker.ask("answer", prompt="你好", max_tokens=24, ignore_eos=True, chat=False) for _ in range(3)]
    assert len({answer["text"] for answer in answers}) == 1
    assert answers[0]["tokens"] == 24
    assert len({answer["drafted_tokens"] for answer in answers}) == 1
