"""What the service refuses, and how: OpenAI's error object, short, without an echo, and never a 500."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import httpx
import pytest

from lpx.server.settings import ServerSettings
from tests.server.conftest import StartServer
from tests.server.live_server import LiveServer

COMPLETIONS = "/v1/completions"
MARKER = "MARKER-4711"


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    """The error object, after the checks that hold for every refusal."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert len(response.content) < 4096
    assert MARKER not in response.text
    body = response.json()
    assert set(body) == {"error"}
    error: dict[str, Any] = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["message"]
    return error


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [[-1]]}, "prompt"),
        ({"prompt": [259]}, "prompt"),
        ({"prompt": [5, 4294967295]}, "prompt"),
        ({"prompt": [1.5]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": [["a"]]}, "prompt"),
        ({"prompt": [None]}, "prompt"),
        ({"prompt": {"a": MARKER}}, "prompt"),
        ({"prompt": 123}, "prompt"),
        ({"prompt": True}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": ["x"] * 100_000}, "prompt"),
        ({"prompt": [MARKER, {}] * 6000}, "prompt"),
        ({"n": 0}, "n"),
        ({"n": -1}, "n"),
        ({"n": 10**6}, "n"),
        ({"n": True}, "n"),
        ({"n": "2"}, "n"),
        ({"best_of": 2}, "best_of"),
        ({"suffix": MARKER}, "suffix"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "16"}, "max_tokens"),
        ({"max_tokens": 1.0}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": 2**80}, "max_tokens"),
        ({"logprobs": -1}, "logprobs"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": 10**6}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"seed": 2**64}, "seed"),
        ({"seed": -(2**63) - 1}, "seed"),
        ({"seed": "100"}, "seed"),
        ({"seed": True}, "seed"),
        ({"seed": 1.5}, "seed"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": "1"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"top_k": 1.5}, "top_k"),
        ({"min_p": 1.1}, "min_p"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"repetition_penalty": -1}, "repetition_penalty"),
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"frequency_penalty": -2.1}, "frequency_penalty"),
        ({"stop": ""}, "stop"),
        ({"stop": ["", "x"]}, "stop"),
        ({"stop": ["x"] * 100}, "stop"),
        ({"stop": "x" * 1_000_000}, "stop"),
        ({"stop": [1]}, "stop"),
        ({"stop": 1}, "stop"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"stop_token_ids": [151645]}, "stop_token_ids"),
        ({"stop_token_ids": ["1"]}, "stop_token_ids"),
        ({"stop_token_ids": [True]}, "stop_token_ids"),
        ({"logit_bias": {"191222": -100, "9": 5}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"abc": 1}}, "logit_bias"),
        ({"logit_bias": {"": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 1e9}}, "logit_bias"),
        ({"logit_bias": {"5": "x"}}, "logit_bias"),
        ({"logit_bias": {"5": True}}, "logit_bias"),
        ({"logit_bias": {"5": 1, "05": 2}}, "logit_bias"),
        ({"logit_bias": {"1" * 5000: 1}}, "logit_bias"),
        ({"logit_bias": {str(i): 1 for i in range(5000)}}, "logit_bias"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"min_tokens": 20, "max_tokens": 10}, "min_tokens"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"ignore_eos": 1}, "ignore_eos"),
        ({"echo": "true"}, "echo"),
        ({"stream": 1}, "stream"),
        ({"stream": "false"}, "stream"),
        ({"stream_options": {"include_usage": 1}, "stream": True}, "stream_options.include_usage"),
        ({"stream_options": {"x": 1}, "stream": True}, "stream_options.x"),
        ({"stream_options": [], "stream": True}, "stream_options"),
        ({"model": 5}, "model"),
        ({"model": ["fake"]}, "model"),
        ({"temprature": MARKER}, "temprature"),
        ({"response_format": {"type": MARKER}}, "response_format"),
        ({"tools": [{"type": MARKER}]}, "tools"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"guided_json": {"title": MARKER, "not": {}}}, "guided_json"),
        ({"guided_json": "{" + MARKER}, "guided_json"),
        ({"mirostat": 2}, "mirostat"),
        ({"store": True}, "store"),
        ({"parallel_tool_calls": MARKER}, "parallel_tool_calls"),
    ],
)
def test_wrong_value_is_named_and_not_repeated(shared_server: LiveServer, body: dict[str, Any], param: str) -> None:
    wrong = {"prompt": "x", **body} if body else {}
    error = error_of(shared_server.post(COMPLETIONS, wrong), 400)
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert param.split(".")[0] in error["message"]


