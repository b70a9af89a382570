"""`lpx bench serve` and `lpx bench decode` as people run them, on a real server with a tiny model."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess

import pytest

from tests.bench.load.tiny_server import tiny_server
from tests.cli.conftest import COMMAND
from tests.cli.test_errors import one_line
from tests.server.live_server import eventually


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with tiny_server(tmp_path_factory.mktemp("model")) as server:
        yield server


@pytest.fixture
def bench(lpx, server):
    def call(command, *arguments, **variables):
        return lpx("bench", command, "--url", server.url, *arguments, **variables)

    return call


def test_levels_of_concurrency_make_one_table(bench, server, tmp_path, environment):
    done = bench(
        *("serve", "--max-concurrency", "1,3", "--num-prompts", "6", "--output-len", "5"),
        *("--goodput", "ttft:60000", "e2el:60000", "--save-detailed", "--result-dir", str(tmp_path)),
        *("--metadata", "地点=上海", "rack=7", "--metric-percentiles", "50,99.9"),
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("tiny at http://127.0.0.1:")
    assert max(len(line) for line in lines if not line.startswith("saved ")) <= 80
    assert [line.split()[:3] for line in lines if line.split()[1:3] == ["6", "0"]] == [["1", "6", "0"], ["3", "6", "0"]]
    assert "p99.9" in done.stdout
    assert "3: TTFT" in done.stdout
    saved = sorted(tmp_path.iterdir())
    assert len(saved) == 2
    values = json.loads(saved[1].read_text("utf-8"))
    assert (values["completed"], values["total_output_tokens"], values["max_concurrency"]) == (6, 30, 3)
    assert (values["地点"], values["rack"]) == ("上海", "7")
    assert values["request_goodput"] == pytest.approx(6 / values["duration"])
    assert len(values["ttfts"]) == len(values["generated_texts"]) == len(values["lpx"]["requests"]) == 6
    assert {"mean_ttft_ms", "median_tpot_ms", "p99.9_itl_ms", "std_e2el_ms"} <= set(values)
    with sqlite3.connect(environment["LPX_LEDGER"]) as ledger:
        assert ledger.execute("select count(*) from runs").fetchone() == (2,)


def test_json_holds_every_report(bench):
    done = bench("serve", "--num-prompts", "2", "--output-len", "3", "--json", "--no-ledger", "--backend", "lpx")
    assert (done.returncode, done.stderr) == (0, "")
    [report] = json.loads(done.stdout)["reports"]
    assert report["run_id"] is None
    assert report["figures"]["output_tokens"] == 6
    assert report["settings"]["endpoint_type"] == "lpx"


def test_decode_shows_slope_and_interval(bench):
    lengths = ("--output-lens", "2,12,24", "--input-len", "8", "--repeats", "2")
    done = bench("decode", "--concurrency", "1,2", *lengths, "--no-ledger", "--json")
    assert done.stderr == ""
    reports = json.loads(done.stdout)["reports"]
    measured = all(report["figures"] for report in reports)  # on a busy machine longer answers may come sooner
    assert done.returncode == (0 if measured else 1)
    assert [report["settings"]["concurrency"] for report in reports] == [1, 2]
    assert all(len(report["points"]) == 6 for report in reports)


def test_interrupting_shows_what_was_measured_so_far(server, environment):
    command = [*COMMAND, "bench", "serve", "--url", server.url, "--num-prompts", "5000", "--no-ledger"]
    command += ["--dataset-name", "fixed", "--output-len", "4", "--num-warmups", "0"]
    before = server.engine.stats().requests_total
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **environment}, text=True
    )
    eventually(lambda: server.engine.stats().requests_total > before + 30 or process.poll() is not None)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (130, "")
    assert "interrupted: " in out
    assert "TTFT" in out
    eventually(lambda: server.idle, "an idle engine")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--max-concurrency", "1,x"), "--max-concurrency is a number or a list such as 1,4,16"),
        (("--goodput", "fast"), "--goodput 'fast' is no limit"),
        (("--goodput", "ttft:200", "what"), "--goodput 'what' is no limit"),
        (("stray",), "'stray' is no option"),
        (("--request-rate", "soon"), "--request-rate is a number"),
        (("--percentile-metrics", "speed"), "--percentile-metrics 'speed'"),
        (("--metric-percentiles", "p99"), "--metric-percentiles is a list"),
        (("--extra-body", "{"), "--extra-body is no JSON"),
        (("--extra-body", "[]"), "--extra-body is a JSON object"),
        (("--port", "80"), "give either --url or --host and --port"),
        (("--tokenizer", "/absent"), "--tokenizer /absent does not exist"),
        (("--save-result", "--result-dir", "/absent"), "--result-dir /absent is no folder"),
        (("--dataset-name", "custom", "--dataset-path", "/absent"), "--dataset-path /absent cannot be read"),
    ],
)
def test_wrong_values_are_one_line(server, arguments, complaint, capsys, monkeypatch):
    """In this process: a process of its own for each would take a second each."""
    from lpx.cli.app import app

    monkeypatch.delenv("LPX_DEBUG", raising=False)
    with pytest.raises(SystemExit) as ended:
        app(["bench", "serve", "--url", server.url, "--no-ledger", *arguments], prog_name="lpx")
    assert ended.value.code == 2
    assert complaint in capsys.readouterr().err


def test_no_server_is_one_line(lpx):
    done = lpx("bench", "decode", "--port", "1", "--no-ledger")
    assert "no server answers at http://127.0.0.1:1" in one_line(done, 1)
