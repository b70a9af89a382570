"""Exports: valid for every reader, and safe to open in a spreadsheet."""

from __future__ import annotations

import csv
import io
import json
import math

from hypothesis import given
from hypothesis import strategies as st

from lpx.bench.ledger import Run
from lpx.bench.ledger.export import to_csv, to_json
from tests.bench.ledger.example_runs import ENVIRONMENT, a_measurement


def a_run(*arguments, run_id=1, tags=(), note="", **changes):
    return Run(
        id=run_id,
        measurement=a_measurement(*arguments, **changes),
        environment=ENVIRONMENT,
        environment_sha256=ENVIRONMENT.sha256,
        tags=tags,
        note=note,
    )


def lines(runs):
    return list(csv.DictReader(io.StringIO(to_csv(runs), newline="")))


def test_csv_has_a_line_a_run_and_a_column_a_figure():
    first, second = lines([a_run(), a_run(run_id=2, figures={"perplexity": -1.5}, errors={}, note="再来\n一次")])
    assert (first["id"], first["model"], first["decode_tokens_per_second"], first["perplexity"]) == (
        "1",
        "千问-0.5b",
        "100.0",
        "",
    )
    assert (first["errors"], first["nvidia_driver"], first["started"]) == ("2", "550.54.14", "2026-01-31T12:00:00Z")
    assert json.loads(first["settings"])["prompts"] == ["你好", "hello"]
    assert (second["perplexity"], second["note"], second["decode_tokens_per_second"]) == ("-1.5", "再来\n一次", "")


def test_csv_text_is_no_formula():
    for name in ("=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "  =1", "\u00a0=1", "\u3000=1", "＝1", "\0=1"):
        run = a_run(name, note=name, tags=(name,), subject={"url": name, "engine": name}, figures={name: 1.0})
        (line,) = lines([run])
        for column in ("model", "note", "tags", "url", "engine"):
            assert line[column] == f"'{name}".replace("\0", "")
        assert f"'{name}".replace("\0", "") in line


@given(st.text(max_size=40))
def test_csv_never_begins_a_cell_with_what_computes(text):
    (line,) = lines([a_run(text, note=text)])
    for value in (line["model"], line["note"]):
        assert value.strip(" \u00a0\u3000\ufeff")[:1] not in set("=+-@\t\r\n＝＋－＠") | {"\0"}
        assert value.removeprefix("'") == text.replace("\0", "") or value == text.replace("\0", "")


def test_json_is_json():
    run = a_run(figures={"a": math.nan, "b": math.inf}, samples={"s": (1.0, math.nan)})
    (found,) = json.loads(to_json([run]), parse_constant=lambda name: 1 / 0)  # NaN and Infinity are no JSON
    assert found["figures"] == {"a": None, "b": None}
    assert found["samples"] == {"s": [1.0, None]}
    assert found["environment"]["gpus"] == ["NVIDIA Example"]
    assert found["subject"]["model"] == "千问-0.5b"
    assert "千问" in to_json([run])
