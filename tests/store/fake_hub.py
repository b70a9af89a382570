"""A local HTTP server that speaks like Hugging Face, ModelScope and a plain file server, and misbehaves when told to.

`Hub.files` maps a repository to its files. `Hub.faults` is asked before every answer with bytes and may change it: what
faults do is counted in bytes and requests, never in time.
"""

from __future__ import annotations

import hashlib
import json
import re
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Answer:
    """What is sent for a file; a fault changes it."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    cut_after: int | None = None  # bytes of the body, behind which the connection ends
    pause_after: int | None = None  # bytes of the body, behind which `Hub.gate` must open


Fault = Callable[["Request", Answer], None]


@dataclass(frozen=True)
class Request:
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    number: int  # of the requests for bytes, from 0


class Hub:
    """Use as a context manager."""

    def __init__(self) -> None:
        self.files: dict[str, dict[str, bytes]] = {}
        self.plain: dict[str, bytes] = {}
        self.faults: list[Fault] = []
        self.requests: list[Request] = []
        self.gate = threading.Event()
        self.reached_pause = threading.Event()
        self.hides_hashes = False
        self.takes_ranges = True
        self.etag = True
        self.token: str | None = None
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Hub:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *ending: object) -> None:
        self.gate.set()
        self._server.shutdown()
        self._server.server_close()

    def bytes_sent(self) -> list[str]:
        """The ranges that were asked for, in order; "" for a whole file."""
        return [request.headers.get("range", "") for request in self.requests]

    # --- answers ---

    def answer(self, request: Request) -> Answer:
        if self.token is not None and request.headers.get("authorization") != f"Bearer {self.token}":
            return Answer(401, {"x-error-code": "RepoNotFound"}, b"{}")
        for pattern, make in (
            (r"/api/models/([^/]+/[^/]+)(?:/revision/([^/]+))?", self._hub_info),
            (r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", self._hub_file),
            (r"/api/v1/models/([^/]+/[^/]+)/repo/files", self._scope_list),
            (r"/api/v1/models/([^/]+/[^/]+)/repo", self._scope_file),
            (r"/api/v1/models/([^/]+/[^/]+)", self._scope_info),
            (r"/files/(.+)", self._plain_file),
        ):
            match = re.fullmatch(pattern, request.path)
            if match is not None:
                return make(request, *match.groups())
        return Answer(404, {}, b"{}")

    def _hub_info(self, request: Request, name: str, revision: str | None) -> Answer:
        files = self.files.get(name)
        if files is None:
            return Answer(404, {"x-error-code": "RepoNotFound"}, b"{}")
        if revision not in (None, "main", COMMIT):
            return Answer(404, {"x-error-code": "RevisionNotFound"}, b"{}")
        siblings = []
        for path, data in files.items():
            entry: dict[str, Any] = {"rfilename": path, "size": len(data), "blobId": git_sha1(data)}
            if path.endswith((".gguf", ".safetensors")):
                entry["lfs"] = {"sha256": sha256(data), "size": len(data), "pointerSize": 130}
            siblings.append(entry)
        body = {"id": name, "modelId": name, "sha": COMMIT, "siblings": siblings, "tags": ["license:apache-2.0"]}
        return Answer(200, {"content-type": "application/json"}, json.dumps(body).encode())

    def _hub_file(self, request: Request, name: str, revision: str, path: str) -> Answer:
        return self._bytes(request, self.files.get(name, {}).get(unquote(path)))

    def _scope_list(self, request: Request, name: str) -> Answer:
        if name not in self.files:
            return self._json({"Code": 10010205001, "Message": "not found", "Success": False})
        entries = [
            {
                "Path": path,
                "Name": path.rpartition("/")[2],
                "Size": len(data),
                "Sha256": "" if self.hides_hashes else sha256(data),
                "Type": "blob",
                "Revision": COMMIT,
                "CommittedDate": 1,
            }
            for path, data in self.files[name].items()
        ]
        entries.append({"Path": "folder", "Name": "folder", "Size": 0, "Type": "tree"})
        return self._json({"Code": 200, "Data": {"Files": entries}, "Success": True})

    def _scope_file(self, request: Request, name: str) -> Answer:
        return self._bytes(request, self.files.get(name, {}).get(request.query["FilePath"][0]))

    def _scope_info(self, request: Request, name: str) -> Answer:
        return self._json({"Code": 200, "Data": {"License": "apache-2.0"}, "Success": True})

    def _plain_file(self, request: Request, path: str) -> Answer:
        return self._bytes(request, self.plain.get(unquote(path)))

    def _json(self, body: Any) -> Answer:
        return Answer(200, {"content-type": "application/json"}, json.dumps(body).encode())

    def _bytes(self, request: Request, data: bytes | None) -> Answer:
        if data is None:
            return Answer(404)
        request = Request(request.path, request.query, request.headers, len(self.requests))
        self.requests.append(request)
        etag = f'"{sha256(data)[:20]}"'
        answer = Answer(200, {"etag": etag} if self.etag else {}, data)
        wanted = re.fullmatch(r"bytes=(\d+)-", request.headers.get("range", ""))
        if wanted is not None and self.takes_ranges and request.headers.get("if-range", etag) == etag:
            start = int(wanted[1])
            if start >= len(data):
                answer = Answer(416, {"content-range": f"bytes */{len(data)}"})
            else:
                answer.status, answer.body = 206, data[start:]
                answer.headers["content-range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        for fault in self.faults:
            fault(request, answer)
        return answer


class _Server(ThreadingHTTPServer):
    def handle_error(self, *arguments: object) -> None:
        """Clients that are killed are what this is for."""


def _handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            headers = {name.lower(): value for name, value in self.headers.items()}
            answer = hub.answer(Request(unquote(parts.path), parse_qs(parts.query), headers, -1))
            self.send_response(answer.status)
            self.send_header("content-length", answer.headers.pop("content-length", str(len(answer.body))))
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self._send(answer)

        def _send(self, answer: Answer) -> None:
            try:
                if answer.pause_after is not None:
                    self.wfile.write(answer.body[: answer.pause_after])
                    self.wfile.flush()
                    hub.reached_pause.set()
                    hub.gate.wait(60)
                    self.wfile.write(answer.body[answer.pause_after :])
                elif answer.cut_after is not None:
                    self.wfile.write(answer.body[: answer.cut_after])
                    self.wfile.flush()
                    self.close_connection = True
                    self.connection.shutdown(socket.SHUT_RDWR)
                else:
                    self.wfile.write(answer.body)
            except OSError:
                self.close_connection = True

        def log_message(self, *arguments: object) -> None:
            pass

    return Handler


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def git_sha1(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


# --- faults ---


def cut(request_number: int, after: int) -> Fault:
    """The connection of that request ends behind so many bytes."""

    def fault(request: Request, answer: Answer) -> None:
        if request.number == request_number:
            answer.cut_after = after

    return fault


def status(code: int, *numbers: int, headers: dict[str, str] | None = None) -> Fault:
    """Those requests get this status instead."""

    def fault(request: Request, answer: Answer) -> None:
        if request.number in numbers:
            answer.status, answer.headers, answer.body = code, dict(headers or {}), b""

    return fault
