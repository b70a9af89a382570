"""HTTPS: the service over a certificate of the tests' own, and files that cannot be used."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import subprocess
from pathlib import Path

import httpx
import pytest

from lpx.errors import ConfigError
from lpx.private_folder import make_private_folder
from lpx.server import http_protocol
from lpx.server.listen import AddressError, bind_socket
from lpx.server.process import TlsError, _tls_options
from lpx.server.settings import Tls
from tests.server.conftest import fake_engine
from tests.server.live_server import PATIENCE_S, LiveServer
from tests.server.server_process import Process


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """cert.pem and key.pem for 127.0.0.1."""
    folder = tmp_path_factory.mktemp("tls")
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 30 -keyout key.pem "
        "-out cert.pem -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1,DNS:localhost"
    )
    try:
        subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("needs openssl to make a certificate")
    return folder


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
def test_https_is_spoken_and_its_cookie_is_secure(start: type[Process], files: Path) -> None:
    key = "sk-test-key-0123456789"
    tls = {"certfile": str(files / "cert.pem"), "keyfile": str(files / "key.pem")}
    process = start(0, "ok", settings={"tls": tls, "api_keys": [key]})
    url = process.url
    assert url.startswith("https://127.0.0.1:")
    context = ssl.create_default_context(cafile=str(files / "cert.pem"))
    with httpx.Client(base_url=url, verify=context, trust_env=False, timeout=PATIENCE_S) as client:
        process.wait_ready(client)
        bearer = {"authorization": f"Bearer {key}"}
        body = {"prompt": "a", "max_tokens": 20, "stream": True}
        assert client.post("/generate", json=body, headers=bearer).content.endswith(b"data: [DONE]\n\n")
        cookie = client.post("/login", json={"key": key}).headers["set-cookie"]
        assert cookie.startswith("__Host-lpx_session_")
        assert "; secure" in cookie.lower()
        assert client.get("/v1/models").status_code == 200
        too_long = client.get("/" + "x" * 20_000)
        assert too_long.status_code == 414
    port = int(url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as plain:
        plain.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"200" not in plain.recv(100)
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    old.maximum_version = ssl.TLSVersion.TLSv1_1
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as connection, pytest.raises(ssl.SSLError):
        old.wrap_socket(connection)


@pytest.mark.parametrize("wrong", ["missing", "no certificate", "another key"])
def test_files_that_cannot_be_used_end_the_start_at_once(
    start: type[Process], files: Path, tmp_path: Path, wrong: str
) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    cert.write_bytes((files / "cert.pem").read_bytes())
    key.write_bytes((files / "key.pem").read_bytes())
    if wrong == "missing":
        key.unlink()
    elif wrong == "no certificate":
        cert.write_text("nothing")
    else:
        subprocess.run(["openssl", "ecparam", "-genkey", "-name", "prime256v1", "-noout", "-out", str(key)], check=True)
    process = start(0, "hang", settings={"tls": {"certfile": str(cert), "keyfile": str(key)}})
    assert process.wait() == 2
    assert "error[LPX-E048]: the TLS files" in process.log
    assert "Traceback" not in process.log


@pytest.mark.parametrize(
    "options",
    [{"keyfile": "key.pem"}, {"cert_reqs": 2}, {"certfile": "c", "cert_reqs": 1}, {"certfile": "c", "cert_reqs": 3}],
)
def test_options_that_do_not_go_together_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        Tls(**options)  # type: ignore[arg-type]


def test_a_handshake_that_does_not_go_on_is_ended(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "TLS_HANDSHAKE_S", 0.2)
    tls = {"ssl_certfile": str(files / "cert.pem"), "ssl_keyfile": str(files / "key.pem")}
    server = LiveServer(fake_engine(), wait_ready=False, **tls)
    try:
        for begun in (b"", b"\x16\x03\x01\x02\x00\x01"):
            with server.raw(begun) as slow, contextlib.suppress(ConnectionResetError):
                assert slow.recv(100) == b""
        context = ssl.create_default_context(cafile=str(files / "cert.pem"))
        with httpx.Client(base_url=f"https://127.0.0.1:{server.port}", verify=context, trust_env=False) as client:
            assert client.get("/health/live").status_code == 200
    finally:
        server.close()


def test_names_that_no_system_takes_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for file in (str(tmp_path / "pipe"), "a\0b"):
        with pytest.raises(TlsError, match="cannot be used"):
            _tls_options(Tls(certfile=file))
    with pytest.raises(AddressError, match="cannot be resolved"):
        bind_socket("a\0b", 0)
    with pytest.raises(ConfigError, match="cannot be made"):
        make_private_folder(tmp_path / "a\0b", "data folder")