def test_unknown_field_is_named_but_cut(shared_server: LiveServer) -> None:
    error = error_of(shared_server.post(COMPLETIONS, {"prompt": "x", "y" * 100_000: 1}), 400)
    assert error["code"] == "unknown_parameter"
    assert error["param"].startswith("yyyy")


@pytest.mark.parametrize(
    "fields",
    [
        {"user": "somebody", "metadata": {"a": "b"}, "store": False, "service_tier": "auto"},
        {"n": 1, "best_of": 1, "suffix": None, "logit_bias": None, "stop": None, "logprobs": None, "seed": None},
        {"stop": [], "logit_bias": {}, "stop_token_ids": []},
        {"response_format": {"type": "text"}, "use_beam_search": False, "cache_prompt": True, "mirostat": 0},
        {"temperature": 0, "top_p": 1, "top_k": -1, "min_p": 0, "presence_penalty": 0, "frequency_penalty": 0},
        {"temperature": 1e-7},
        {"temperature": 1e6, "top_k": 10**9},
        {"model": "fake"},
        {"model": "default"},
        {"model": None},
        {"max_tokens": 2**40},
    ],
)
def test_neutral_fields_are_accepted(shared_server: LiveServer, fields: dict[str, Any]) -> None:
    assert shared_server.post(COMPLETIONS, {"prompt": "x", **fields}).status_code == 200


@pytest.mark.parametrize("path", ["/generate", COMPLETIONS, "/v1/chat/completions"])
@pytest.mark.parametrize("name", ["gpt-4", "../../etc/passwd", "a\0b", "x" * 5000, ""])
def test_other_models_are_not_found(shared_server: LiveServer, path: str, name: str) -> None:
    body = {"model": name, "prompt": "x", "messages": [{"role": "user", "content": "x"}]}
    del body["messages" if path != "/v1/chat/completions" else "prompt"]
    error = error_of(shared_server.post(path, body), 404)
    assert (error["code"], error["param"]) == ("model_not_found", "model")


@pytest.mark.parametrize(
    "name",
    [
        "../../etc/passwd",
        "..%2f..%2fetc%2fpasswd",
        "%2e%2e/%2e%2e/etc/passwd",
        "/etc/passwd",
        "a%00b",
        "C:%5Cx",
        "x" * 5000,
        "%ff",
    ],
)
def test_names_in_the_path_reach_no_file(shared_server: LiveServer, name: str) -> None:
    head = f"GET /v1/models/{name} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    answer = answer_to(shared_server, head.encode())
    assert answer.startswith(b"HTTP/1.1 404"), answer
    assert b"root:" not in answer
    assert os.fsencode(Path(__file__).parents[2]) not in answer


# --- bodies -------------------------------------------------------------------------------------------------------


def post_raw(server: LiveServer, content: Any, **headers: str) -> httpx.Response:
    return server.client.post(COMPLETIONS, content=content, headers={"content-type": "application/json"} | headers)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"   ",
        b"{",
        b'{"prompt": "MARKER-4711',
        b'{"prompt": "MARKER-4711" "x"}',
        b"[]",
        b'"MARKER-4711"',
        b"null",
        b"1",
        b'{"prompt": "\xff\xfe"}',
        b'{"prompt": "\xed\xa0\x80"}',  # a surrogate in UTF-8
        b'{"prompt": "a", "prompt": "b"}',
        b'{"prompt": "a", "temperature": NaN}',
        b'{"prompt": "a", "temperature": Infinity}',
        b'{"prompt": "a", "temperature": -Infinity}',
        b'{"prompt": "a", "temperature": 1e999}',
        b'{"prompt": "a", "seed": ' + b"1" * 5000 + b"}",
        b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"prompt": ' + b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"prompt": "a\nb"}',
        b"\x00",
        b"\xef\xbb\xbf",
    ],
)
def test_malformed_bodies(shared_server: LiveServer, content: bytes) -> None:
    error_of(post_raw(shared_server, content), 400)


def test_brackets_inside_strings_are_not_nesting(shared_server: LiveServer) -> None:
    text = '[[{"' * 30 + "\\" * 3
    assert shared_server.post(COMPLETIONS, {"prompt": text, "max_tokens": 1}).status_code == 200


