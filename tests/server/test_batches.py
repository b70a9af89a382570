"""Files and batches over HTTP, mostly through OpenAI's own client."""

from __future__ import annotations

import json
import resource
import select
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from lpx.batch.store import StoredBatch, StoreLimits
from lpx.errors import ConfigError
from lpx.server import batch_queue
from lpx.server.settings import Limits, ServerSettings
from tests.engine.fake_executor import FakeExecutor
from tests.server.conftest import fake_engine
from tests.server.live_server import LiveServer, eventually
from tests.server.server_process import Process

KEYS = ("sk-first-key-0123456789", "sk-second-key-0123456789")
Serve = Callable[..., LiveServer]


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def serve(data_dir: Path) -> Iterator[Serve]:
    """Servers with a data folder, on the fake model."""
    servers: list[LiveServer] = []

    def start(executor: FakeExecutor | None = None, **settings: Any) -> LiveServer:
        settings = {"data_dir": data_dir, **settings}
        server = LiveServer(fake_engine(executor), ServerSettings(**settings))
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.close()


def client_of(server: LiveServer | str, key: str = "none") -> openai.OpenAI:
    url = server if isinstance(server, str) else server.url
    return openai.OpenAI(base_url=url + "/v1", api_key=key, max_retries=0, timeout=120)


def chat_line(custom_id: str, text: str = "你好", **more: Any) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 4, "temperature": 0, **more}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}


def jsonl(*lines: Any) -> bytes:
    return b"".join((json.dumps(line, ensure_ascii=False) + "\n").encode() for line in lines)


def start_batch(client: openai.OpenAI, data: bytes, **more: Any) -> Any:
    file = client.files.create(file=("lines.jsonl", data), purpose="batch")
    return client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", **more
    )


def ended(client: openai.OpenAI, batch: Any) -> Any:
    states = ("completed", "failed", "cancelled", "expired")
    eventually(lambda: client.batches.retrieve(batch.id).status in states, "the end of the batch")
    return client.batches.retrieve(batch.id)


def results(client: openai.OpenAI, file_id: str | None) -> list[dict[str, Any]]:
    assert file_id is not None
    return [json.loads(line) for line in client.files.content(file_id).content.splitlines()]


def test_the_official_client_takes_a_batch_from_file_to_results(serve: Serve) -> None:
    server = serve()
    client = client_of(server)
    lines = [chat_line(f"行-{index}", f"第 {index} 个问题") for index in range(6)]
    lines[1]["body"] |= {"n": 2, "logprobs": True, "temperature": 1, "seed": 5}
    lines[3]["body"]["temperature"] = -1
    data = b"\xef\xbb\xbf" + jsonl(*lines) + b"\n  \nnot json\n"
    batch = start_batch(client, data, metadata={"project": "试验"})
    assert (batch.status, batch.metadata) == ("validating", {"project": "试验"})
    done = ended(client, batch)
    assert done.status == "completed"
    assert done.request_counts.model_dump() == {"total": 7, "completed": 5, "failed": 2}
    good, bad = results(client, done.output_file_id), results(client, done.error_file_id)
    assert [line["custom_id"] for line in good] == [f"行-{index}" for index in (0, 1, 2, 4, 5)]
    assert [(line["custom_id"], line["error"]["code"]) for line in bad] == [
        ("行-3", "invalid_request_error"),
        (None, "invalid_json_line"),
    ]
    assert bad[0]["response"]["status_code"] == 400
    for line, result in zip(lines[:2], good[:2], strict=True):
        direct = server.post("/v1/chat/completions", line["body"]).json()
        assert result["response"]["body"]["choices"] == direct["choices"]
    latencies = (
        server.app.state.service.latencies
    )  # of seven choices, here and there, and the warm-up's is not among them
    assert latencies.time_to_first_token.count == latencies.end_to_end.count
    listed = client.batches.list(limit=1)
    assert [each.id for each in listed.data] == [batch.id]
    assert {file.purpose for file in client.files.list()} == {"batch", "batch_output"}
    client.files.delete(done.output_file_id)
    with pytest.raises(openai.NotFoundError):
        client.files.content(done.output_file_id)


