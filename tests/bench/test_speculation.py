"""The benchmark of drafts: its tasks, its statistics and its tables."""

import importlib
import itertools
import json
from collections import Counter
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("speculation")


@pytest.fixture
def report(bench):
    return importlib.import_module("speculation_report")


@pytest.fixture
def tasks(bench):
    return bench.read_tasks(bench.TASKS)


def make_runs(report, name, auto_ms, off_ms, *, kind="chat", temperature=0.0, tokens=101, drafted=0, length=0.0):
    runs = report.TaskRuns(kind, name, temperature, tokens)
    for auto, off in zip(auto_ms, off_ms, strict=True):
        drafts = {"drafted": drafted, "accepted": drafted // 2, "mean_accepted_length": length}
        runs.answers["auto"].append({"decode_ms": auto, "ttft_ms": 50.0, "speculation": "no_draft", **drafts})
        runs.answers["off"].append({"decode_ms": off, "ttft_ms": 40.0, "speculation": "off", "drafted": 0})
        runs.other_share.append(0.02)
    return runs


def test_every_task_is_a_request_with_a_bound(tasks):
    for task in tasks:
        assert set(task) == {"kind", "name", "messages", "max_tokens"}
        assert 96 <= task["max_tokens"] <= 384
        (message,) = task["messages"]
        assert message["role"] == "user"
        assert message["content"] == message["content"].strip() != ""


def test_there_are_twenty_tasks_of_each_kind_and_no_two_alike(bench, tasks):
    counts = Counter(task["kind"] for task in tasks)
    assert set(counts) == set(bench.KINDS)
    assert min(counts.values()) >= 20
    assert len({task["name"] for task in tasks}) == len(tasks)
    assert len({task["messages"][0]["content"] for task in tasks}) == len(tasks)


def test_code_to_rewrite_is_given_in_one_fence(tasks):
    for task in tasks:
        if task["kind"] == "code_rewrite":
            parts = task["messages"][0]["content"].split("```")
            assert len(parts) == 3, task["name"]
            assert 15 <= parts[1].count("\n") - 1 <= 60, task["name"]


def test_kinds_take_turns(bench, tasks):
    chosen = bench.select_tasks(tasks, ["json", "chat"], 2)
    assert [task["kind"] for task in chosen] == ["json", "chat", "json", "chat"]
    assert len(bench.select_tasks(tasks, list(bench.KINDS), None)) == len(tasks)


def test_first_difference_counts_from_zero_and_sees_an_early_end(report):
    assert report.first_difference([1, 2, 3], [1, 2, 3]) is None
    assert report.first_difference([1, 2, 3], [1, 9, 3]) == 1
    assert report.first_difference([1, 2, 3], [1, 2]) == 2
    assert report.first_difference([], [4]) == 0


def test_the_ratio_is_that_of_the_rounds(report):
    """The machine was three times as slow in one of them, and something else ran meanwhile in another."""
    runs = make_runs(report, "a", [100, 330, 110, 100, 900], [200, 630, 220, 210, 220])
    assert runs.ratio == pytest.approx(2.0, rel=0.02)
    assert runs.speed_up.low < 2.0 < runs.speed_up.high
    assert runs.rate("auto") == pytest.approx(1e3 * 100 / 110)
    assert runs.rounds_slower == 1


@pytest.mark.parametrize(
    ("first", "later", "rounds"),
    [
        ([1.0, 1.0], [], [2]),
        ([0.9, 0.9], [1.0], [18]),  # more of them, whatever they show
        ([0.9, 0.9], [0.95, 0.9], [18]),  # sure: slower
        ([0.9, 0.9], [0.9, 1.2], range(19, 120)),  # the interval still has 0.97 after the 18th
        ([0.9, 0.9], [0.98, 0.96], [18]),  # narrow
        ([0.9, 0.9], [0.5, 1.8], [120]),  # never sure
    ],
)
def test_what_seems_slow_is_measured_until_it_is_sure(bench, report, first, later, rounds):
    run = bench.Run([], bench.argparse.Namespace(rounds=2, shared=False))
    task, streams = report.TaskRuns("chat", "a", 0.0, tokens=101), report.StreamRuns("chat", 0.0, 16)
    ratios = list(itertools.islice(itertools.chain(first, itertools.cycle(later)), 200))
    for number in run._rounds(task):
        task.answers["auto"].append({"decode_ms": 100 / ratios[number]})
        task.answers["off"].append({"decode_ms": 100})
        task.other_share.append(0.0)
    for number in run._rounds(streams):
        streams.rates["auto"].append(100 * ratios[number])
        streams.rates["off"].append(100)
    assert task.rounds in rounds
    assert len(streams.rates["off"]) == task.rounds


def test_an_answer_of_a_few_tokens_is_shown_but_not_judged(report):
    short = make_runs(report, "short", [100], [50], tokens=report.LEAST_TOKENS - 1)
    figures = report.kind_figures([short, make_runs(report, "long", [100], [150], drafted=8, length=3.0)])
    assert (figures["tasks"], figures["judged"]) == (2, 1)
    assert figures["worst"] == figures["best"] == figures["median"] == pytest.approx(1.5)
    assert (figures["drafted"], figures["accepted"], figures["mean_accepted_length"]) == (8, 4, 3.0)
    assert report.slow_tasks([short]) == []
    assert report.kind_figures([short])["median"] is None


def test_what_is_wanted_is_said_by_temperature(report):
    tasks = [
        make_runs(report, "a", [100], [250], kind="code_rewrite"),
        make_runs(report, "b", [100], [190], kind="quote"),
        make_runs(report, "c", [100], [96], temperature=0.8),
    ]
    streams = [report.StreamRuns("chat", 0.0, 16, {"auto": [98.0], "off": [100.0]}, other_share=[0.0])]
    said = report.verdict(report.by_kind(tasks), streams)
    assert [ok for _, ok in said[0.0]] == [True, False, True, True]
    assert [ok for _, ok in said[0.8]] == [None, None, False, None]


def test_tables_name_slow_tasks_and_differing_tokens(report):
    tasks = [make_runs(report, "fine", [100], [200]), make_runs(report, "slow-one", [100], [90])]
    tasks[0].peer_rates = {"plain": [30.0], "lookup": [45.0]}
    difference = dict.fromkeys(("kind", "name", "mode", "round", "expected", "given"), "x")
    text = "\n".join(report.lines(tasks, [], [difference | {"temperature": 0.0, "position": 7}], 0.1))
    assert "slow-one" in text
    assert "0.900  slower" in text  # of one round there is no interval
    assert "0.900" in text
    assert "1.50" in text  # llama.cpp's ratio
    assert "token 7 is x, not x" in text
    assert "1 DIFFERENT" in text
    empty = "\n".join(report.lines([report.TaskRuns("chat", "not-begun", 0.0)], [], [], 0.1))
    assert "the same in every run" in empty


def test_results_are_json_with_every_task(report):
    tasks = [make_runs(report, "a", [100], [150]), report.TaskRuns("chat", "not-begun", 0.0)]
    result = json.loads(json.dumps(report.as_json(tasks, [], 0.1)))
    assert [task["name"] for task in result["tasks"]] == ["a"]
    assert result["tasks"][0]["ratio"] == pytest.approx(1.5)
    assert result["tasks"][0]["ratio_interval"] is None  # of one round


def test_tables_and_json_have_the_interval_of_several_rounds(report):
    runs = make_runs(report, "a", [100, 101, 99], [90, 92, 91])
    text = "\n".join(report.lines([runs], [], [], 0.1))
    assert "0.910 (0.8" in text
    low, high = report.as_json([runs], [], 0.1)["tasks"][0]["ratio_interval"]
    assert low < 0.91 < high


def test_rounds_that_others_disturbed_are_repeated_and_the_order_changes(bench):
    class Options:
        quiet, retries = 0.1, 3

    run = bench.Run([], Options)
    asked, shares = [], iter([0.5, 0.5, 0.05, 0.05, 0.0, 0.0])

    def ask(mode):
        asked.append(mode)
        return {"mode": mode}, type("Usage", (), {"other_share": next(shares), "seconds": 1.0})

    replies, share = run._alternate(0, bench.MODES, ask)
    assert (share, replies) == (0.05, {"auto": {"mode": "auto"}, "off": {"mode": "off"}})
    run._alternate(1, bench.MODES, ask)
    assert asked == ["auto", "off", "auto", "off", "off", "auto"]


def test_a_differing_token_is_kept_with_its_position(bench):
    run = bench.Run([], None)
    task = {"kind": "chat", "name": "a"}
    run._compare(task, 0.0, "auto", 0, [5, 6, 7])
    run._compare(task, 0.8, "auto", 0, [9])
    run._compare(task, 0.0, "off", 0, [5, 6, 7])
    assert run.differences == []
    run._compare(task, 0.0, "auto", 1, [5, 6])
    (difference,) = run.differences
    assert (difference["position"], difference["expected"], difference["given"]) == (2, 7, "the end")
