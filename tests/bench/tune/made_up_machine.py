"""A tiny model whose speed is made up: engines are real, what a round takes is not."""

from __future__ import annotations

import random

import pytest

from lpx.bench.tune.workload import Round
from tests.reference.model_files import write_hf_folder
from tests.reference.tiny_models import make_tiny


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """Long enough a context for every prompt of the set, whose tokenizer makes a token of each byte."""
    config, weights = make_tiny("llama", seed=1, max_position_embeddings=4096)
    return write_hf_folder(tmp_path_factory.mktemp("tune") / "tiny-model", config, weights)


class MadeUpMachine:
    """Rounds by `speed(engine info)`, in answers a second, with noise; `answers(info)` are what comes out."""

    def __init__(self, noise=0.01):
        self.speed = lambda info: 1.0
        self.ttft_ms = self.itl_ms = lambda info: 10.0
        self.answers = lambda info: ((1, 2, 3),)
        self.order = []
        self.stop_after = None
        self._noise, self._random = noise, random.Random(0)

    def run_round(self, engine, prompts, workload):
        if self.stop_after is not None and len(self.order) >= self.stop_after:
            raise KeyboardInterrupt
        self.order.append(engine.info)
        score = self.speed(engine.info) * (1 + self._random.gauss(0, self._noise))
        return Round(
            score, 1.0, 3, (self.ttft_ms(engine.info),), (self.itl_ms(engine.info),), self.answers(engine.info)
        )


@pytest.fixture
def machine(monkeypatch):
    made_up = MadeUpMachine()
    monkeypatch.setattr("lpx.bench.tune.comparison.run_round", made_up.run_round)
    monkeypatch.setattr("lpx.bench.tune.workload.run_round", made_up.run_round)
    monkeypatch.setattr("lpx.bench.tune.tuner.usable_processors", lambda: 4)
    return made_up
