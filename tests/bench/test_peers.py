"""The comparison with other engines: prompts that no cache of prefixes can help."""

import importlib
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def peers(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("peers")


def test_no_two_prompts_of_a_run_begin_alike(peers):
    tasks = [peers.Task("a", 32, 16, 8), peers.Task("b", 1, 300, 8), peers.Task("c", 1, 128, 1)]
    prompts = peers.Prompts([7, 3, 3, 9, 7, 1] * 50 + list(range(100, 180)))
    made = [prompt for _ in range(20) for task in tasks for prompt in prompts.fresh(task)]
    assert {len(prompt) for prompt in made} == {16, 300, 128}
    beginnings = [tuple(prompt[:16]) for prompt in made]
    assert len(set(beginnings)) == len(beginnings)
    assert len({beginning[:3] for beginning in beginnings}) == len(beginnings)


def test_a_noisy_measurement_is_repeated_with_new_prompts(peers):
    class Worker:
        def __init__(self):
            self.asked, self.shares = [], iter([0.5, 0.3, 0.05])

        def measure(self, op, prompts, tokens):
            self.asked.extend(prompts)
            share = next(self.shares)
            return {"token_ids": [[len(self.asked)]]}, type("Usage", (), {"other_share": share})

    class Options:
        quiet = 0.1

    worker = Worker()
    reply, share, first = peers.measure_quietly(worker, [[[1]], [[2]], [[3]], [[4]]], peers.Task("t", 1, 1, 1), Options)
    assert worker.asked == [[1], [2], [3]]
    assert (reply["token_ids"], share, first) == ([[3]], 0.05, [1])
