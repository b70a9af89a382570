"""Any body, any bytes: an answer in OpenAI's shape, never a 500, and the server lives on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lpx.server.errors import HttpError
from lpx.server.limits import host_allowed, parse_json_object
from lpx.server.schemas import ChatRequest, CompletionRequest, GenerateRequest
from tests.server.conftest import fake_engine
from tests.server.live_server import LiveServer, eventually, parse_events

PATHS = {
    "/generate": GenerateRequest,
    "/v1/completions": CompletionRequest,
    "/v1/chat/completions": ChatRequest,
}
FIELDS = sorted({name for model in PATHS.values() for name in model.model_fields} | {"tools", "suffix", "user", "x"})

# Texts that JSON can carry, the lone surrogates included.
texts = st.text(st.characters(exclude_categories=()), max_size=12)
numbers = st.one_of(
    st.integers(),
    st.floats(),
    st.sampled_from([0, -1, 1, 2, 20, 21, 2**31, 2**53, 2**63, 2**64, 10**400, 0.0, -0.0, 1e-320, 1e308, 0.5]),
)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, texts),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(texts, inner, max_size=4)),
    max_leaves=8,
)
ids = st.lists(st.integers(-1, 300), max_size=8)
messages = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "system", "tool", 1])}, optional={
        "content": st.one_of(texts, values, st.just([{"type": "text", "text": "x"}])),
        "name": values,
        "tool_calls": values,
    }),
    max_size=3,
)  # fmt: skip
likely: dict[str, st.SearchStrategy[Any]] = {
    "prompt": st.one_of(texts, ids, st.lists(texts, max_size=3), st.lists(ids, max_size=3)),
    "messages": messages,
    "model": st.sampled_from([None, "fake", "default", "other"]),
    "max_tokens": st.integers(0, 60),
    "n": st.integers(0, 4),
    "logprobs": st.one_of(st.booleans(), st.integers(0, 20)),
    "stream": st.booleans(),
    "stream_options": st.sampled_from([None, {}, {"include_usage": True}]),
    "stop": st.one_of(texts, st.lists(texts, max_size=3)),
    "logit_bias": st.dictionaries(st.integers(-1, 300).map(str), st.floats(-120, 120), max_size=3),
    "temperature": st.floats(0, 3),
    "echo": st.booleans(),
}


@st.composite
def bodies(draw: st.DrawFn) -> dict[str, Any]:
    names = draw(st.lists(st.sampled_from(FIELDS), max_size=6, unique=True))
    body = {name: draw(st.one_of(likely.get(name, values), values)) for name in names}
    if draw(st.booleans()):
        body.setdefault("prompt", "a")
    else:
        body.setdefault("messages", [{"role": "user", "content": "a"}])
    return body


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    server = LiveServer(fake_engine(max_model_len=48, max_num_seqs=16))
    yield server
    eventually(lambda: server.idle, "an idle engine")
    assert not server.app.state.service.active
    server.close()


def check(response: Any) -> None:
    assert response.status_code in (200, 400, 404, 413, 415), response.text
    if response.status_code != 200:
        assert len(response.content) < 4096
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    elif response.headers["content-type"].startswith("text/event-stream"):
        assert list(parse_events(response.content))[-1] == "[DONE]"
    else:
        json.loads(response.content, parse_constant=pytest.fail)


@given(st.sampled_from(sorted(PATHS)), bodies())
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_json_body_is_answered(server: LiveServer, path: str, body: dict[str, Any]) -> None:
    content = json.dumps(body).encode()
    check(server.client.post(path, content=content, headers={"content-type": "application/json"}))


@given(
    st.sampled_from(sorted(PATHS)),
    st.one_of(st.binary(max_size=60), bodies().map(json.dumps).map(str.encode)),
    st.data(),
)
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_bytes_are_answered(server: LiveServer, path: str, content: bytes, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(content)))
    damaged = content[:cut] + data.draw(st.binary(max_size=3)) + content[cut + data.draw(st.integers(0, 3)) :]
    check(server.client.post(path, content=damaged, headers={"content-type": "application/json"}))


@given(st.recursive(st.one_of(st.none(), st.booleans(), st.integers(), texts), lambda inner: st.one_of(
    st.lists(inner, max_size=4), st.dictionaries(texts, inner, max_size=4)), max_leaves=20))  # fmt: skip
@settings(max_examples=200, deadline=None)
def test_json_parser_reads_what_json_means(value: Any) -> None:
    """Objects come back as they were written, but for lone surrogates; the depth check never misjudges."""

    def depth(each: Any) -> int:
        inner = each.values() if isinstance(each, dict) else each if isinstance(each, list) else ()
        return 1 + max(map(depth, inner), default=0) if isinstance(each, dict | list) else 0

    def cleaned(each: Any) -> Any:
        if isinstance(each, str):
            return each.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        if isinstance(each, dict):
            return {cleaned(key): cleaned(item) for key, item in each.items()}
        return [cleaned(item) for item in each] if isinstance(each, list) else each

    document = {"value": value}
    assert parse_json_object(json.dumps(document).encode(), depth(document)) == cleaned(document)
    if depth(document) > 2:
        # Lists and objects that alternate may go twice as deep, never deeper.
        with pytest.raises(HttpError):
            parse_json_object(json.dumps(document).encode(), (depth(document) - 1) // 2)


@given(st.text(max_size=40))
@settings(max_examples=300)
def test_no_text_makes_the_host_check_fail_or_let_names_in(host: str) -> None:
    if host_allowed(host):
        name = host.strip().lower().rpartition("]")[0] or host.strip().lower().partition(":")[0].removesuffix(".")
        assert set(name) <= set("0123456789abcdef.:[%") or name.endswith(("localhost", "localdomain"))