def test_each_key_sees_its_own_files_and_batches_only(serve: Serve) -> None:
    server = serve(api_keys=KEYS)
    mine, theirs = (client_of(server, key) for key in KEYS)
    batch = ended(mine, start_batch(mine, jsonl(chat_line("a"))))
    assert batch.status == "completed"
    assert list(theirs.files.list()) == []
    assert list(theirs.batches.list()) == []
    for file_id in (batch.input_file_id, batch.output_file_id):
        for ask in (theirs.files.retrieve, theirs.files.content, theirs.files.delete):
            with pytest.raises(openai.NotFoundError):
                ask(file_id)
    for ask in (theirs.batches.retrieve, theirs.batches.cancel):
        with pytest.raises(openai.NotFoundError):
            ask(batch.id)
    with pytest.raises(openai.BadRequestError):
        theirs.batches.create(
            input_file_id=batch.input_file_id, endpoint="/v1/chat/completions", completion_window="24h"
        )
    assert mine.files.retrieve(batch.output_file_id).purpose == "batch_output"


def test_limits_of_a_key_hold_in_its_batches(serve: Serve) -> None:
    server = serve(api_keys=KEYS[:1], limits=Limits(max_output_tokens=3))
    client = client_of(server, KEYS[0])
    done = ended(client, start_batch(client, jsonl(chat_line("a"), chat_line("b", max_tokens=2))))
    assert [line["custom_id"] for line in results(client, done.output_file_id)] == ["b"]
    (refused,) = results(client, done.error_file_id)
    assert "3 allowed" in refused["error"]["message"]


def test_a_used_up_rate_is_waited_for_and_fails_no_line(serve: Serve) -> None:
    server = serve(api_keys=KEYS[:1], limits=Limits(requests_per_minute=120))
    client = client_of(server, KEYS[0])
    queue = server.app.state.service.callers.of(server.app.state.service.keys.keys[0]).quotas[1]
    batch = start_batch(client, jsonl(chat_line("a"), chat_line("b")))
    queue._requests.take(119)  # what is left is less than the batch needs
    assert ended(client, batch).request_counts.completed == 2


def test_a_key_that_is_taken_away_ends_its_batches(
    serve: Serve, tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_queue, "_KEY_GRACE_S", 0.0)
    key_file = tmp_path / "keys"
    key_file.write_text("\n".join(KEYS))
    server = serve(api_key_file=key_file, batch_max_inflight=1)
    client = client_of(server, KEYS[0])
    batch = start_batch(client, jsonl(*(chat_line(f"{index}", max_tokens=50) for index in range(2000))))
    eventually(lambda: client.batches.retrieve(batch.id).request_counts.completed >= 1, "a result")
    key_file.write_text(KEYS[1])
    server.app.state.service.reload_keys()
    store = server.app.state.service.batch_store
    eventually(lambda: not store.unfinished(), "the end of the batch")
    eventually(lambda: not list((data_dir / "work").iterdir()), "an empty folder")
    key_file.write_text("\n".join(KEYS))
    server.app.state.service.reload_keys()
    done = client.batches.retrieve(batch.id)
    assert (done.status, done.errors.data[0].code) == ("failed", "invalid_api_key")


def test_a_key_that_is_missing_for_a_moment_is_waited_for(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_queue, "_KEY_LOOK_S", 0.01)
    key_file = tmp_path / "keys"
    key_file.write_text("\n".join(KEYS))
    server = serve(api_key_file=key_file, batch_max_inflight=1)
    client = client_of(server, KEYS[0])
    batch = start_batch(client, jsonl(*(chat_line(f"{index}", max_tokens=20) for index in range(60))))
    eventually(lambda: client.batches.retrieve(batch.id).request_counts.completed >= 1, "a result")
    key_file.write_text(KEYS[1])
    server.app.state.service.reload_keys()
    queue = server.app.state.batch_queue
    eventually(lambda: queue._keyless_since and not queue._running, "the batch to rest")
    other = client_of(server, KEYS[1])
    assert ended(other, start_batch(other, jsonl(chat_line("a")))).status == "completed"
    key_file.write_text("\n".join(KEYS))
    server.app.state.service.reload_keys()
    done = ended(client, batch)
    assert (done.status, done.request_counts.completed) == ("completed", 60)
    assert len(results(client, done.output_file_id)) == 60
    assert queue._keyless_since == {}


