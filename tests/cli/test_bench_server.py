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


def test_levels_ask_the_same_prompts_and_say_so(bench):
    load = ("serve", "--max-concurrency", "2,4", "--num-prompts", "16", "--output-len", "1", "--json", "--no-ledger")
    first, second = json.loads(bench(*load).stdout)["reports"]
    assert not any("are asked" in warning for warning in first["warnings"])
    assert any("are asked 2 times each, levels before counted" in warning for warning in second["warnings"])


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
        (("--extra-body", '{"a": NaN}'), "--extra-body cannot be sent as JSON"),
        (("--extra-body", '{"a": 1e999}'), "--extra-body cannot be sent as JSON"),
        (("--extra-body", "[" * 100_000), "it is nested too deeply"),
        (("--top-p", "nan"), "--top-p must be above 0 and at most 1, not nan"),
        (("--metadata", "driver"), "--metadata 'driver' is no KEY=VALUE"),
        (("--metadata", "=570"), "--metadata '=570' has no key"),
        (("--append-result",), "name it with --result-filename"),
        (("--result-filename", ""), "--result-filename '' is no name of a file"),
        (("--result-filename", "."), "--result-filename '.' is no name of a file"),
        (("--result-filename", "/absent/x.json"), "there is no folder /absent"),
        (("--result-filename", "x" * 300), "cannot be written: File name too long"),
        (("--result-filename", __file__), "is there already"),
        (("--append-result", "--result-filename", "/dev/null"), "is there already"),
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


@pytest.mark.parametrize(
    ("host", "complaint"),
    [
        ("a/x", "is more than the name of a server; give an address with --url"),
        ("http://x", "is more than the name of a server; give an address with --url"),
        ("x:80", "holds a port; write --host x --port 80"),
        ("u:p@x", "holds a name or password"),
        ("", "the name of the server is missing"),
        ("a..b", "'a..b' is no name of a server"),
        ("a" * 64, "is no name of a server"),
        ("例子", "write its xn-- form"),
        ("1::2::3", "is no IPv6 address"),
        ("a b", "is no name of a server"),
    ],
)
@pytest.mark.parametrize("command", ["serve", "decode"])
def test_odd_hosts_are_one_line(command, host, complaint, capsys, monkeypatch):
    from lpx.cli.app import app

    monkeypatch.delenv("LPX_DEBUG", raising=False)
    with pytest.raises(SystemExit) as ended:
        app(["bench", command, "--host", host, "--no-ledger"], prog_name="lpx")
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert complaint in said
    assert "u:p" not in said


def test_numbers_of_ipv6_are_hosts_with_and_without_brackets():
    from lpx.cli.bench.server_options import ServerOptions

    assert ServerOptions(host="::1").base_url == ServerOptions(host="[::1]").base_url == "http://[::1]:8080"


def test_result_files_are_added_to_and_never_overwritten(bench, tmp_path):
    quick = ("serve", "--num-prompts", "1", "--num-warmups", "0", "--output-len", "2", "--no-ledger")
    named = ("--result-dir", str(tmp_path), "--result-filename", "结果.json")
    file = tmp_path / "结果.json"
    assert bench(*quick, *named).returncode == 0
    first = file.read_bytes()
    assert json.loads(first)["completed"] == 1
    assert "is there already" in one_line(bench(*quick, *named), 2)
    assert file.read_bytes() == first
    assert bench(*quick, *named, "--append-result").returncode == 0
    lines = file.read_bytes().split(b"\n")
    assert (lines[0], json.loads(lines[1])["completed"]) == (first, 1)


def test_levels_have_files_of_their_own(tmp_path):
    from lpx.bench.load import LoadSettings
    from lpx.bench.load.vllm_result import named_paths

    levels = [LoadSettings(base_url="x", max_concurrency=level) for level in (1, 4, 4)]
    names = [path.name for path in named_paths(levels, tmp_path, "r.json")]
    assert names == ["r-concurrency1.json", "r-concurrency4.json", "r-concurrency4-3.json"]


def test_half_of_a_surrogate_pair_is_written_as_json_has_it(tmp_path):
    from lpx.bench.load.vllm_result import vllm_result
    from lpx.cli.bench.load_results import ResultFiles
    from tests.bench.load.fake_server import DONE, Script, run_load, text

    halves = [(0.1, text("\ud83d")), (0.2, text("\ude00")), (0.3, text("\ud83d") + DONE)]
    report = run_load([Script(halves)])
    files = ResultFiles.planned([report.settings], tmp_path, "r.json", append=False, detailed=True)
    [path] = files.write([report])
    assert json.loads(path.read_text("utf-8"))["generated_texts"] == ["😀\ud83d"]
    assert vllm_result(report, True)["generated_texts"] == ["\ud83d\ude00\ud83d"]


def test_what_was_measured_before_a_level_failed_is_shown_and_kept(bench, server, environment, monkeypatch, capsys):
    from lpx.bench.load import run
    from lpx.bench.load.server_facts import ServerUnreachableError
    from lpx.cli.app import app

    prepare = run._Load.prepare

    async def failing(load):
        if load.settings.max_concurrency == 2:
            raise ServerUnreachableError("it is gone")
        await prepare(load)

    monkeypatch.setattr(run._Load, "prepare", failing)
    monkeypatch.setenv("LPX_LEDGER", environment["LPX_LEDGER"])
    quick = ["--num-prompts", "1", "--num-warmups", "0", "--output-len", "2", "--max-concurrency", "1,2"]
    with pytest.raises(SystemExit) as ended:
        app(["bench", "serve", "--url", server.url, *quick], prog_name="lpx")
    said = capsys.readouterr()
    assert (ended.value.code, "run 1: " in said.out, "it is gone" in said.err) == (1, True, True)


def test_interrupting_decode_shows_the_rounds_so_far(server, environment):
    command = [*COMMAND, "bench", "decode", "--url", server.url, "--repeats", "5000", "--output-lens", "2,12,24"]
    before = server.engine.stats().requests_total
    process = subprocess.Popen(
        [*command, "--input-len", "8"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **environment},
        text=True,
    )
    eventually(lambda: server.engine.stats().requests_total > before + 20 or process.poll() is not None)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (130, "")
    assert "interrupted: " in out
    assert "of 15000 rounds at 1" in out
    assert not os.path.exists(environment["LPX_LEDGER"])
    eventually(lambda: server.idle, "an idle engine")
