"""`lpx models`: what is here, what can be had, where it is."""

from __future__ import annotations

import json
from importlib.metadata import version


def test_list_shows_what_is_here(lpx, smollm2_path):
    listed = json.loads(lpx("models", "list", "--json").stdout)
    (model,) = [row for row in listed["models"] if row["name"] == "smollm2-135m"]
    assert (model["path"], model["present"], model["licence"]) == (str(smollm2_path), True, "Apache-2.0")
    text = lpx("models", "list").stdout
    assert "smollm2-135m" in text
    assert listed["models_dir"] in text


def test_empty_folder_lists_what_can_be_pulled(lpx, tmp_path):
    listed = json.loads(lpx("models", "list", "--json", "--models-dir", str(tmp_path)).stdout)
    assert [(row["name"], row["present"]) for row in listed["models"]] == [("smollm2-135m", False)]
    assert "lpx models pull smollm2-135m" in lpx("models", "list", "--models-dir", str(tmp_path)).stdout


def test_path_prints_folder_and_file(lpx, smollm2_path, models_folder):
    assert lpx("models", "path", "smollm2-135m").stdout.strip() == str(smollm2_path)
    assert lpx("models", "path").stdout.strip() == str(models_folder)
    absent = lpx("models", "path", "../../etc/passwd")
    assert (absent.returncode, absent.stdout) == (1, "")


def test_pulling_what_is_here_prints_its_path(lpx, smollm2_path):
    done = lpx("models", "pull", "smollm2-135m")
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, str(smollm2_path), "")


def test_name_that_is_not_in_the_catalog_is_refused(lpx, tmp_path):
    for name in ("../../etc/passwd", "/etc", "a" * 5000, "no-such"):
        done = lpx("models", "pull", name, "--models-dir", str(tmp_path / "models"))
        assert done.returncode == 1
        assert "smollm2-135m" in done.stderr
        assert not (tmp_path / "models").exists()


def test_version_is_that_of_the_package(lpx):
    assert lpx("--version").stdout.strip() == f"lpx {version('lpx')}"


def test_every_command_has_an_example(lpx):
    commands = "pull list show path verify use rollback rm cp import convert prune"
    models = [("models", name) for name in commands.split()]
    for command in (("run",), ("chat",), ("serve",), ("bench", "roofline"), ("bench", "latency"), *models):
        done = lpx(*command, "--help")
        assert done.returncode == 0
        assert f"Example: lpx {' '.join(command)}" in done.stdout
