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


def test_what_others_wrote_moves_no_cursor_and_makes_no_rows(lpx, tmp_path):
    odd = "MIT\nsource       \x1b[2J\x1b]0;x\x07trusted"
    version = tmp_path / "tiny" / "v1"
    version.mkdir(parents=True)
    (version / "tiny.gguf").write_bytes(b"GGUF")
    (version / "strange\x1b[2J\nok  file").write_bytes(b"x")
    listed = [{"path": "tiny.gguf", "bytes": 4, "sha256": "0" * 64}]
    said = {"name": "tiny", "version": "v1", "files": listed, "format": "gguf", "licence": odd, "source": odd}
    (version / "manifest.json").write_text(json.dumps({**said, "derived_from": odd, "created": odd}))
    shown = lpx("models", "show", "tiny", "--models-dir", str(tmp_path))
    verified = lpx("models", "verify", "tiny", "--models-dir", str(tmp_path))
    assert (shown.returncode, verified.returncode) == (0, 1)
    for text in (shown.stdout, verified.stdout, shown.stderr, verified.stderr):
        assert "\x1b" not in text
        assert "\x07" not in text
    assert sum(line.startswith("source") for line in shown.stdout.splitlines()) == 1
    assert all(line.startswith("damaged  tiny@v1  ") for line in verified.stdout.splitlines())


def test_changes_between_records_move_no_cursor(lpx, tmp_path):
    for name, kernel in (("a.json", "1"), ("b.json", "\x1b[2J\n  forged: row")):
        record = {"format": 1, "environment": {"kernel": kernel, f"x\x9b{name}": "\x85"}}
        (tmp_path / name).write_text(json.dumps(record))
    text = lpx("snapshot", "diff", str(tmp_path / "a.json"), str(tmp_path / "b.json")).stdout
    assert "forged" in text
    assert not any(line.startswith("  forged") for line in text.splitlines())
    assert all(character.isprintable() or character == "\n" for character in text)
