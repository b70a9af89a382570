"""The load generator over HTTPS: certificates are checked unless told otherwise."""

from __future__ import annotations

import asyncio
import ssl
import subprocess

import pytest

from lpx.bench.load import LoadSettings, measure_load
from lpx.bench.load.server_facts import ServerUnreachableError
from tests.bench.load.fake_server import FakeServer, ScriptedClock, words


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 30 -keyout key.pem "
        "-out cert.pem -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    )
    try:
        subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("needs openssl to make a certificate")
    return folder


def measure(certificate, **options):
    async def main():
        clock = ScriptedClock()
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
        async with FakeServer(clock, [words(0.1, 0.2, tokens=2)] * 2, tls=tls) as server:
            settings = LoadSettings(
                base_url=f"https://127.0.0.1:{server.port}", max_concurrency=1, num_warmups=0, num_prompts=2, **options
            )
            return await measure_load(settings, clock=clock)

    return asyncio.run(main())


def test_figures_are_the_same_over_https(certificate, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate / "cert.pem"))
    report = measure(certificate)
    assert (report.figures["ttft_ms_mean"], report.errors) == (pytest.approx(100), {})
    monkeypatch.delenv("SSL_CERT_FILE")
    assert measure(certificate, insecure=True).figures["tpot_ms_mean"] == pytest.approx(100)


def test_a_certificate_that_nobody_vouches_for_is_refused(certificate):
    with pytest.raises(ServerUnreachableError, match=r"has no good HTTPS: self.signed certificate"):
        measure(certificate)
