"""What a line asks for, and what is wrong with one. Case B04 of public failures: bad rows."""

from __future__ import annotations

import contextlib
import json
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lpx.batch.input_file import Line
from lpx.batch.json_text import json_line, read_json
from lpx.batch.line_request import LineError, LineRequest, request_of

BODY = {"messages": [{"role": "user", "content": "你好"}]}
WHOLE = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": BODY}


def line_of(data: bytes) -> Line:
    return Line(0, 1, 0, data, sha256(data).hexdigest())


def parse(value: object) -> LineRequest:
    return request_of(line_of(value if isinstance(value, bytes) else json.dumps(value).encode()))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (WHOLE, LineRequest("a", "/v1/chat/completions", BODY)),
        ({"prompt": "Hi", "top_k": 3}, LineRequest(None, "/v1/completions", {"prompt": "Hi", "top_k": 3})),
        ({**BODY, "custom_id": "行"}, LineRequest("行", "/v1/chat/completions", BODY)),
        ({"input": ["x"], "stream": False}, LineRequest(None, "/v1/embeddings", {"input": ["x"], "stream": False})),
        ({"prompt": 123}, LineRequest(None, "/v1/completions", {"prompt": 123})),  # for whoever answers to refuse
    ],
)
def test_every_form_becomes_a_request(value: object, expected: LineRequest) -> None:
    assert parse(value) == expected


@pytest.mark.parametrize(
    ("value", "code", "custom_id"),
    [
        (b"nonsense", "invalid_json_line", None),
        (b"[1]", "invalid_json_line", None),
        (b'{"prompt": "' + "你好".encode("gbk") + b'"}', "invalid_json_line", None),
        (b'{"prompt": "a", "prompt": "b"}', "invalid_json_line", None),
        (b'{"prompt": "a", "temperature": NaN}', "invalid_json_line", None),
        (b'{"prompt": "a", "temperature": 1e999}', "invalid_json_line", None),
        (b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}", "invalid_json_line", None),
        (b"[" * 100_000, "invalid_json_line", None),
        ({key: value for key, value in WHOLE.items() if key != "custom_id"}, "missing_required_parameter", None),
        ({key: value for key, value in WHOLE.items() if key != "method"}, "missing_required_parameter", "a"),
        ({key: value for key, value in WHOLE.items() if key != "body"}, "missing_required_parameter", "a"),
        ({**WHOLE, "custom_id": 7}, "invalid_custom_id", None),
        ({**WHOLE, "custom_id": ""}, "invalid_custom_id", None),
        ({**WHOLE, "custom_id": "x" * 513}, "invalid_custom_id", None),
        ({**WHOLE, "method": "GET"}, "invalid_method", "a"),
        ({**WHOLE, "url": "/v1/images"}, "invalid_url", "a"),
        ({**WHOLE, "url": ["/v1/embeddings"]}, "invalid_url", "a"),
        ({**WHOLE, "body": "text"}, "invalid_body", "a"),
        ({**WHOLE, "body": {**BODY, "stream": True}}, "invalid_stream", "a"),
        ({**WHOLE, "temperature": 0}, "unknown_parameter", "a"),
        ({"prompt": "a", "stream": True}, "invalid_stream", None),
        ({"prompt": "a", "messages": []}, "missing_required_parameter", None),
        ({"custom_id": "b", "text": "a"}, "missing_required_parameter", "b"),
        ({}, "missing_required_parameter", None),
    ],
)
def test_every_kind_of_bad_line_is_told(value: object, code: str, custom_id: str | None) -> None:
    with pytest.raises(LineError) as caught:
        parse(value)
    assert (caught.value.code, caught.value.custom_id) == (code, custom_id)
    assert "Traceback" not in str(caught.value)


def test_a_batch_for_one_endpoint_takes_no_other() -> None:
    with pytest.raises(LineError) as caught:
        request_of(line_of(json.dumps(WHOLE).encode()), "/v1/embeddings")
    assert caught.value.code == "mismatched_endpoint"


@given(st.binary(max_size=60))
def test_no_bytes_crash_it(data: bytes) -> None:
    with contextlib.suppress(LineError):
        request_of(line_of(data))


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda each: st.lists(each), max_leaves=10))
def test_what_is_written_is_one_line_that_reads_back(value: object) -> None:
    value = [value, "\u2028\u2029\x85\x0b\x0c\r\n\x1c", "\ud800 lone", "你好"]
    data = json_line(value)
    assert len(data.decode("utf-8").splitlines()) == 1
    assert read_json(data) == value


def test_chinese_stays_readable() -> None:
    assert "你好" in json_line({"content": "你好"}).decode()