def test_a_crowd_of_members_is_refused_before_it_is_parsed(shared_server: LiveServer) -> None:
    crowd = b",".join(b'"k%d": %d' % (number, number) for number in range(60_000))
    error = error_of(post_raw(shared_server, b'{"prompt": "a", ' + crowd + b"}"), 400)
    assert "50000 members" in error["message"]
    named = post_raw(shared_server, b'{"prompt": "a", "logit_bias": {' + crowd[:400_000].rpartition(b",")[0] + b"}}")
    assert error_of(named, 400)["param"] == "logit_bias"  # fewer are looked at


@pytest.mark.parametrize(
    ("items", "what"),
    [
        (b"1," * 1_000_001, "1000000 items"),
        (b"[1]," * 50_001, "50000 lists"),
        (b"{}," * 50_001, "50000 objects"),
        ((b"[" * 50 + b"]" * 50 + b",") * 1_001, "50000 lists"),
    ],
)
def test_a_crowd_of_anything_is_refused_before_it_is_parsed(shared_server: LiveServer, items: bytes, what: str) -> None:
    error = error_of(post_raw(shared_server, b'{"prompt": [' + items + b"1]}"), 400)
    assert f"more than {what}" in error["message"]
    echoed = post_raw(shared_server, b'{"prompt": "' + items[:100] + b'", "max_tokens": 0, "echo": true}')
    assert echoed.json()["choices"][0]["text"].encode() == items[:100]


def test_colons_inside_strings_are_no_members(shared_server: LiveServer) -> None:
    body = {"prompt": '{"a": 1}' * 60_000, "max_tokens": 1}
    assert "context" in error_of(shared_server.post(COMPLETIONS, body), 400)["message"]


def test_lone_surrogates_become_replacement_characters(shared_server: LiveServer) -> None:
    def text(prompt: bytes) -> Any:
        response = post_raw(shared_server, b'{"prompt": "' + prompt + b'", "max_tokens": 0, "echo": true}')
        assert response.status_code == 200, response.text
        return response.json()["choices"][0]["text"]

    assert text(b"hello \\ud800 world") == "hello \ufffd world"
    assert text(b"x\\ud83d") == "x\ufffd"
    assert text(b"\\udf78\\ud83c") == "\ufffd\ufffd"
    assert text(b"\\ud83c\\udf78") == "\U0001f378"
    named = post_raw(shared_server, b'{"prompt": "a", "x\\ud800": 1}')
    error_of(named, 400)
    chat = {"content-type": "application/json"}
    body = b'{"messages": [{"role": "user", "content": "a\\ud800"}], "max_tokens": 1}'
    assert shared_server.client.post("/v1/chat/completions", content=body, headers=chat).status_code == 200


@pytest.mark.parametrize(
    "kind",
    ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "", "application/json; charset=utf-16"],
)
def test_other_content_types_are_refused(shared_server: LiveServer, kind: str) -> None:
    response = shared_server.client.post(COMPLETIONS, content=b'{"prompt": "a"}', headers={"content-type": kind})
    assert "Content-Type" in error_of(response, 415)["message"]


def test_json_content_types_are_accepted(shared_server: LiveServer) -> None:
    for kind in ("application/json", "application/json; charset=utf-8", "Application/JSON", "application/vnd.x+json"):
        response = shared_server.client.post(COMPLETIONS, content=b'{"prompt": "a"}', headers={"content-type": kind})
        assert response.status_code == 200


def test_compressed_bodies_are_refused(shared_server: LiveServer) -> None:
    response = post_raw(shared_server, b"\x1f\x8b", **{"content-encoding": "gzip"})
    error_of(response, 415)


def test_bodies_over_the_limit_are_413_however_they_are_sent(start_server: StartServer) -> None:
    server = start_server(settings=ServerSettings(max_body_bytes=100_000))
    big = json.dumps({"prompt": MARKER + "x" * 200_000}).encode()
    error_of(post_raw(server, big), 413)
    pieces = (big[start : start + 10_000] for start in range(0, len(big), 10_000))
    error_of(post_raw(server, pieces), 413)  # chunked: no Content-Length
    error_of(post_raw(server, b"{}" + b" " * 200_000), 413)
    assert server.post(COMPLETIONS, {"prompt": "still here"}).status_code == 200


def test_declared_length_over_the_limit_is_refused_before_the_body_comes(start_server: StartServer) -> None:
    server = start_server(settings=ServerSettings(max_body_bytes=1000))
    for length in (b"5000", b"9" * 18):
        head = b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
        with server.raw(head + length + b"\r\n\r\n{") as connection:
            assert connection.recv(100).startswith(b"HTTP/1.1 413")


