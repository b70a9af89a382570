"""Every figure of a report equals the one computed by hand from a known schedule of pieces."""

from __future__ import annotations

import pytest

from tests.bench.load.fake_server import DONE, Script, chat, event, run_load, text, usage, words


def near(value):
    return pytest.approx(value, rel=1e-9)


def only(report):
    [result] = report.results
    return result.timings


@pytest.mark.parametrize("per_piece", [1, 2, 4, 8, 16])
def test_tokens_are_the_servers_count_however_many_a_piece_holds(per_piece):
    report = run_load([words(0.1, 0.2, 0.3, 0.4, 0.5, tokens=5 * per_piece)])
    timings = only(report)
    assert timings.ttft_ms == near(100)
    assert timings.output_tokens == 5 * per_piece
    assert timings.tpot_ms == near(400 / (5 * per_piece - 1))
    assert list(timings.itl_ms) == near([100, 100, 100, 100])
    assert timings.e2el_ms == near(500)
    assert report.seconds == near(0.5)
    assert report.figures["output_tokens_per_second"] == near(5 * per_piece / 0.5)
    assert report.figures["total_tokens_per_second"] == near((5 * per_piece + 7) / 0.5)
    assert report.figures["requests_per_second"] == near(2)


def test_one_token_has_no_tpot_and_no_gaps():
    report = run_load([words(0.25, tokens=1)])
    timings = only(report)
    assert (timings.ttft_ms, timings.tpot_ms, list(timings.itl_ms)) == (near(250), None, [])
    assert "tpot_ms_mean" not in report.figures
    assert "itl_ms_mean" not in report.figures


def test_an_answer_in_one_piece_has_no_tpot_though_it_has_many_tokens():
    report = run_load([words(0.25, tokens=32, ended=0.2501), words(0.25, tokens=32)])
    assert [result.timings.tpot_ms for result in report.results] == [None, None]
    assert any("came in one piece" in warning for warning in report.warnings)


def test_the_first_token_is_text_not_a_role_or_a_sign_of_life():
    steps = [
        (0.005, chat(role="assistant", content="")),
        (0.010, b": keep-alive\n\n"),
        (0.200, chat(reasoning_content="Let me")),
        (0.500, chat(reasoning_content=" think")),
        (2.000, chat("Hello")),
        (2.100, chat(" there")),
        (2.100, chat(finish="stop") + usage(13) + DONE),
    ]
    timings = only(run_load([Script(steps)], endpoint_type="openai-chat"))
    assert timings.ttft_ms == near(200)
    assert timings.ttft_visible_ms == near(2000)
    assert timings.tpot_ms == near(1900 / 12)
    assert list(timings.itl_ms) == near([300, 1500, 100])


