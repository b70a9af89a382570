"""The gate against a baseline: what it refuses, what it leaves out, what it says, on a made-up machine."""

import dataclasses
import json
import re
from datetime import datetime, timezone

import pytest
from rich.cells import cell_len

from lpx.bench.gate.adjusted import USUAL_SHARES, Comparison
from lpx.bench.gate.conditions import parse_conditions
from lpx.bench.gate.gate import (
    CannotJudgeError,
    _reasons,
    check_quiet,
    measure_baseline,
    run_gate,
    run_paired_gate,
    undisturbed,
)
from lpx.bench.gate.likeness import UnlikeError, parse_facets
from lpx.bench.gate.pairs import Pair
from lpx.bench.gate.pieces import by_session, pieces_of
from lpx.bench.gate.report import gate_json, gate_markdown
from lpx.bench.gate.sharpness import smallest_changes
from lpx.bench.gate.trial import Decision, Outcome, Trial
from lpx.bench.ledger import Run as LedgerRun
from lpx.bench.measurement import Measurement, Subject
from lpx.bench.statistics import Interval
from lpx.bench.weather import Look
from lpx.doctor.environment import read_environment
from lpx.errors import ConfigError
from tests.bench.gate.synthetic_machine import MULTIPLY, READ, Engine, Run

SUBJECT = Subject(model="m|1", engine="lpx", engine_version="1", model_sha256="ab" * 32, device="cpu", threads=2)
CONDITIONS = parse_conditions(["decode:-5%"])
SETTINGS = {"input_len": 8, "output_len": 8, "batch_size": 1}


class Synthetic:
    """A workload of the made-up machine; `busy` sessions are disturbed by others."""

    def __init__(self, seed, engine=None, subject=SUBJECT, busy=(), share=0.6, kind="calm"):
        self._run, self._engine, self.subject = Run(kind, seed), engine or Engine(), subject
        self._busy, self._others = busy, share
        self.sessions = 0

    def session(self, number):
        self.sessions += 1
        pieces = self._run.session(number, self._engine)
        others = self._others if number in self._busy else 0.02
        return [dataclasses.replace(piece, others_share=others) for piece in pieces]

    def usual_share(self, figure):
        return USUAL_SHARES["decode"]


def baseline(**changes):
    measured = measure_baseline(Synthetic(0), "latency", SETTINGS, seconds=0)
    return LedgerRun(
        id=7,
        measurement=dataclasses.replace(measured, **changes),
        environment=read_environment(),
        environment_sha256="",
    )


def gate(workload, run=None, conditions=CONDITIONS, **options):
    options = {"environment": read_environment(), "seconds": 0, **options}
    return run_gate(run or baseline(), workload, conditions, name="main", **options)


def test_the_same_again_passes_and_half_the_speed_fails():
    assert gate(Synthetic(1)).outcome is Outcome.PASSED
    report = gate(Synthetic(1, Engine(speed=150)))
    assert report.outcome is Outcome.FAILED
    text = gate_markdown(report)
    assert text.startswith("## LPX gate: failed")
    assert "**worse**" in text
    assert "m\\|1" in text  # a name with a bar stays in its cell
    values = json.loads(json.dumps(gate_json(report, 9)))
    assert (values["exit_code"], values["conditions"][0]["outcome"], values["run"]) == (1, "failed", 9)
    assert values["conditions"][0]["change"] == pytest.approx(-0.5, abs=0.05)


def test_what_was_measured_can_be_a_baseline_itself():
    report = gate(Synthetic(1))
    again = dataclasses.replace(baseline(), measurement=report.measurement)
    assert gate(Synthetic(2), again).outcome is Outcome.PASSED


def test_disturbed_sessions_are_left_out():
    report = gate(Synthetic(1, busy={0, 2}))
    assert report.outcome is Outcome.UNDECIDED  # four sessions, two of them undisturbed
    assert any("other programs used" in reason for reason in report.reasons)
    assert "cannot judge" in gate_markdown(report)
    assert gate(Synthetic(1, busy={0, 2}), most_others=0.7).outcome is Outcome.PASSED


@pytest.mark.parametrize("share", [0.05, 0.5])
def test_a_verdict_says_that_the_machine_was_busy(share):
    report = gate(Synthetic(1, busy={0, 1, 2, 3}, share=share), most_others=1.0)
    assert report.outcome is Outcome.PASSED
    shown = " ".join(gate_markdown(report).split())
    assert ("Other programs used 50 % of the processors" in shown) == (share == 0.5)


def test_a_baseline_is_not_made_on_a_busy_machine():
    with pytest.raises(CannotJudgeError, match="other programs used 60 %"):
        measure_baseline(Synthetic(0, busy=range(50)), "latency", SETTINGS, seconds=0)


