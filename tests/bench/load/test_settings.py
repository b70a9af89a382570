"""Settings: what makes no sense is refused with the option's name, and what is kept gives the same load again."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest

from lpx.bench.load import DecodeSettings, LoadSettings
from lpx.errors import ConfigError


@pytest.mark.parametrize(
    ("url", "base", "path"),
    [
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080", "/v1/completions"),
        ("127.0.0.1:8080/", "http://127.0.0.1:8080", "/v1/completions"),
        ("https://api.example.com/v1", "https://api.example.com", "/v1/completions"),
        ("https://example.com/openai/v1/", "https://example.com/openai", "/v1/completions"),
        ("http://[::1]:8000/v1/chat/completions", "http://[::1]:8000", "/v1/chat/completions"),
    ],
)
def test_addresses_are_taken_as_people_write_them(url, base, path):
    settings = LoadSettings(base_url=url)
    assert (settings.base_url, settings.path) == (base, path)


@pytest.mark.parametrize(
    "url", ["", "ftp://x", "http://", "http://a b", "http://x:99999", "http://x/?q=1", "http://例子", "http://u:p@x"]
)
def test_what_is_no_address_is_refused(url):
    with pytest.raises(ConfigError) as caught:
        LoadSettings(base_url=url)
    assert "u:p" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("", "the name of the server is missing"),
        ("http://:8080", "the name of the server is missing"),
        ("u:p@x:99999", "holds a name or password"),
        ("ftp://u:p@x", "holds a name or password"),
        ("htp://x", "'htp' is neither http nor https"),
        ("http://x:0", "there is no port 0"),
        ("http://x:abc", "Port could not be cast"),
        ("http://a..b", "'a..b' is no name of a server"),
        ("http://" + "a" * 64, "is no name of a server"),
        ("http://[::1", "IPv6 URL"),
        ("http://[1::2::3]:80", "IPv6 address"),
        ("http://例子.中国", "write its xn-- form"),
        ("http://x/a b", "its path holds a space"),
        ("http://x/v1?key=1", "has a query"),
    ],
)
def test_the_refusal_of_an_address_says_what_is_wrong_with_it(url, complaint):
    with pytest.raises(ConfigError, match=re.escape(complaint)) as caught:
        LoadSettings(base_url=url)
    assert "u:p" not in str(caught.value)


WRONG = [
    ({"endpoint_type": "grpc"}, "--endpoint-type 'grpc'"),
    ({"endpoint": "v1"}, "--endpoint is a path"),
    ({"endpoint": "/a b\r\nX: 1"}, "--endpoint is a path"),
    ({"dataset_name": "sonnet"}, "--dataset-name 'sonnet'"),
    ({"dataset_name": "custom"}, "--dataset-name custom needs --dataset-path"),
    ({"dataset_path": "x"}, "--dataset-path is for custom and sharegpt"),
    ({"dataset_name": "chat"}, "needs --endpoint-type openai-chat"),
    ({"num_prompts": 0}, "--num-prompts must be at least 1"),
    ({"max_concurrency": 0}, "--max-concurrency must be at least 1, not 0"),
    ({"request_rate": 0.0}, "--request-rate must be a number above 0"),
    ({"request_rate": float("nan")}, "--request-rate must be a number above 0"),
    ({"burstiness": -1.0, "request_rate": 1.0}, "--burstiness"),
    ({"burstiness": 2.0}, "it needs --request-rate"),
    *(
        ({"burstiness": wrong, "request_rate": 1.0}, "--burstiness must be a number above 0")
        for wrong in (0.0, float("inf"), float("nan"))
    ),
    ({"burstiness": 1e-300, "request_rate": 1.0}, "--burstiness must be from 1e-06 to 1e+09"),
    ({"request_rate": 1e-300}, "--request-rate must be from 1e-06"),
    ({"request_timeout_s": 1e300}, "--request-timeout must be from 1e-06 to 1e+09"),
    ({"ramp_up_strategy": "linear", "ramp_up_start_rps": 0.0, "ramp_up_end_rps": 2.0}, "--ramp-up-start-rps must be"),
    ({"ramp_up_strategy": "linear", "ramp_up_start_rps": 1.0, "ramp_up_end_rps": -2.0}, "--ramp-up-end-rps must be"),
    ({"input_len": 10**9, "dataset_name": "random"}, "--random-input-len must be at most 1,048,576, not 1,000,000,000"),
    ({"output_len": 10**4000}, "--random-output-len must be at most"),
    ({"num_warmups": 10**7}, "--num-warmups must be at most 1,000,000"),
    ({"max_concurrency": 10**7}, "--max-concurrency must be at most"),
    ({"extra_body": {"a": [float("nan")]}}, "--extra-body cannot be sent as JSON"),
    ({"extra_body": [1]}, "--extra-body is a JSON object"),
    ({"input_len": 5}, "--random-input-len is for --dataset-name random and prefix_repetition and long, not fixed"),
    ({"prefix_len": 5, "dataset_name": "long"}, "--random-prefix-len is for"),
    ({"range_ratio": 0.5}, "--random-range-ratio is for"),
    ({"duration_s": float("inf")}, "--duration"),
    ({"input_len": 0, "dataset_name": "random"}, "--random-input-len must be at least 1"),
    ({"output_len": -5}, "--random-output-len"),
    ({"range_ratio": 1.0, "dataset_name": "random"}, "--random-range-ratio"),
    ({"temperature": -0.1}, "--temperature"),
    ({"goodput": {"speed": 3.0}}, "--goodput speed:3 is no limit"),
    ({"goodput": {"ttft": 0.0}}, "--goodput ttft:0"),
    ({"percentiles": (50, 100)}, "--metric-percentiles must lie between 0 and 100, not 100"),
    ({"ramp_up_strategy": "steep"}, "--ramp-up-strategy 'steep'"),
    ({"ramp_up_strategy": "linear"}, "needs --ramp-up-start-rps"),
    ({"ramp_up_start_rps": 1.0}, "need --ramp-up-strategy"),
    (
        {"ramp_up_strategy": "linear", "ramp_up_start_rps": 1.0, "ramp_up_end_rps": 2.0, "request_rate": 1.0},
        "takes the place of --request-rate",
    ),
]


@pytest.mark.parametrize(("options", "complaint"), WRONG)
def test_values_that_make_no_sense_are_refused(options, complaint):
    with pytest.raises(ConfigError) as caught:
        LoadSettings(base_url="http://x", **options)
    assert complaint in str(caught.value)


def test_settings_survive_json():
    settings = LoadSettings(
        base_url="http://x/v1",
        endpoint_type="vllm",
        dataset_name="shared-prefix",
        goodput={"ttft": 200.0},
        percentiles=(50, 99.9),
        extra_body={"logit_bias": {"5": -100}},
        metadata={"地点": "上海"},
        max_concurrency=4,
        nonce="n",
    )
    kept = json.loads(json.dumps(settings.as_json()))
    assert LoadSettings.from_json(kept) == settings
    assert "seed" not in kept  # defaults are not repeated
    assert dataclasses.replace(settings, seed=1).as_json()["seed"] == 1
    with pytest.raises(ConfigError, match="speed not known"):
        LoadSettings.from_json({**kept, "speed": 1})
    with pytest.raises(ConfigError, match="base_url is missing"):
        LoadSettings.from_json({})


def test_decode_settings_survive_json():
    settings = DecodeSettings(base_url="http://x", output_lens=(64, 16, 16), concurrency=2)
    assert settings.output_lens == (16, 64)
    assert DecodeSettings.from_json(json.loads(json.dumps(settings.as_json()))) == settings
    for options, complaint in (
        ({"output_lens": (5,)}, "--output-lens needs two or more"),
        ({"output_lens": (0, 5)}, "--output-lens"),
        ({"concurrency": 0}, "--concurrency must be at least 1"),
        ({"repeats": 0}, "--repeats must be at least 1"),
        ({"input_len": 0}, "--input-len must be at least 1"),
        ({"repeats": 10**9}, "--repeats must be at most"),
    ):
        with pytest.raises(ConfigError, match=complaint):
            DecodeSettings(base_url="http://x", **options)
    with pytest.raises(ConfigError, match="no settings of bench decode"):
        DecodeSettings.from_json({"base_url": "http://x", "speed": 1})
