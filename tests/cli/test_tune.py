"""`lpx tune`: a profile that serve takes, Ctrl-C that loses nothing, and refusals with a way out."""

from __future__ import annotations

import itertools
import json
import re
import signal
import subprocess
import time

import pytest
from typer.testing import CliRunner

from lpx.cli.app import app
from lpx.profile import read_profile
from tests.cli.conftest import COMMAND
from tests.cli.test_errors import one_line
from tests.server.live_server import eventually


@pytest.fixture
def tune(tiny_model, tmp_path, monkeypatch):
    """Tune the tiny model in this process; the profile is `lpx.toml` in the current folder."""
    monkeypatch.chdir(tmp_path)
    for name in ("LPX_THREADS", "LPX_MODEL", "LPX_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LPX_LEDGER", str(tmp_path / "ledger.sqlite"))

    def call(*arguments):
        return CliRunner().invoke(app, ["tune", "-m", str(tiny_model), *arguments], catch_exceptions=False)

    return call


def test_a_profile_is_written_that_other_commands_take(tune, machine, tmp_path, tiny_model):
    machine.speed = lambda info: 1.0 if "suffix" in info.speculation and "auto" in info.speculation else 1.2
    done = tune("--threads", "1", "--budget-s", "100")
    assert done.exit_code == 0, done.output
    assert "given, so it is not changed" in " ".join(done.stdout.split())
    assert "wrote lpx.toml: lpx serve --profile lpx.toml" in done.stdout
    assert not (tmp_path / "lpx.toml.tuning.json").exists()
    values = dict(read_profile(tmp_path / "lpx.toml").values)
    assert json.loads(values.pop("speculative_config")) == {"method": "suffix"}
    assert values == {"model": str(tiny_model), "threads": 1}
    text = (tmp_path / "lpx.toml").read_text()
    assert "# Tuned by lpx tune for latency" in text
    assert "times the speed (" in text
    ran = CliRunner().invoke(app, ["run", "--profile", "lpx.toml", "--raw", "hi", "-n", "2", "-v"])
    assert ran.exit_code == 0, ran.output
    assert "speculation suffix" in ran.stderr


def test_other_keys_of_a_profile_are_carried_over(tune, machine, tmp_path):
    before = tmp_path / "before.toml"
    before.write_text('[engine]\nthreads = 1\n[server]\nport = 9000\n[access]\napi-key = ["sk-secret-0123456789"]\n')
    before.chmod(0o600)
    done = tune("--profile", str(before), "--isa", "portable", "--budget-s", "100")
    assert done.exit_code == 0, done.output
    assert "sk-secret" not in done.output
    after = tmp_path / "lpx.toml"
    values = read_profile(after).values
    assert (values["threads"], values["port"], values["api_key"]) == (1, 9000, ["sk-secret-0123456789"])
    assert after.stat().st_mode & 0o777 == 0o600


def test_what_was_measured_is_in_the_ledger(tune, machine):
    done = tune("--threads", "1", "--isa", "portable", "--json", "--budget-s", "100")
    assert done.exit_code == 0, done.output
    outcome = json.loads(done.stdout)
    ids = [step["run_id"] for step in outcome["steps"] if step["rounds"]]
    assert ids == list(range(1, len(ids) + 1))
    history = CliRunner().invoke(app, ["bench", "history", "--kind", "tune", "--json"])
    assert len(json.loads(history.stdout)) == len(ids)


def test_history_says_which_option_each_comparison_tried(tune, machine):
    assert tune("--isa", "portable", "--budget-s", "100", "--tag", "mine").exit_code == 0
    head, first, *rest = CliRunner().invoke(app, ["bench", "history"]).stdout.splitlines()
    assert head.endswith("TAGS")
    assert first.endswith("mine threads=4")
    assert any(line.endswith("mine speculative-config=suffix") for line in rest)