def test_requests_of_people_go_before_a_batch(serve: Serve) -> None:
    seen: list[list[int]] = []  # priorities of what ran in each step

    def before_step(_: object) -> None:
        if servers:
            engine = servers[0].app.state.service.engine._engine
            seen.append([sequence.priority for sequence in engine.scheduler.running])

    servers: list[LiveServer] = []
    servers.append(serve(FakeExecutor(num_blocks=256, block_size=4, before_step=before_step), batch_max_inflight=3))
    client = client_of(servers[0])
    lines = [chat_line(f"{index}", max_tokens=30, priority=(None, -7, 5000)[index % 3]) for index in range(30)]
    batch = start_batch(client, jsonl(*lines))
    while client.batches.retrieve(batch.id).status != "completed":
        assert servers[0].post("/generate", {"prompt": "hi", "max_tokens": 1}).status_code == 200
    assert {priority for step in seen for priority in step} == {0, 1000, 5000}
    assert max(sum(priority >= 1000 for priority in step) for step in seen) <= 3


def test_a_batch_goes_on_after_its_server_was_killed(data_dir: Path, start: type[Process]) -> None:
    first = start(0, "slow", settings={"data_dir": str(data_dir), "batch_max_inflight": 2})
    client = client_of(first.wait_ready())
    batch = start_batch(client, jsonl(*(chat_line(f"{index}", max_tokens=8) for index in range(12))))
    eventually(lambda: client.batches.retrieve(batch.id).request_counts.completed >= 3, "some results")
    first.process.kill()
    first.process.wait(60)
    written = (data_dir / "work" / f"{batch.id}.jsonl").read_bytes()
    second = start(0, "ok", settings={"data_dir": str(data_dir)})
    client = client_of(second.wait_ready())
    done = ended(client, batch)
    got = results(client, done.output_file_id)
    assert [line["custom_id"] for line in got] == [f"{index}" for index in range(12)]
    kept = [json.loads(line)["id"] for line in written.splitlines(keepends=True) if line.endswith(b"\n")]
    assert len(kept) >= 3
    assert set(kept) <= {line["id"] for line in got}
    assert list((data_dir / "work").iterdir()) == []


def test_a_cancelled_batch_keeps_what_it_has(serve: Serve) -> None:
    gate = threading.Event()
    steps: list[int] = []

    def before_step(_: object) -> None:
        steps.append(1)
        if len(steps) > 20:
            gate.wait(60)

    server = serve(FakeExecutor(num_blocks=256, block_size=4, before_step=before_step), batch_max_inflight=1)
    client = client_of(server)
    batch = start_batch(client, jsonl(*(chat_line(f"{index}") for index in range(50))))
    eventually(lambda: client.batches.retrieve(batch.id).request_counts.completed >= 1, "a result")
    with pytest.raises(openai.BadRequestError, match="cancel it first"):
        client.files.delete(batch.input_file_id)
    assert client.batches.cancel(batch.id).status == "cancelling"
    gate.set()
    done = ended(client, batch)
    assert done.status == "cancelled"
    assert 1 <= len(results(client, done.output_file_id)) == done.request_counts.completed < 50
    with pytest.raises(openai.ConflictError):
        client.batches.cancel(batch.id)


@pytest.mark.parametrize(
    ("data", "code", "line"),
    [
        (b"", "empty_file", None),
        (b"\n \r\n", "empty_file", None),
        (jsonl(chat_line("a"), chat_line("b"), chat_line("a")), "duplicate_custom_id", 3),
        (jsonl(*(chat_line(f"{index}") for index in range(6))), "too_many_lines", None),
        ("你好".encode("utf-16"), "invalid_file", None),
    ],
)
def test_files_whose_results_could_not_be_told_apart_fail_as_a_whole(
    serve: Serve, data: bytes, code: str, line: int | None
) -> None:
    client = client_of(serve(store_limits=StoreLimits(max_lines=5)))
    done = ended(client, start_batch(client, data))
    assert done.status == "failed"
    assert [(error.code, error.line) for error in done.errors.data] == [(code, line)]
    assert done.output_file_id is None