@pytest.mark.parametrize(
    "delta",
    [
        {"reasoning": "Hm"},
        {"refusal": "No."},
        {"tool_calls": [{"index": 0, "function": {"name": "look_up"}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]},
        {"function_call": {"name": "look_up"}},
    ],
)
def test_hidden_text_starts_ttft_and_is_not_visible(delta):
    empty = [(0.1, chat(tool_calls=[{"index": 0, "id": "call_1", "function": {"name": "", "arguments": ""}}]))]
    steps = [*empty, (0.3, chat(**delta)), (0.4, chat(finish="tool_calls", usage=2) + DONE)]
    report = run_load([Script(steps)], endpoint_type="openai-chat")
    assert only(report).ttft_ms == near(300)
    assert only(report).ttft_visible_ms is None
    assert "ttft_visible_ms_mean" not in report.figures


def test_an_answer_without_text_gives_no_sample():
    nothing = Script([(0.1, chat(role="assistant", content="")), (0.2, chat(finish="stop") + usage(1) + DONE)])
    some = Script([(0.3, chat("a")), (0.4, chat("b")), (0.4, chat(finish="stop") + usage(3) + DONE)])
    report = run_load([nothing, some], endpoint_type="openai-chat")
    assert report.figures["ttft_ms_mean"] == near(300)
    assert report.figures["completed"] == 2
    assert report.figures["output_tokens"] == 4
    assert any("1 of 2 answers hold no text" in warning for warning in report.warnings)


def test_growing_usage_tells_how_many_tokens_the_first_text_came_with():
    held_back = [(0.1 * count, chat("", usage=count)) for count in range(1, 11)]
    steps = [*held_back, (1.1, chat("eleven at once", usage=11)), (1.2, chat("!", usage=12))]
    timings = only(
        run_load([Script([*steps, (1.3, chat(finish="stop", usage=13) + DONE)])], endpoint_type="openai-chat")
    )
    assert timings.ttft_ms == near(1100)
    assert timings.first_tokens == 11
    assert timings.tpot_ms == near(200 / 2)  # 1.1 to 1.3 s hold tokens 12 and 13


def test_last_tokens_that_only_the_usage_shows_are_counted_with_their_time():
    steps = [(0.1, chat("a", usage=1)), (0.2, chat("b", usage=2)), (0.5, usage(5) + DONE)]
    timings = only(run_load([Script(steps)], endpoint_type="openai-chat"))
    assert timings.tpot_ms == near(400 / 4)
    assert timings.e2el_ms == near(500)
    assert list(timings.itl_ms) == near([100])


def test_a_late_summary_is_no_token():
    steps = [(0.1, text("a")), (0.2, text("b", finish_reason="stop")), (0.9, usage(3)), (0.9, DONE)]
    timings = only(run_load([Script(steps)]))
    assert (timings.tpot_ms, timings.e2el_ms) == (near(50), near(200))


def test_token_ids_count_where_there_is_no_usage():
    steps = [
        (0.1, event({"text": "", "token_ids": [5]})),
        (0.2, event({"text": "ab", "token_ids": [6, 7]})),
        (0.4, event({"text": "c", "token_ids": [8, 9]})),
        (0.4, event({"text": "", "token_ids": [], "finish_reason": "length"}) + DONE),
    ]
    timings = only(run_load([Script(steps)], endpoint_type="lpx"))
    assert timings.ttft_ms == near(200)
    assert (timings.first_tokens, timings.output_tokens) == (3, 5)
    assert timings.tpot_ms == near(200 / 2)


def test_answers_that_nobody_counted_have_no_tokens():
    steps = [(0.1, text("a b c")), (0.2, text("d", finish_reason="stop")), (0.2, DONE)]
    report = run_load([Script(steps), words(0.1, 0.2)])
    assert report.results[0].timings.output_tokens is None
    assert "output_tokens_per_second" not in report.figures
    assert report.figures["tpot_ms_mean"] == near(100 / 3)
    assert report.figures["ttft_ms_mean"] == near(100)
    assert any("1 of 2 answers came without a token count" in warning for warning in report.warnings)


def test_texts_are_encoded_again_where_the_server_does_not_count():
    steps = [(0.1, text("a b c ")), (0.4, text("d", finish_reason="stop")), (0.4, DONE)]
    report = run_load([Script(steps), words(0.1, 0.2, tokens=2)], tokenize=lambda text: len(text.split()))
    assert [each.timings.output_tokens for each in report.results] == [4, 2]
    assert report.results[0].timings.tpot_ms == near(300 / 3)
    assert report.figures["output_tokens_per_second"] == near(6 / 0.6)
    assert report.recounted.answers == 1
    assert any("1 of 2 answers came without a token count: their texts were encoded" in w for w in report.warnings)


def test_events_of_one_piece_share_its_time_and_an_event_has_the_time_of_its_last_byte():
    two = text("a") + text("b")
    cut = text("你好")
    steps = [(0.1, two), (0.2, cut[:30]), (0.3, cut[30:-1]), (0.4, cut[-1:]), (0.5, text("", finish_reason="stop"))]
    timings = only(run_load([Script([*steps, (0.5, usage(4) + DONE)])]))
    assert list(timings.itl_ms) == near([0, 300])
    assert timings.ttft_ms == near(100)
    assert timings.tpot_ms == near(400 / 3)


@pytest.mark.parametrize("framing", ["chunked", "length", "close"])
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
def test_framings_and_line_ends_change_nothing(framing, line_end):
    steps = [(at, data.replace(b"\n", line_end)) for at, data in words(0.1, 0.3, tokens=3).steps]
    report = run_load([Script(steps, framing=framing), Script(steps, framing=framing)])
    assert [(each.timings.ttft_ms, each.timings.tpot_ms) for each in report.results] == [(near(100), near(100))] * 2
    assert report.results[0].text == "w0 w1 "


def test_a_whole_answer_has_its_time_and_no_ttft():
    body = event({"choices": [{"text": "hello", "finish_reason": "stop"}], "usage": {"completion_tokens": 3}})[6:]
    report = run_load([Script([(0.7, body)], content_type="application/json", framing="length")], stream=False)
    assert only(report).e2el_ms == near(700)
    assert only(report).ttft_ms is None
    assert report.figures["output_tokens_per_second"] == near(3 / 0.7)
    assert report.warnings == ()
    ignored = run_load([Script([(0.7, body)], content_type="application/json", framing="length")])
    assert any("did not come as a stream" in warning for warning in ignored.warnings)


def test_means_and_percentiles_over_requests():
    report = run_load([words(0.01 * n, 0.01 * n + 0.1, tokens=n + 1) for n in range(1, 11)], percentiles=(50, 90, 99.9))
    figures = report.figures
    assert figures["ttft_ms_mean"] == near(55)
    assert figures["ttft_ms_median"] == figures["ttft_ms_p50"] == near(55)
    assert figures["ttft_ms_p90"] == near(91)
    assert figures["ttft_ms_p99.9"] == near(99.91)
    assert figures["e2el_ms_mean"] == near(155)
    assert figures["tpot_ms_mean"] == near(sum(100 / n for n in range(1, 11)) / 10)
    assert figures["itl_ms_mean"] == near(100)
    assert report.seconds == near(sum(0.01 * n + 0.1 for n in range(1, 11)))
    assert figures["output_tokens"] == 65


def test_goodput_counts_requests_that_keep_all_limits():
    fast, slow_start, slow_pace = words(0.1, 0.2, tokens=2), words(0.3, 0.4, tokens=2), words(0.1, 0.6, tokens=2)
    silent = Script([(0.1, text("", finish_reason="stop") + usage(1) + DONE)])
    report = run_load([fast, slow_start, slow_pace, silent], goodput={"ttft": 200, "tpot": 150})
    assert report.figures["goodput_requests_per_second"] == near(1 / 1.3)
    report = run_load([fast, slow_start, slow_pace], goodput={"e2el": 400, "itl": 200})
    assert report.figures["goodput_requests_per_second"] == near(2 / 1.2)


def test_the_measurement_holds_what_the_report_says():
    report = run_load([words(0.1, 0.2, tokens=2), words(0.3, 0.5, tokens=6)], seed=3)
    measurement = report.measurement()
    assert (measurement.kind, measurement.batch_size, measurement.input_len, measurement.output_len) == (
        "serve",
        1,
        7,
        4,
    )
    assert (measurement.subject.model, measurement.subject.engine) == ("fake-model", "vllm")
    assert measurement.subject.engine_version == "1.2.3"
    assert measurement.samples["ttft_ms"] == near((100, 300))
    assert measurement.samples["tpot_ms"] == near((100, 40))
    assert measurement.figures == report.figures
    assert measurement.settings["seed"] == 3
    assert measurement.seconds == near(0.7)


def test_what_is_not_known_keeps_no_limit():
    uncounted = Script([(0.1, text("a")), (0.6, text("b") + DONE)])
    lump = words(0.1, tokens=100)
    report = run_load([uncounted, lump], goodput={"tpot": 1000})
    assert report.figures["goodput_requests_per_second"] == 0
    report = run_load([lump], goodput={"itl": 1000})
    assert report.figures["goodput_requests_per_second"] == 0
    report = run_load([words(0.1, tokens=1)], goodput={"itl": 1000, "tpot": 1000})
    assert report.figures["goodput_requests_per_second"] == near(1 / 0.1)


def test_the_report_says_how_many_answers_have_no_value_for_a_limit():
    uncounted = Script([(0.1, text("a")), (0.6, text("b") + DONE)])
    lump, one, good = words(0.1, tokens=100), words(0.1, tokens=1), words(0.1, 0.2, tokens=2)
    report = run_load([uncounted, lump, one, good], goodput={"tpot": 1000, "itl": 1000, "ttft": 1000})
    assert report.goodput_unknown == report.as_json()["goodput_unknown"] == {"tpot": 2, "itl": 1}
    assert [warning for warning in report.warnings if "--goodput" in warning] == [
        "2 of 4 answers have no known TPOT: they count as not keeping --goodput tpot:1000",
        "1 of 4 answers have no known ITL: they count as not keeping --goodput itl:1000",
    ]
    known = run_load([good], goodput={"tpot": 1000})
    assert (known.goodput_unknown, known.warnings) == ({}, ())


def test_texts_and_gaps_are_kept_within_a_bound_and_figures_are_not_lost(monkeypatch):
    from lpx.bench.load import kept_answers

    monkeypatch.setattr(kept_answers, "MOST_TEXT_BYTES", 250)
    monkeypatch.setattr(kept_answers, "MOST_GAPS", 2)
    answers = [words(0.1, 0.2, tokens=2), words(0.1, 0.3, tokens=3), words(0.1, 0.4, tokens=4)]
    report = run_load(answers, goodput={"itl": 1000}, tokenize=lambda text: len(text.split()))
    assert [result["text"] for result in report.as_json(detailed=True)["requests"]] == ["w0 w1 ", "w0 w1 ", None]
    assert [list(result.timings.itl_ms) for result in report.results] == [near([100.0]), near([200.0]), []]
    assert report.samples("tpot") == near([100, 100, 100])
    assert report.goodput_unknown == {"itl": 1}
    assert any("the texts of 1 answers are not kept" in warning for warning in report.warnings)
    assert any("ITL leaves 1 answers out" in warning for warning in report.warnings)
