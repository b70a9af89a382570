"""One model has one name in the ledger, whatever command measured it and however it was named."""

from __future__ import annotations

import dataclasses
import os

import pytest

from lpx.bench.gate.sessions import changed_settings
from lpx.bench.measurement import Measurement, Subject
from lpx.bench.sides.spec import parse_side
from lpx.bench.sides.worker import EngineWorker
from lpx.options import EngineOptions
from lpx.quality.evaluation import EvalSettings, evaluate
from lpx.store import named_as_stored
from lpx.store.importing import import_model
from tests.bench.ledger.example_runs import NOON
from tests.reference.model_files import write_model_gguf
from tests.reference.tiny_models import make_tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model folder with one model, whose file has another name."""
    root = tmp_path_factory.mktemp("models")
    config, weights = make_tiny("llama", seed=1)
    file = root / "tiny-instruct-q4_1.gguf"
    write_model_gguf(file, config, weights)
    folder = root / "folder"
    import_model(file, folder, name="千问-tiny")
    return folder


@pytest.fixture(params=["name", "name@version", "path", "link"])
def spelled(request, folder, tmp_path):
    from lpx.store import find_stored

    stored = find_stored("千问-tiny", folder)
    if request.param == "link":
        os.symlink(stored.path, tmp_path / "elsewhere.gguf")
        return str(tmp_path / "elsewhere.gguf")
    return {"name": stored.name, "name@version": stored.spelled, "path": str(stored.path)}[request.param]


def test_every_way_to_name_a_stored_model_gives_its_name_in_the_store(folder, spelled):
    options = named_as_stored(EngineOptions(spelled, models_dir=folder))
    assert options.served_model_name == "千问-tiny"


@pytest.mark.parametrize("by", ["name", "path"])
def test_a_side_has_that_name(folder, by):
    from lpx.store import find_stored

    spelled = "千问-tiny" if by == "name" else find_stored("千问-tiny", folder).path
    side = parse_side(f"lpx:model={spelled},models_dir={folder},threads=1,kv_cache_memory=1M,max_model_len=64", "a")
    with EngineWorker(side.name, side.settings) as worker:
        assert worker.subject.model == "千问-tiny"


def test_an_evaluation_has_that_name_too(folder):
    from lpx.store import find_stored

    path = str(find_stored("千问-tiny", folder).path)
    reference = EngineOptions(path, models_dir=folder, kv_cache_dtype="q8")
    for checks, options in ((("weights",), {}), (("distributions",), {"window": 32, "windows": 1})):
        found = evaluate(
            EvalSettings(
                subject=EngineOptions(path, models_dir=folder, threads=1), reference=reference, checks=checks, **options
            )
        )
        assert (found.subject.in_use.model, found.reference.in_use.model) == ("千问-tiny", "千问-tiny")


def test_what_lies_elsewhere_keeps_its_files_name_and_a_chosen_name_stays(folder):
    outside = str(folder.parent / "tiny-instruct-q4_1.gguf")
    assert named_as_stored(EngineOptions(outside, models_dir=folder)).served_model_name is None
    chosen = EngineOptions("千问-tiny", models_dir=folder, served_model_name="mine")
    assert named_as_stored(chosen).served_model_name == "mine"


def test_another_model_does_not_inherit_the_name_of_the_baselines(folder):
    outside = str(folder.parent / "tiny-instruct-q4_1.gguf")
    settings = {"engine": {"model": "千问-tiny", "models_dir": str(folder), "served_model_name": "千问-tiny"}}
    side = parse_side(f"lpx:model={outside}", "a", settings["engine"])
    assert "served_model_name" not in side.settings
    measured = Measurement(
        kind="latency", subject=Subject(model="x", engine="lpx"), settings=settings, figures={}, started=NOON, seconds=1
    )
    assert "served_model_name" not in changed_settings(measured, [f"model={outside}"])["engine"]
    assert dataclasses.asdict(side)["settings"]["models_dir"] == str(folder)
