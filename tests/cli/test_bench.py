"""`lpx bench`: a table for people, one JSON object for machines, on a tiny model."""

from __future__ import annotations

import json

import pytest

from tests.cli.test_errors import one_line

SMALL = ("--input-len", "12", "--output-len", "4", "--repeats", "2", "--max-model-len", "128")


@pytest.fixture
def latency(lpx, base_model):
    def call(*arguments):
        return lpx("bench", "latency", "--model", str(base_model), *SMALL, *arguments)

    return call


def test_latency_json_holds_everything(lpx, latency):
    done = latency("--batch-size", "2", "--isa", "portable", "--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    measured = json.loads(done.stdout)
    assert (measured["input_len"], measured["output_len"], measured["batch_size"], measured["repeats"]) == (12, 4, 2, 2)
    assert measured["in_use"]["isa"] == measured["limit"]["best_read"]["isa"] == "portable"
    assert measured["in_use"]["threads"] == 1
    for name in ("prefill_tokens_per_second", "decode_tokens_per_second", "time_to_first_token_ms", "decode_step_ms"):
        assert len(measured[name]["values"]) == 2
        assert measured[name]["median"] > 0
    limit = measured["limit"]
    assert limit["bytes_per_token"] == limit["weight_bytes_per_token"] + limit["kv_bytes_per_token"]
    step = measured["step"]
    assert sum(part["ms"] for part in step["parts"].values()) == pytest.approx(step["step_ms"])

    run = json.loads(lpx("bench", "show", str(measured["run_id"]), "--json").stdout)
    assert (run["kind"], run["batch_size"], run["input_len"], run["output_len"]) == ("latency", 2, 12, 4)
    assert run["figures"]["decode_tokens_per_second"] == measured["decode_tokens_per_second"]["median"]
    assert run["samples"]["decode_tokens_per_second"] == measured["decode_tokens_per_second"]["values"]
    assert len(run["subject"]["model_sha256"]) == 64
    assert run["settings"]["engine"]["isa"] == "portable"


def test_a_ledger_in_no_folder_is_refused_before_measuring(latency, tmp_path):
    assert "no folder" in one_line(latency("--ledger", str(tmp_path / "absent" / "ledger.sqlite")), 2)
    assert "folder" in one_line(latency("--ledger", str(tmp_path)), 2)


def test_latency_table_names_limit_and_parts_even_when_the_ledger_is_broken(latency, tmp_path):
    broken = tmp_path / "broken.sqlite"
    broken.write_text("no database")
    done = latency("--ledger", str(broken))
    assert done.returncode == 3
    assert done.stderr.startswith(f"error[LPX-E090]: this run is not in the ledger: the ledger {broken} is broken")
    assert done.stderr.count("\n") == 1
    assert broken.read_text() == "no database"
    for said in ("prefill, tokens/s", "decode, tokens/s", "GB/s", "limit of decode", "waiting at barriers", "total"):
        assert said in done.stdout
    assert "1 stream of 12 tokens in and 4 out, 2 repeats" in done.stdout
    assert "measured without drafts: `lpx bench compare` shows what speculation brings" in done.stdout


def test_latency_says_nothing_of_drafts_where_nobody_would_draft(latency):
    done = latency("--speculative-config", '{"method": "off"}', "--no-ledger")
    assert done.returncode == 0, done.stderr
    assert "speculation off" in done.stdout
    assert "without drafts" not in done.stdout


def test_latency_refuses_what_does_not_fit(latency):
    assert "--max-model-len" in one_line(latency("--input-len", "126"), 2)
    assert "--repeats" in one_line(latency("--repeats", "0"), 2)


def test_roofline_names_the_kernel_set_and_what_it_lacks(lpx):
    done = lpx("bench", "roofline", "--isa", "portable", "--json")
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout)
    assert (measured["memory"]["isa"], measured["memory"]["threads"]) == ("portable", 1)
    patterns = measured["memory"]["patterns"]
    assert measured["memory"]["bytes_per_second"] == max(figure["bytes_per_second"] for figure in patterns)
    assert measured["peaks"]["bf16"] is None
    assert measured["peaks"]["f32"]["multiply_adds_per_second"] > 0


def test_roofline_table_has_units(lpx):
    done = lpx("bench", "roofline")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    for said in ("memory read", "GB/s", "G multiply-adds/s", "int8", "bf16", "f32", "1 thread;"):
        assert said in done.stdout


def test_roofline_refuses_what_cannot_be_had(lpx):
    assert "threads" in one_line(lpx("bench", "roofline", "--threads", "0"), 2)
    assert "mmx" in one_line(lpx("bench", "roofline", "--isa", "mmx"), 2)
