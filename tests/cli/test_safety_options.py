"""Options of `lpx serve` about access, limits, TLS and logs: what they become, and which do not go together."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from lpx.cli.app import app
from lpx.server.settings import Limits, ServerSettings
from tests.cli.conftest import COMMAND, Lpx
from tests.server.live_server import eventually

KEY = "sk-test-key-0123456789"


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch, smollm2_path: Path) -> Any:
    """The settings that a command line of `serve` leads to."""
    seen: dict[str, Any] = {}

    def serve(options: Any, host: str, port: int, **more: Any) -> int:
        seen.update(more, options=options)
        return 0

    monkeypatch.setattr("lpx.server.process.serve", serve)

    def call(*arguments: str) -> dict[str, Any]:
        done = CliRunner().invoke(app, ["serve", "-m", str(smollm2_path), *arguments], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return seen

    return call


def test_nothing_given_means_no_keys_no_limits_and_no_texts(given: Any) -> None:
    assert given()["settings"] == ServerSettings()


def test_options_arrive(given: Any, tmp_path: Path) -> None:
    seen = given(
        *("--api-key", KEY, "--api-key", "sk-other-key-0123456789", "--api-key-file", str(tmp_path / "keys")),
        *("--requests-per-minute", "60", "--tokens-per-minute", "1000", "--max-concurrent-requests", "4"),
        *("--max-prompt-tokens", "500", "--max-output-tokens", "100", "--max-choices", "2", "--max-body-size", "1M"),
        *("--max-waiting", "7", "--max-connections", "50", "--log-format", "json", "--log-requests-to", str(tmp_path)),
        *("--ssl-certfile", "c.pem", "--ssl-keyfile", "k.pem", "--ssl-ca-certs", "ca.pem", "--ssl-cert-reqs", "2"),
        *("--allowed-origins", '["https://a.example", "https://b.example"]', "--allowed-origins", "https://c.example"),
        *("--allowed-methods", "POST", "--allowed-headers", "authorization", "--allow-credentials"),
        *("--allowed-hosts", "api.internal", "--access-log"),
    )
    settings: ServerSettings = seen["settings"]
    assert settings.api_keys == (KEY, "sk-other-key-0123456789")
    assert settings.api_key_file == tmp_path / "keys"
    assert settings.limits == Limits(
        max_concurrent_requests=4,
        requests_per_minute=60,
        tokens_per_minute=1000,
        max_prompt_tokens=500,
        max_output_tokens=100,
        max_choices=2,
    )
    assert (settings.max_body_bytes, settings.max_connections, seen["options"].max_waiting) == (1 << 20, 50, 7)
    assert settings.cors.origins == ("https://a.example", "https://b.example", "https://c.example")
    assert (settings.cors.methods, settings.cors.headers) == (("POST",), ("authorization",))
    assert settings.cors.credentials
    assert (settings.tls.certfile, settings.tls.keyfile, settings.tls.cert_reqs) == ("c.pem", "k.pem", 2)
    assert (settings.log_format, settings.log_requests_to) == ("json", tmp_path)
    assert settings.allowed_hosts == ("api.internal",)
    assert seen["access_log"]


def test_keys_of_the_environment_are_taken_and_not_handed_on(given: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LPX_API_KEY", f"{KEY} sk-other-key-0123456789")
    assert given()["settings"].api_keys == (KEY, "sk-other-key-0123456789")
    assert "LPX_API_KEY" not in os.environ


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--allowed-origins", "app.example"), "not an origin"),
        (("--allowed-origins", '["https://a.example"'), "JSON list"),
        (("--allowed-origins", "*", "--allow-credentials"), "--allowed-origins"),
        (("--ssl-keyfile", "key.pem"), "--ssl-certfile"),
        (("--log-format", "xml"), "text or json"),
        (("--api-key-file", "/nothing/here"), "cannot be read"),
        (("--api-key", ""), "visible ASCII"),
        (("--log-requests-to", "/proc/version"), "cannot be made"),
        (("--ssl-certfile", "/nothing/here.pem"), "TLS files"),
    ],
)
def test_what_cannot_be_honoured_ends_with_one_line(lpx: Lpx, arguments: tuple[str, ...], said: str) -> None:
    done = lpx("serve", "--port", "0", *arguments)
    assert done.returncode == 2, done.stderr
    [line] = done.stderr.splitlines()
    assert line.startswith("error[LPX-E0")
    assert said in line


def test_a_host_that_others_reach_is_served_with_a_key(environment: dict[str, str]) -> None:
    process = subprocess.Popen(
        [*COMMAND, "serve", "--host", "0.0.0.0", "--port", "0"],
        env={**environment, "LPX_API_KEY": KEY},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        log = ""
        while not (found := re.search(r"listening on http://0\.0\.0\.0:(\d+)", log)):
            line = process.stderr.readline()
            assert line, log
            log += line
        url = f"http://127.0.0.1:{found[1]}"
        bearer = {"authorization": f"Bearer {KEY}"}
        eventually(lambda: httpx.get(url + "/health", trust_env=False).status_code == 200, "readiness")
        assert httpx.get(url + "/v1/models", trust_env=False).status_code == 401
        assert httpx.get(url + "/v1/models", headers=bearer, trust_env=False).status_code == 200
    finally:
        process.send_signal(signal.SIGTERM)
        log += process.stderr.read()
        process.stderr.close()
        process.wait(120)
    assert KEY not in log
    assert "anybody" not in log