def test_lines_that_a_batch_had_no_time_for_are_told(serve: Serve) -> None:
    server = serve()
    client = client_of(server)
    store = server.app.state.service.batch_store
    file = client.files.create(file=("x.jsonl", jsonl(chat_line("a"), chat_line("b"))), purpose="batch")
    now = int(time.time())
    batch = StoredBatch("batch_late", "", "/v1/chat/completions", file.id, "24h", "validating", now - 100, now - 10)
    store.add_batch(batch)
    server.on_loop(server.app.state.batch_queue.notice)
    eventually(lambda: client.batches.retrieve("batch_late").status == "expired", "the end")
    done = client.batches.retrieve("batch_late")
    late = results(client, done.error_file_id)
    assert [(each["custom_id"], each["error"]["code"]) for each in late] == [
        ("a", "batch_expired"),
        ("b", "batch_expired"),
    ]


# --- uploads ------------------------------------------------------------------------------------------------------


def upload(server: LiveServer, data: bytes = b"{}\n", name: str = "x.jsonl", **more: Any) -> httpx.Response:
    fields = {"purpose": "batch", **more.pop("fields", {})}
    return server.client.post("/v1/files", files={"file": (name, data)}, data=fields, **more)


def test_uploads_are_bounded_and_leave_nothing_behind(serve: Serve, data_dir: Path) -> None:
    limits = StoreLimits(max_file_bytes=1000, max_stored_bytes=1500, max_files=3)
    server = serve(store_limits=limits)
    assert upload(server, b"x" * 1001).status_code == 413
    chunked = server.client.post(
        "/v1/files", content=iter([b"x" * 200_000]), headers={"content-type": "multipart/form-data; boundary=b"}
    )
    assert chunked.status_code in (400, 413)
    assert upload(server, b"x" * 1000).status_code == 200
    assert upload(server, b"x" * 600).status_code == 413
    assert upload(server, b"x").status_code == 200
    assert upload(server, b"x").status_code == 200
    assert upload(server, b"x").status_code == 413
    kept = {file["id"] for file in server.get("/v1/files").json()["data"]}
    assert {path.name for path in (data_dir / "files").iterdir()} == kept
    assert len(kept) == 3


def test_a_full_disk_is_told_and_the_server_goes_on(data_dir: Path, start: type[Process]) -> None:
    process = start(0, "ok", settings={"data_dir": str(data_dir)}, limit_file_bytes=200_000)
    url = process.wait_ready()
    fields: dict[str, Any] = {"data": {"purpose": "batch"}, "trust_env": False, "timeout": 60}
    full = httpx.post(url + "/v1/files", files={"file": ("x", b"x" * 300_000)}, **fields)
    assert (full.status_code, full.json()["error"]["code"]) == (507, "disk_full")
    assert list((data_dir / "files").iterdir()) == []
    assert httpx.post(url + "/v1/files", files={"file": ("x", b"{}")}, **fields).status_code == 200


def test_on_a_full_disk_files_can_be_deleted_and_nothing_is_left_half(data_dir: Path, start: type[Process]) -> None:
    process = start(0, "slow", settings={"data_dir": str(data_dir)})
    client = client_of(process.wait_ready())
    batch = start_batch(client, jsonl(*(chat_line(f"{index}", max_tokens=2000) for index in range(50))))
    one, two = (client.files.create(file=("x", b"{}"), purpose="batch") for _ in range(2))
    eventually(lambda: client.batches.retrieve(batch.id).status == "in_progress", "the batch to run")
    limits = resource.prlimit(process.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(process.process.pid, resource.RLIMIT_FSIZE, (0, limits[1]))  # no file takes a byte more
    for refused in (
        lambda: client.batches.cancel(batch.id),
        lambda: client.batches.create(input_file_id=one.id, endpoint="/v1/chat/completions", completion_window="24h"),
        lambda: client.files.create(file=("x", b"{}"), purpose="batch"),
    ):
        with pytest.raises(openai.InternalServerError) as told:
            refused()
        assert (told.value.status_code, told.value.code) == (507, "disk_full")
    client.files.delete(one.id)
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(one.id)
    with pytest.raises(openai.NotFoundError):
        client.files.delete(one.id)
    assert {file.id for file in client.files.list()} == {batch.input_file_id, two.id}
    assert {path.name for path in (data_dir / "files").iterdir()} == {batch.input_file_id, two.id}
    resource.prlimit(process.process.pid, resource.RLIMIT_FSIZE, limits)
    client.batches.cancel(batch.id)
    assert ended(client, batch).status == "cancelled"
    process.process.kill()
    process.wait()
    client = client_of(start(0, "ok", settings={"data_dir": str(data_dir)}).wait_ready())
    assert one.id not in {file.id for file in client.files.list()}


def test_few_files_of_one_key_come_at_a_time(serve: Serve, data_dir: Path) -> None:
    server = serve()
    head = (
        "POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n"
        "Content-Type: multipart/form-data; boundary=b\r\n\r\n--b\r\n"
    )
    slow = [server.raw(head.encode()) for _ in range(4)]
    eventually(lambda: len(list((data_dir / "files").iterdir())) == 4, "four files on their way")
    assert upload(server).status_code == 429
    for connection in slow:
        connection.close()
    eventually(lambda: list((data_dir / "files").iterdir()) == [], "an empty folder")
    assert upload(server).status_code == 200


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b"", "multipart/form-data"),
        (b"--b\r\n", "multipart/form-data; boundary=b"),
        (b"nothing of the kind", "multipart/form-data; boundary=b"),
        (
            b'--b\r\nContent-Disposition: form-data; name="file"\r\n\r\nx\r\n--b--\r\n',
            "multipart/form-data; boundary=b",
        ),
        (
            b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--b--\r\n',
            "multipart/form-data; boundary=b",
        ),
        (
            b'--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\nabc',
            "multipart/form-data; boundary=b",
        ),
    ],
)
def test_broken_forms_are_refused(serve: Serve, data_dir: Path, body: bytes, content_type: str) -> None:
    server = serve()
    answer = server.client.post("/v1/files", content=body, headers={"content-type": content_type})
    assert answer.status_code == 400, answer.text
    assert list((data_dir / "files").iterdir()) == []


