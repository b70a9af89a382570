"""Servers as sides: real ones on free ports, with a fake model whose tokens are bytes."""

import json
from dataclasses import replace

import pytest

from lpx.bench.compare.comparison import CompareSettings, compare_sides
from lpx.bench.gate.conditions import parse_conditions
from lpx.bench.gate.gate import run_paired_gate
from lpx.bench.gate.pairs import open_pairs, paired_workload
from lpx.bench.gate.sessions import ServerSessions, open_sessions, runs_here
from lpx.bench.sides.asking import AskedServer, Question
from lpx.bench.sides.spec import parse_sides
from lpx.bench.sides.worker import SideError
from lpx.bench.weather import Look, WeatherGlass
from lpx.errors import ConfigError
from tests.engine.fake_executor import FakeExecutor
from tests.server.conftest import start_server  # noqa: F401

LOOK = Look(20e9, 200e9)
LOAD = {"dataset_name": "random", "num_prompts": 3, "max_concurrency": 1, "input_len": 8, "output_len": 6}


def says(first, second=None):
    """Always `first`; `second` behind three tokens of an answer, so that two models differ there."""

    def choose(tokens):
        return ord(second if second is not None and tokens[-3:] == [ord(first)] * 3 else first)

    return choose


def engine_of(word, second=None):
    return FakeExecutor(num_blocks=256, block_size=4, choose=says(word, second))


def test_texts_that_differ_are_found_with_their_place(start_server):  # noqa: F811
    first, second = (start_server(executor) for executor in (engine_of("a"), engine_of("a", "b")))
    report = compare_sides(
        parse_sides([first.url, second.url]),
        CompareSettings(rounds=2, max_tokens=6, prompts=("你好", "hi"), ignore_eos=True),
    )
    one, other = report.sides
    assert one.subject.url == first.url
    assert [reply.tokens for reply in one.replies] == [6] * 4
    assert (other.texts.same, other.texts.answers) == (0, 4)
    assert [(each.prompt, each.at, each.first[0], each.other[0]) for each in other.texts.differences] == [
        (1, 3, "a", "b"),
        (2, 3, "a", "b"),
    ]
    assert set(other.ratios) >= {"ttft_ms", "e2el_ms"}  # so fast a model may send all tokens at once
    assert [made.subject.url for made in report.measurements()] == [first.url, second.url]


def test_the_same_question_again_finds_nothing_of_earlier_answers(start_server):  # noqa: F811
    (side,) = parse_sides([start_server().url])
    asking = AskedServer(side, Question(max_tokens=4, chat=False, ignore_eos=True))
    try:
        salts = [json.loads(asking.body("hi"))["cache_salt"] for _ in range(2)]
        assert salts[0] != salts[1]
        assert asking.ask("hi").tokens == 4
        asking.subject = replace(asking.subject, engine="vllm")
        assert "cache_salt" not in json.loads(asking.body("hi"))  # which others may refuse
    finally:
        asking.close()


def test_a_side_that_refuses_is_named(start_server):  # noqa: F811
    server = start_server()
    settings = CompareSettings(rounds=1, max_tokens=4, prompts=("hi" * 500,))
    with pytest.raises(SideError, match=r"A: http://127.0.0.1:\d+: http_400"):
        compare_sides(parse_sides([server.url, f"{server.url},name=again"]), settings)


def test_a_load_on_a_server_is_a_workload(start_server, monkeypatch):  # noqa: F811
    monkeypatch.setattr(WeatherGlass, "__init__", lambda self: None)
    monkeypatch.setattr(WeatherGlass, "look", lambda self: LOOK)
    server = start_server()
    workload = open_sessions("serve", {"base_url": server.url, **LOAD})
    pieces = workload.session(5)
    assert {piece.phase for piece in pieces} == {"prefill", "decode"}
    figures = {name for piece in pieces for name in piece.figures}
    assert {"ttft_ms_p99", "e2el_ms_median", "output_tokens_per_second"} <= figures
    assert all(piece.session == 5 and piece.weather == LOOK for piece in pieces)
    assert workload.subject.url == server.url


def test_two_servers_in_turns(start_server):  # noqa: F811
    ours, theirs = start_server(), start_server()
    plan = paired_workload(ours.url, theirs.url, None, (), {})
    assert plan.kind == "serve"
    plan = type(plan)(plan.ours, plan.theirs, plan.kind, LOAD)
    conditions = parse_conditions(["ttft:+9900%", "requests:-99%"])
    report = run_paired_gate(open_pairs(plan), conditions, against=theirs.url, settings=plan.described(), seconds=0)
    assert [each.comparison.sessions for each in report.decisions] == [(4, 4)] * 2
    assert (report.after.url, report.before.url) == (ours.url, theirs.url)


def test_an_engine_and_a_server_are_for_compare(start_server):  # noqa: F811
    plan = paired_workload("lpx", start_server().url, None, (), {})
    with pytest.raises(ConfigError, match="lpx bench compare"):
        open_pairs(plan)


@pytest.mark.parametrize(
    ("url", "here"),
    [("http://127.0.0.1:1", True), ("http://localhost", True), ("http://[::1]:8", True), ("http://192.0.2.1", False)],
)
def test_only_servers_of_this_machine_have_its_weather(url, here):
    assert runs_here(url) is here


def test_a_server_elsewhere_is_not_looked_at():
    assert ServerSessions("serve", {"base_url": "http://192.0.2.1:8000"})._glass is None
