"""Divergence and perplexity are what their formulas say, whichever way the models are held in memory."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lpx.errors import ConfigError, MemoryLimitError
from lpx.quality import (
    ScoredModel,
    Text,
    Window,
    compare_distributions,
    compare_logits,
    make_windows,
    measure_perplexity,
)
from lpx.quality import divergence as module
from lpx.quality.spilled_logits import SpilledLogits
from tests.quality.conftest import TinyFiles
from tests.reference.model_files import write_hf_folder
from tests.reference.tiny_models import make_tiny

TEXT = [Text("prose", "The quick brown fox jumps over the lazy dog. " * 3), Text("中文", "敏捷的棕色狐狸。" * 6)]


def naive(logits: np.ndarray) -> np.ndarray:
    values = np.exp(logits - logits.max(axis=1, keepdims=True))
    return values / values.sum(axis=1, keepdims=True)


def test_figures_are_those_of_the_formulas() -> None:
    rng = np.random.default_rng(1)
    windows = [Window("a", (3, 1, 4, 1, 5, 9), 3), Window("b", (2, 7, 1, 8), None)]
    reference, subject = rng.normal(0, 2, (2, 10, 30))
    pairs = [(reference[at : at + 2], subject[at : at + 2]) for at in range(0, 10, 2)]
    found = compare_logits(windows, pairs)
    p, q = naive(reference), naive(subject)
    kl = (p * np.log(p / q)).sum(axis=1)
    assert found.positions == 10
    assert found.kl == pytest.approx(kl.mean())
    assert found.p99_kl == pytest.approx(np.percentile(kl, 99))
    assert found.max_kl == pytest.approx(kl.max())
    assert found.top1 == pytest.approx((p.argmax(axis=1) == q.argmax(axis=1)).mean())
    # Rows 3 and 4 of the first window predict ids 5 and 9; the second is not scored.
    assert found.ppl.scored == 2
    assert found.ppl.ppl == pytest.approx(math.exp(-(np.log(q[3, 5]) + np.log(q[4, 9])) / 2))
    assert found.reference_ppl.ppl == pytest.approx(math.exp(-(np.log(p[3, 5]) + np.log(p[4, 9])) / 2))
    assert found.by_text["b"].kl == pytest.approx(kl[6:].mean())


def test_a_block_may_not_cross_the_end_of_its_window() -> None:
    rows = np.zeros((4, 5))
    with pytest.raises(ValueError, match="end of its window"):
        compare_logits([Window("a", (1, 2, 3), 1), Window("a", (1,), None)], [(rows, rows)])


def test_a_model_is_no_distance_from_itself_and_a_coarser_cache_is_further(tiny: TinyFiles) -> None:
    plain = tiny.options(tiny.unquantized)
    kl = []
    for kind in ("f16", "q8", "q4"):
        found = compare_distributions(tiny.options(tiny.unquantized, kv_cache_dtype=kind), plain, window=64)
        kl.append(found.kl)
    assert kl[0] == 0
    assert 0 < kl[1] < kl[2] / 10


def test_logits_that_wait_on_disk_give_the_same_figures(tiny: TinyFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    subject, plain = tiny.options(tiny.quantized("Q8_0")), tiny.options(tiny.unquantized)
    with ScoredModel(plain, 64) as model:
        windows = make_windows(model.tokenizer, TEXT, 64)
    together = compare_distributions(subject, plain, windows, window=64)
    monkeypatch.setattr(module, "_fit_together", lambda one, other: False)
    loaded = []
    load, unload = ScoredModel.load, ScoredModel.unload
    monkeypatch.setattr(ScoredModel, "load", lambda self, *a: (loaded.append(1), load(self, *a)))
    monkeypatch.setattr(ScoredModel, "unload", lambda self: (self.is_loaded and loaded.pop(), unload(self)))
    apart = compare_distributions(
        subject, plain, windows, window=64, progress=lambda what, done, total: loaded == [1] or pytest.fail("both")
    )
    assert apart == together


def test_too_little_disk_is_refused_with_the_numbers() -> None:
    with pytest.raises(MemoryLimitError, match=r"1000000000 positions need 1,000,000,000 MiB on disk.*TMPDIR"):
        SpilledLogits(10**9, 262_144)


def test_two_models_fit_only_where_their_sum_does(tiny: TinyFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        ScoredModel(tiny.options(tiny.unquantized), 64) as one,
        ScoredModel(tiny.options(tiny.unquantized), 64) as other,
    ):
        need = one.plan().total_bytes
        for available, fits in ((2 * need, True), (2 * need - 1, False)):
            monkeypatch.setattr("lpx.runtime.memory.available_bytes", lambda available=available: available)
            assert module._fit_together(one, other) == fits
        monkeypatch.setattr("lpx.runtime.memory.available_bytes", lambda: need - 1)
        with pytest.raises(MemoryLimitError, match="MiB"):
            module._fit_together(one, other)


def test_models_that_mean_other_ids_are_not_compared(tiny: TinyFiles, tmp_path) -> None:
    config, weights = make_tiny("llama", 3, vocab_size=340)
    other = write_hf_folder(tmp_path / "other", config, weights)
    with pytest.raises(ConfigError, match="330 and 340"):
        compare_distributions(tiny.options(tiny.unquantized), tiny.options(other), window=64)


def test_perplexity_alone_is_that_of_the_comparison(tiny: TinyFiles) -> None:
    plain = tiny.options(tiny.unquantized)
    told = []
    alone = measure_perplexity(plain, window=64, progress=lambda what, done, total: told.append((done, total)))
    assert alone == compare_distributions(plain, plain, window=64).ppl
    assert told[-1][0] == told[-1][1] == max(done for done, _ in told)
    assert alone.interval[0] < alone.ppl < alone.interval[1]


@pytest.mark.model
def test_real_model_ranks_kv_types(smollm2_path) -> None:
    plain = TinyFiles.options(smollm2_path)
    with ScoredModel(plain, 128) as reference:
        windows = make_windows(reference.tokenizer, [Text("a", "Time flies. 光阴似箭，日月如梭。" * 20)], 128)[:1]
        reference.load()
        q8, q4 = (
            compare_distributions(TinyFiles.options(smollm2_path, kv_cache_dtype=kind), reference, windows, window=128)
            for kind in ("q8", "q4")
        )
    assert 0 < q8.kl < q4.kl / 3
    assert q8.top1 > q4.top1


def test_a_disk_that_fills_up_is_said() -> None:
    with SpilledLogits(4, 8) as spilled:
        spilled._file.close()
        spilled._file = open("/dev/full", "wb", buffering=0)  # noqa: SIM115
        with pytest.raises(MemoryLimitError, match=r"No space left.*TMPDIR"):
            spilled.append(np.zeros((4, 8), dtype=np.float32))


def test_windows_longer_than_the_model_was_opened_for_are_refused(tiny: TinyFiles) -> None:
    windows = [Window("a", tuple(range(40)), 20)]
    with ScoredModel(tiny.options(tiny.unquantized), 32) as model, pytest.raises(ConfigError, match="40 tokens"):
        measure_perplexity(model, windows)
    assert measure_perplexity(tiny.options(tiny.unquantized), windows, window=8).scored == 19