_HEAD = b'--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n'


@pytest.mark.parametrize(
    ("begin", "endless"),
    [
        (b"", b"\r\n"),
        (b"", b"a preamble of many words\r\n"),
        (_HEAD, b"X-Header: value\r\n"),
        (_HEAD + b"X-Header: ", b"value"),
        (_HEAD + b"X-", b"Header"),
        (_HEAD + b"\r\n{}\r\n--b", b" "),
        (_HEAD + b"\r\n{}\r\n--b--", b"\r\n"),
        (_HEAD + b"\r\n{}\r\n--b--\r\n", b"an epilogue"),
        (_HEAD + b"\r\n{}\r\n", b'--b\r\nContent-Disposition: form-data; name="x"\r\n\r\n\r\n'),
        (_HEAD.replace(b'; filename="x"', b"") + b"\r\n", b"a field"),
    ],
)
def test_a_form_that_never_ends_is_refused(serve: Serve, data_dir: Path, begin: bytes, endless: bytes) -> None:
    server = serve()
    head = (
        "POST /v1/files HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
        "Content-Type: multipart/form-data; boundary=b\r\n\r\n"
    )
    connection = server.raw(head.encode() + b"%x\r\n" % len(begin) + begin + b"\r\n" if begin else head.encode())
    piece = (endless * 65_536)[:65_536]
    answer, sent = b"", 0
    while not answer and sent < 100_000_000:
        connection.sendall(b"10000\r\n" + piece + b"\r\n")
        sent += len(piece)
        if select.select([connection], [], [], 0)[0]:
            answer = connection.recv(65_536)
    connection.close()
    assert answer.split()[1] in (b"400", b"413"), answer
    assert list((data_dir / "files").iterdir()) == []


def test_wrong_fields_of_an_upload_are_named(serve: Serve, data_dir: Path) -> None:
    server = serve()
    assert upload(server, fields={"purpose": "fine-tune"}).json()["error"]["param"] == "purpose"
    for seconds in ("1", "0" * 8 + "3600" + "9" * 20, "9" * 60, "-3600", "٣٦٠٠"):
        refused = upload(server, fields={"expires_after[seconds]": seconds})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "expires_after")
    for limit in ("0" * 10 + "1" + "9" * 20, "9" * 5001, "0", "x"):
        for path in ("/v1/files", "/v1/batches"):
            assert server.get(path, params={"limit": limit}).json()["error"]["param"] == "limit"
    assert list((data_dir / "files").iterdir()) == []
    assert server.post("/v1/files", {"purpose": "batch"}).status_code == 415
    kept = upload(server, name="../../etc/你好.jsonl", fields={"expires_after[seconds]": "3600"}).json()
    assert kept["filename"] == "你好.jsonl"
    assert kept["expires_at"] - kept["created_at"] == 3600
    content = server.get(f"/v1/files/{kept['id']}/content")
    assert content.content == b"{}\n"
    assert "%E4%BD%A0%E5%A5%BD.jsonl" in content.headers["content-disposition"]