def test_body_that_stops_coming_is_given_up(start_server: StartServer) -> None:
    server = start_server(settings=ServerSettings(body_timeout_s=0.05))
    head = (
        b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n{"
    )
    with server.raw(head) as connection:
        assert connection.recv(100).startswith(b"HTTP/1.1 408")


def test_prompt_far_beyond_the_context_is_refused(shared_server: LiveServer) -> None:
    error = error_of(shared_server.post(COMPLETIONS, {"prompt": "x" * 5_000_000}), 400)
    assert error["code"] == "context_length_exceeded"
    error = error_of(shared_server.post(COMPLETIONS, {"prompt": [1] * 1_000_000}), 400)
    assert error["code"] == "context_length_exceeded"


# --- heads --------------------------------------------------------------------------------------------------------


def answer_to(server: LiveServer, data: bytes) -> bytes:
    with server.raw(data) as connection:
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
        return answer


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"".join(b"x-%d: 1\r\n" % i for i in range(10_000)), 431),
        (b"GET /health HTTP/1.1\r\nHost: localhost\r\nx: " + b"y" * 1_000_000 + b"\r\n", 431),
        (b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n", 414),
        (b"NONSENSE\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00", 400),
        (b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n", 400),
        (b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n", 400),
    ],
)
def test_heads_are_bounded(shared_server: LiveServer, head: bytes, status: int) -> None:
    answer = answer_to(shared_server, head + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-type: application/json" in head
    assert json.loads(body)["error"]["message"]


def test_endless_field_is_cut_off(shared_server: LiveServer) -> None:
    with shared_server.raw(b"GET /health HTTP/1.1\r\nx: ") as connection:
        sent = 0
        try:
            while sent < 50_000_000:
                sent += connection.send(b"y" * 65536)
        except ConnectionError:
            pass
        assert sent < 20_000_000


# --- paths, methods, hosts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/v1",
        "/v1/completion",
        "/health/",
        "//health",
        "/v1/completions/",
        "/docs",
        "/redoc",
        "/x",
    ],
)
def test_wrong_paths_tell_the_endpoints(shared_server: LiveServer, path: str) -> None:
    error = error_of(shared_server.client.get(httpx.URL(shared_server.url).copy_with(raw_path=path.encode())), 404)
    assert "/v1/chat/completions" in error["message"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", COMPLETIONS),
        ("PUT", "/generate"),
        ("POST", "/health"),
        ("OPTIONS", COMPLETIONS),
        ("DELETE", "/v1/models"),
    ],
)
def test_wrong_methods_tell_the_right_ones(shared_server: LiveServer, method: str, path: str) -> None:
    response = shared_server.client.request(method, path)
    assert error_of(response, 405)["code"] == "method_not_allowed"
    assert response.headers["allow"]


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("localhost", True),
        ("localhost:8080", True),
        ("LOCALHOST.", True),
        ("127.0.0.1", True),
        ("127.0.0.1:80", True),
        ("[::1]", True),
        ("[::1]:8080", True),
        ("192.168.1.5", True),
        ("api.internal:99", True),
        ("evil.example", False),
        ("evil.example:8080", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("localhost:80@evil.example", False),
        ("[::1", False),
        ("[evil.example]", False),
        ("localhost:80:90", False),
        ("", False),
    ],
)
def test_only_known_hosts_are_served(start_server: StartServer, host: str, allowed: bool) -> None:
    server = start_server(settings=ServerSettings(allowed_hosts=("API.internal",)))
    answer = answer_to(server, f"GET /v1/models HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 200" if allowed else b"HTTP/1.1 403")


def test_two_hosts_are_one_too_many(shared_server: LiveServer) -> None:
    answer = answer_to(
        shared_server, b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    )
    assert answer.split()[1] in (b"400", b"403")


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:3000"])
def test_no_origin_is_ever_allowed_in(shared_server: LiveServer, origin: str) -> None:
    preflight = {"origin": origin, "access-control-request-method": "POST"}
    responses = [
        shared_server.get("/v1/models", headers={"origin": origin}),
        shared_server.client.options(COMPLETIONS, headers=preflight),
        shared_server.post(COMPLETIONS, {"prompt": "a"}, headers={"origin": origin}),
    ]
    for response in responses:
        assert not [name for name in response.headers if name.startswith("access-control")]
    assert responses[1].status_code == 405