def test_a_full_disk_ends_with_one_line(tune, machine, tmp_path, monkeypatch):
    def fail(number):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    done = tune("--threads", "1", "--no-ledger", "--budget-s", "100")
    assert (done.exit_code, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert line.startswith("error[LPX-E002]: lpx.toml.tuning.json cannot be written: No space left on device")
    assert list(tmp_path.iterdir()) == []


def test_a_tuning_that_is_done_says_what_is_best_and_that_the_defaults_stay(tune, machine, tmp_path):
    done = tune("--threads", "1", "--budget-s", "100")
    assert done.exit_code == 0, done.output
    said = " ".join(done.stdout.split())
    assert "nothing that was tried is faster than the defaults without doubt, so they stay" in said
    assert "the best found: p95 ttft 10 ms" in said
    assert "so far" not in said
    assert "Nothing that was tried is faster than the defaults" in (tmp_path / "lpx.toml").read_text()
    machine.speed = lambda info: 1.0 if "suffix" in info.speculation and "auto" in info.speculation else 1.2
    assert "the defaults" not in tune("--threads", "1", "--budget-s", "100", "--overwrite").stdout


def test_a_tuning_that_is_not_done_says_so_far(tune, machine, tmp_path):
    machine.stop_after = 20
    said = " ".join(tune("--isa", "portable", "--budget-s", "100").stdout.split())
    assert "the best so far: p95 ttft 10 ms" in said
    assert "nothing that was tried so far is faster than the defaults" in said
    assert "tried so far is faster" in (tmp_path / "lpx.toml").read_text()


def test_limits_that_cannot_be_kept_end_with_1(tune, machine, tmp_path):
    machine.ttft_ms = lambda info: 50.0
    done = tune("--threads", "1", "--slo", "ttft:10", "--budget-s", "100")
    assert done.exit_code == 1
    assert "ttft:10 is NOT kept" in done.stdout
    assert "The limits are NOT kept" in (tmp_path / "lpx.toml").read_text()


def test_a_profile_that_is_there_is_not_replaced_unasked(tune, machine, tmp_path):
    (tmp_path / "lpx.toml").write_text("# mine\n")
    done = tune("--budget-s", "100")
    assert done.exit_code == 2
    assert "--overwrite" in done.stderr
    assert (tmp_path / "lpx.toml").read_text() == "# mine\n"
    assert tune("--budget-s", "100", "--overwrite", "--threads", "1").exit_code == 0


def test_interrupted_tuning_goes_on_with_the_same_command(tune, machine, tmp_path):
    machine.speed = lambda info: {1: 0.5, 2: 1.0, 3: 0.4, 4: 1.3}[info.threads]
    machine.stop_after = 20
    first = tune("--isa", "portable", "--budget-s", "100")
    assert first.exit_code == 130
    assert "NOT finished: it was interrupted" in first.stdout
    assert "NOT finished" in (tmp_path / "lpx.toml").read_text()
    machine.stop_after = None
    other = tune("--budget-s", "100")
    assert other.exit_code == 2
    assert "the options given changed" in other.stderr
    assert tune("--budget-s", "0.5").exit_code == 2  # less than a second is no budget
    second = tune("--isa", "portable", "--budget-s", "100")
    assert second.exit_code == 0, second.output
    assert "going on from lpx.toml.tuning.json" in second.stderr
    assert "NOT finished" not in (tmp_path / "lpx.toml").read_text()


def test_where_time_runs_out_the_profile_is_written_and_said_to_be_incomplete(tune, machine, tmp_path, monkeypatch):
    moments = itertools.count(0, 7)  # seconds
    monkeypatch.setattr("lpx.bench.tune.tuner.monotonic", lambda: next(moments))
    first = tune("--threads", "1", "--duration", "100")
    assert first.exit_code == 0, first.output  # what is written can be used, and the bound was asked for
    *_, wrote, said = " ".join(first.stdout.split()).partition("wrote lpx.toml:")
    assert wrote
    assert re.search(r"NOT finished: the time was over before \d+ values? w\w+ tried, and this profile holds", said)
    assert "The same command goes on" in said
    assert "NOT finished: the time was over" in (tmp_path / "lpx.toml").read_text()
    assert (tmp_path / "lpx.toml.tuning.json").exists()  # by which a script can tell
    monkeypatch.setattr("lpx.bench.tune.tuner.monotonic", time.monotonic)
    second = tune("--threads", "1", "--duration", "100")
    assert second.exit_code == 0, second.output
    assert "NOT finished" not in second.stdout
    assert not (tmp_path / "lpx.toml.tuning.json").exists()


def test_interrupted_before_the_first_step_it_goes_on_too(tune, machine, tmp_path):
    machine.stop_after = 0
    assert tune("--isa", "portable", "--budget-s", "100").exit_code == 130
    assert (tmp_path / "lpx.toml").exists()
    machine.stop_after = None
    done = tune("--isa", "portable", "--budget-s", "100")
    assert done.exit_code == 0, done.output
    assert "0 steps done" in done.stderr


def test_restart_forgets_what_was_known(tune, machine, tmp_path):
    machine.stop_after = 20
    assert tune("--budget-s", "100").exit_code == 130
    machine.stop_after = None
    done = tune("--restart", "--isa", "portable", "--budget-s", "100")
    assert done.exit_code == 0, done.output
    assert "going on" not in done.stderr
    assert read_profile(tmp_path / "lpx.toml").values["isa"] == "portable"


def test_ctrl_c_in_a_real_process_leaves_profile_and_state(environment, tiny_model, tmp_path):
    process = subprocess.Popen(
        [*COMMAND, "tune", "-m", str(tiny_model), "--isa", "portable", "--no-ledger", "-o", str(tmp_path / "t.toml")],
        env={**environment, "LPX_MAX_MODEL_LEN": "4096"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    state = tmp_path / "t.toml.tuning.json"
    eventually(lambda: state.exists() or process.poll() is not None, "the first step")
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 130, stderr
    assert "Traceback" not in stderr
    assert f"wrote {tmp_path / 't.toml'}" in stdout.replace("\n", "")
    assert read_profile(tmp_path / "t.toml").values["isa"] == "portable"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--target", "speed"), "latency or throughput"),
        (("--slo", "ttft"), "ttft:200,itl:10"),
        (("--concurrency", "4"), "one request at a time"),
        (("-o", "/nonexistent/lpx.toml"), "no folder"),
        (("-o", "."), "is a folder"),
    ],
)
def test_what_cannot_be_honoured_is_refused(tune, arguments, said):
    done = tune(*arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr


def test_a_model_that_is_not_there(lpx):
    assert "there is no model" in one_line(lpx("tune", "-m", "absent.gguf", "-o", "/tmp/none.toml"), 1)