def test_pages_of_other_origins_cannot_send_files(serve: Serve) -> None:
    server = serve()
    assert upload(server, headers={"origin": "https://evil.example"}).status_code == 403
    assert upload(server, headers={"sec-fetch-site": "cross-site"}).status_code == 403
    assert server.get("/v1/files").json()["data"] == []


@pytest.mark.parametrize("name", ["..%2f..%2fetc%2fpasswd", "%2e%2e", "a%00b", "x" * 3000, "owners.key", "C:%5Cx"])
def test_names_reach_no_file(serve: Serve, name: str) -> None:
    server = serve()
    for method, path in (("GET", f"/v1/files/{name}/content"), ("DELETE", f"/v1/files/{name}")):
        answer = server.client.request(method, path)
        assert answer.status_code == 404
        assert "/data" not in answer.text


def test_files_go_when_their_time_is_over(serve: Serve, data_dir: Path) -> None:
    server = serve()
    kept = upload(server).json()
    store = server.app.state.service.batch_store
    store._database.execute("UPDATE files SET expires_at = 5")
    assert server.get(f"/v1/files/{kept['id']}").status_code == 404
    store.expire()
    assert list((data_dir / "files").iterdir()) == []


def test_lists_go_page_by_page(serve: Serve) -> None:
    client = client_of(serve())
    made = [client.files.create(file=("x", b"{}"), purpose="batch").id for _ in range(5)]
    assert [file.id for file in client.files.list(limit=2)] == made[::-1]
    assert [file.id for file in client.files.list(limit=2, order="asc")] == made
    with pytest.raises(openai.BadRequestError):
        client.files.list(limit=0)
    with pytest.raises(openai.NotFoundError):
        client.files.list(after="file-none")


# --- the folder ---------------------------------------------------------------------------------------------------


def test_without_a_data_folder_the_way_to_one_is_told(shared_server: LiveServer) -> None:
    answer = shared_server.get("/v1/files")
    assert answer.status_code == 404
    assert "--data-dir" in answer.json()["error"]["message"]


def test_the_folder_is_private_and_has_one_server(serve: Serve, data_dir: Path) -> None:
    server = serve(api_keys=KEYS[:1])
    client = client_of(server, KEYS[0])
    ended(client, start_batch(client, jsonl(chat_line("a"))))
    for path in [data_dir, *data_dir.rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    assert KEYS[0].encode() not in b"".join(path.read_bytes() for path in data_dir.rglob("*") if path.is_file())
    with pytest.raises(ConfigError, match="another server"):
        serve()
    data_dir.chmod(0o755)


def test_a_folder_that_others_may_read_is_refused(serve: Serve, data_dir: Path) -> None:
    data_dir.mkdir(mode=0o755)
    with pytest.raises(ConfigError, match="chmod 700"):
        serve()


def test_what_a_kill_left_behind_is_swept_away(serve: Serve, data_dir: Path) -> None:
    server = serve()
    kept, gone = upload(server).json()["id"], upload(server).json()["id"]
    server.close()
    (data_dir / "files" / "file-half.part").write_bytes(b"half")
    (data_dir / "files" / "file-unknown").write_bytes(b"whole, without a row")
    (data_dir / "work" / "batch_unknown.jsonl").write_bytes(b"")
    (data_dir / "files" / gone).unlink()
    again = serve()
    assert [file["id"] for file in again.get("/v1/files").json()["data"]] == [kept]
    assert [path.name for path in (data_dir / "files").iterdir()] == [kept]
    assert list((data_dir / "work").iterdir()) == []


def test_files_of_a_key_are_there_after_a_restart(serve: Serve) -> None:
    server = serve(api_keys=KEYS)
    made = client_of(server, KEYS[1]).files.create(file=("x", b"{}"), purpose="batch")
    server.close()
    again = serve(api_keys=KEYS)
    assert [file.id for file in client_of(again, KEYS[1]).files.list()] == [made.id]
    assert list(client_of(again, KEYS[0]).files.list()) == []
