"""The server process: take the port, load the model, answer, and end cleanly.

The port comes first: a busy one ends the process at once instead of after a long load, and /health says "loading"
from the first moment. The exit code is 0 after SIGTERM or SIGINT, and the error's when the model cannot be
loaded.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import socket
import ssl
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lpx.errors import ConfigError, LpxError, error_line
from lpx.regular_file import open_regular
from lpx.server.listen import bind_socket, is_loopback
from lpx.server.log_format import set_up_logging
from lpx.server.settings import ServerSettings, Tls

if TYPE_CHECKING:
    from lpx.options import EngineOptions
    from lpx.server.http_protocol import QuietServer
    from lpx.server.service import Service

logger = logging.getLogger("lpx.server")

_CLEANUP_S = 5.0  # after the grace period, for aborted requests to tell their clients
_OTHER_FILES = 100  # open beside connections: the model, logs, libraries


class ExposedError(ConfigError):
    """Others can reach the address, and nothing asks them for a key."""

    help_code = "LPX-E042"


class TlsError(ConfigError):
    """The certificate, its key or the authorities cannot be used."""

    help_code = "LPX-E048"


def serve(
    options: EngineOptions,
    host: str = "127.0.0.1",
    port: int = 8080,
    *,
    insecure_no_auth: bool = False,
    settings: ServerSettings | None = None,
    access_log: bool = False,
) -> int:
    """Serve a model until SIGTERM or SIGINT; returns the exit code.

    Prints errors to stderr instead of raising them. A host that other machines can reach is refused unless there are
    API keys, or `insecure_no_auth` is set.
    """
    settings = settings or ServerSettings()
    set_up_logging(settings.log_format, access_log)
    try:
        listener = bind_socket(host, port)
        try:
            _check_reach(listener, host, settings, insecure_no_auth)
            _allow_connections(settings.max_connections)
            return _serve_on(listener, options, settings, access_log)
        finally:
            listener.close()
    except LpxError as exc:
        print(error_line(exc, exc.help_code), file=sys.stderr)
        return exc.exit_code


def _check_reach(listener: socket.socket, host: str, settings: ServerSettings, insecure_no_auth: bool) -> None:
    has_keys = bool(settings.api_keys or settings.api_key_file)
    if has_keys or is_loopback(listener):
        return
    if not insecure_no_auth:
        raise ExposedError(
            f"host {host} can be reached by other machines, and no API key is set: set one with --api-key-file or "
            "LPX_API_KEY, keep 127.0.0.1, or add --insecure-no-auth if the network is trusted"
        )
    logger.warning("anybody who reaches %s can use this server: it has no API keys", host)


def _allow_connections(most: int) -> None:
    """Each connection is an open file, and the usual limit of these is about as low as that of connections."""
    wanted = most + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, allowed), hard))
        if allowed < wanted:
            logger.warning("%d connections need %d open files, and %d are allowed", most, wanted, allowed)


def _tls_options(tls: Tls) -> dict[str, Any]:
    """uvicorn's, tried before the model is loaded; raises `TlsError`."""
    if tls.certfile is None:
        return {}
    from uvicorn.config import create_ssl_context

    files = (tls.certfile, tls.keyfile, tls.ca_certs)
    for file in filter(None, files):
        try:
            open_regular(Path(file)).close()  # OpenSSL would wait for whoever writes to a pipe
        except OSError as exc:
            raise TlsError(f"the TLS files cannot be used: {file!r}: {exc.strerror}") from None
    try:
        create_ssl_context(tls.certfile, tls.keyfile, None, ssl.PROTOCOL_TLS_SERVER, tls.cert_reqs, tls.ca_certs, None)
    except (OSError, ssl.SSLError) as exc:
        named = ", ".join(file for file in files if file)
        raise TlsError(f"the TLS files {named} cannot be used: {exc}") from None
    return {
        "ssl_certfile": tls.certfile,
        "ssl_keyfile": tls.keyfile,
        "ssl_ca_certs": tls.ca_certs,
        "ssl_cert_reqs": tls.cert_reqs,
    }