def test_a_single_run_is_no_baseline():
    run = baseline(samples={"decode_tokens_per_second": (300.0, 301.0)})
    with pytest.raises(CannotJudgeError, match="lpx bench baseline set main 7"):
        gate(Synthetic(1), run)


def test_a_figure_that_the_baseline_lacks_is_named_with_those_it_has():
    with pytest.raises(CannotJudgeError, match=r"no figure p99_ttft; it has decode"):
        gate(Synthetic(1), conditions=parse_conditions(["p99_ttft:+10%"]))


@pytest.mark.parametrize(
    ("changed", "facet"),
    [({"model_sha256": "cd" * 32}, "model"), ({"engine": "vllm"}, "engine"), ({"device": "RTX 4090"}, "device")],
)
def test_another_model_engine_or_device_is_refused_after_one_session(changed, facet):
    workload = Synthetic(1, subject=dataclasses.replace(SUBJECT, **changed))
    with pytest.raises(UnlikeError, match=f"--allow-different {facet}"):
        gate(workload)
    assert workload.sessions == 1
    assert gate(workload, allowed=parse_facets([facet])).outcome is Outcome.PASSED


def test_another_machine_is_refused_before_anything_is_measured():
    elsewhere = dataclasses.replace(read_environment(), cpu_model="Other 9000")
    workload = Synthetic(1)
    with pytest.raises(UnlikeError, match=r"processor: .* → Other 9000"):
        gate(workload, environment=elsewhere)
    assert workload.sessions == 0
    report = gate(workload, environment=elsewhere, allowed=parse_facets(["machine"]))
    assert any(str(difference).startswith("processor") for difference in report.differences)


def test_what_a_gate_judges_is_told_and_not_refused():
    report = gate(Synthetic(1, subject=dataclasses.replace(SUBJECT, threads=1, engine_version="2")))
    assert {str(each) for each in report.differences} == {"threads: 2 → 1", "version of the engine: 1 → 2"}


@pytest.mark.parametrize("tokens_per_second", [9.87, 106.3, 98765.4])
@pytest.mark.parametrize("condition", ["decode:-5%", "throughput:-12.5%", "p99_ttft:+10%", "requests:-5%"])
def test_markdown_has_80_columns(condition, tokens_per_second):
    report = gate(Synthetic(1, Engine(speed=150)))
    conditions = parse_conditions([condition])
    ratio = Interval(0.8901, 0.8802, 0.9003, 0.92)
    weather = Look(25e9, 1e12), Look(20e9, 9e11)
    comparison = Comparison(
        ratio, tokens_per_second, 0.89 * tokens_per_second, (12, 4), Interval(0.9, 0.8, 1, 0.9), weather
    )
    path = "/opt/" + "long/" * 30
    shown = gate_markdown(
        dataclasses.replace(
            report,
            against=f"lpx:model={path},threads=2 with 千问二点五 and a name of several words",
            decisions=tuple(Decision(each, comparison) for each in conditions),
            reasons=("a reason in so many words that they do not fit into one line " * 3,),
            others_share=0.4,
        )
    )
    too_wide = [line for line in shown.splitlines() if cell_len(line) > 80]
    assert all(path in line for line in too_wide)  # what people copy is not broken
    assert len(too_wide) == 1
    assert f"| {condition} | " in shown
    assert " to " in shown


def test_a_word_that_fits_a_line_is_not_broken_and_list_items_are_indented():
    report = dataclasses.replace(gate(Synthetic(1)), reasons=("one two three four five " * 8,))
    lines = gate_markdown(report).splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("- one"))
    assert lines[at + 1].startswith("  ")
    assert " ".join(lines[at : at + 3]).split()[1:9] == ["one", "two", "three", "four", "five", "one", "two", "three"]


def test_facets_have_names():
    assert parse_facets(["machine,model", "engine"]) == {"machine", "model", "engine"}
    with pytest.raises(ConfigError, match="'weather' is not known"):
        parse_facets(["weather"])


class Pairs:
    def __init__(self, speed, other=None):
        self._run, self._speed = Run("drift", 3), speed
        self.subjects = (SUBJECT, other or SUBJECT)

    def session(self, number):
        ours, theirs = self._run.paired_session(number, Engine(speed=self._speed), Engine())
        return [Pair(a.phase, number, a.figures, b.figures) for a, b in zip(ours, theirs, strict=True)]


def test_sides_in_alternation():
    for speed, outcome in ((300, Outcome.PASSED), (240, Outcome.FAILED)):
        report = run_paired_gate(Pairs(speed), CONDITIONS, against="lpx:threads=2", settings={}, seconds=0)
        assert report.outcome is outcome
        assert report.measurement.figures["decode_ratio"] == pytest.approx(speed / 300, abs=0.03)
        assert "| change |" in gate_markdown(report)