def _serve_on(listener: socket.socket, options: EngineOptions, settings: ServerSettings, access_log: bool) -> int:
    import uvicorn

    from lpx.server.app import create_app
    from lpx.server.http_protocol import QuietServer, QuietWebSocketProtocol, bounded_protocol, run_on_new_loop
    from lpx.server.model_loader import ModelLoader

    tls = _tls_options(settings.tls)
    app = create_app(ModelLoader(options), settings)
    config = uvicorn.Config(
        app,
        http=bounded_protocol(settings),
        ws=QuietWebSocketProtocol,
        ws_max_size=settings.max_body_bytes,
        ws_per_message_deflate=False,  # small messages: costs more than it saves
        lifespan="on",
        log_config=None,
        access_log=access_log,
        server_header=False,
        proxy_headers=False,
        backlog=1024,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=int(settings.grace_seconds + _CLEANUP_S) + 1,
        **tls,
    )
    server = QuietServer(config)
    service: Service = app.state.service

    async def run() -> int:
        loop = asyncio.get_running_loop()
        # A hangup of the terminal ends the server; one that no terminal sends is a wish to reload.
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, _stop, server, service, number)
        if service.keys.can_reload or not _has_terminal():
            loop.add_signal_handler(signal.SIGHUP, _reload, service)
        watch = asyncio.create_task(_watch_loading(server, service, app, listener))
        try:
            await server.serve(sockets=[listener])
        finally:
            watch.cancel()
        if service.load_error is not None:
            return _report(service.load_error)
        return 0

    code = run_on_new_loop(run())
    if code == 0:
        logger.info("the server has ended")
    if service.is_loading_thread_alive:
        # The thread is inside native code and cannot be interrupted; unwinding the interpreter under it would crash.
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _has_terminal() -> bool:
    """Whether a terminal controls this process."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _reload(service: Service) -> None:
    """SIGHUP: the key file, and the model if its name means another version by now."""
    service.reload_keys()
    service.reload_model()


async def _watch_loading(server: QuietServer, service: Service, app: Any, listener: socket.socket) -> None:
    """Announce readiness, or end the server when the model cannot be loaded."""
    name = listener.getsockname()
    scheme = "https" if service.settings.tls.certfile is not None else "http"
    shown = f"{scheme}://" + (f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}")
    logger.info("listening on %s (loading the model; /health says when it is ready)", shown)
    while not hasattr(app.state, "loaded"):
        await asyncio.sleep(0.01)
    await asyncio.wait({app.state.loaded})
    if service.load_error is not None:
        server.exit_soon()
    elif service.state == "ok":
        info = service.engine.info
        logger.info(
            "ready on %s: model %s, %s on %s (%s, %d threads), context %d, KV cache %d blocks of %d (%s); "
            "the warm-up token took %.1f ms",
            shown,
            info.model,
            info.quantization,
            info.device,
            info.isa,
            info.threads,
            info.max_model_len,
            info.num_blocks,
            info.block_size,
            info.kv_cache_dtype,
            service.warm_up_ms,
        )


def _stop(server: QuietServer, service: Service, number: int) -> None:
    """First signal: finish what runs, within the grace period. Second: end it now."""
    if server.should_exit:
        logger.info("%s again: running requests end now", signal.Signals(number).name)
        service.abort_running()
        return
    logger.info(
        "%s: no new requests; running ones may take %g s more",
        signal.Signals(number).name,
        service.settings.grace_seconds,
    )
    service.stop_accepting()
    server.exit_soon()
    asyncio.get_running_loop().call_later(service.settings.grace_seconds, service.abort_running)


def _report(error: Exception) -> int:
    if isinstance(error, LpxError):
        print(error_line(error, error.help_code), file=sys.stderr)
        return error.exit_code or 1
    logger.error("the model could not be loaded", exc_info=error)
    print(error_line(f"the model could not be loaded: {type(error).__name__}: {error}"), file=sys.stderr)
    return 1