def test_sides_with_different_models_are_refused():
    other = dataclasses.replace(SUBJECT, model_sha256="cd" * 32)
    with pytest.raises(UnlikeError, match="model"):
        run_paired_gate(Pairs(300, other), CONDITIONS, against="b", settings={}, seconds=0)


def test_a_measurement_of_a_gate_has_its_settings():
    made = baseline().measurement
    assert isinstance(made, Measurement)
    assert (made.kind, made.settings, made.input_len) == ("latency", SETTINGS, 8)
    assert made.started <= datetime.now(timezone.utc)


def test_a_baseline_has_as_many_sessions_as_were_asked_for_and_no_more_than_there_is_time():
    whole = measure_baseline(Synthetic(0), "latency", SETTINGS, sessions=6, seconds=600)
    assert len(by_session(pieces_of(whole.samples))) == 6
    assert len(by_session(pieces_of(baseline().measurement.samples))) == 4  # the least, in no time


def test_disturbed_sessions_are_made_up_for_and_a_machine_that_is_busy_all_the_time_is_given_up():
    busy_at_first = Synthetic(0, busy=range(3))
    made = measure_baseline(busy_at_first, "latency", SETTINGS, sessions=5, seconds=600)
    assert len(by_session(pieces_of(made.samples))) == 8
    assert len(by_session(undisturbed(pieces_of(made.samples)))) == 5
    told = []
    with pytest.raises(CannotJudgeError):
        measure_baseline(
            Synthetic(0, busy=range(500)),
            "latency",
            SETTINGS,
            sessions=24,
            seconds=600,
            progress=lambda *at: told.append(at),
        )
    assert len(told) == 8


def test_a_busy_machine_is_seen_before_anything_is_measured(monkeypatch):
    shares = [0.6, 0.6, 0.6, 0.6, 0.01]

    class Watch:
        def share(self):
            return shares.pop(0)

    monkeypatch.setattr("lpx.bench.gate.gate.OthersWatch", Watch)
    monkeypatch.setattr("lpx.bench.gate.gate.sleep", lambda seconds: None)
    with pytest.raises(CannotJudgeError, match="other programs use 60 %"):
        check_quiet()
    check_quiet()  # at the second look it is quiet
    assert shares == []
    shares.append(0.6)
    check_quiet(0.7)


def test_a_longer_baseline_lets_smaller_changes_be_judged():
    usual = Synthetic(0).usual_share
    smallest = []
    for sessions in (4, 12, 24):
        made = measure_baseline(Synthetic(0), "latency", SETTINGS, sessions=sessions, seconds=600)
        smallest.append(smallest_changes(pieces_of(made.samples), usual)["decode_tokens_per_second"])
    assert 0.05 > smallest[0] > smallest[1] > smallest[2] > 0.001
    few = [piece for piece in pieces_of(made.samples) if piece.session < 3]
    assert smallest_changes(few, usual) == {}


def test_an_undecided_gate_says_when_the_baseline_is_what_is_too_short():
    look = Look(READ, MULTIPLY)
    felt = Interval(0.8, 0.6, 0.9, 0.9)
    comparison = Comparison(Interval(0.95, 0.9, 1.0, 0.92), 300, 285, (4, 8), felt, (look, look))
    for sessions, said in (((4, 8), "the baseline, which has 4 sessions: make it anew"), ((8, 8), "(--duration)")):
        decision = Decision(CONDITIONS[0], dataclasses.replace(comparison, sessions=sessions))
        [reason] = _reasons(Trial((decision,), (), 60.0), 0.01, 0.15, paired=False)
        assert said in reason


def test_a_memory_that_the_baseline_has_not_seen_is_named_as_the_cause():
    made = measure_baseline(Synthetic(0, kind="slow"), "latency", SETTINGS, sessions=8, seconds=600)
    run = dataclasses.replace(baseline(), measurement=made)
    report = gate(Synthetic(1, kind="fast"), run)
    assert report.outcome is Outcome.UNDECIDED
    [reason] = report.reasons
    assert re.search(r"memory is read at (49|50|51)\.\d GB/s now and was at 3[234]\.\d", reason)
    assert "how much of that the workload feels is not known well enough" in reason
    assert "--against" in reason
    assert "baseline set" in reason
    [condition] = json.loads(json.dumps(gate_json(report, None)))["conditions"]
    assert condition["weather_hides_it"] is True
    assert condition["memory_share_low"] < 0.15
    assert condition["memory_share_high"] > 0.7
    shown = " ".join(gate_markdown(report).split())
    assert re.search(r"decode feels \d+ % \(\d+ % to \d+ %\) of a change of the memory", shown)
    same = gate(Synthetic(1, kind="slow"), run)
    assert same.outcome is Outcome.PASSED
    assert gate_json(same, None)["conditions"][0]["weather_hides_it"] is False
