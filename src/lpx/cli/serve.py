"""`lpx serve`: the HTTP service."""

from __future__ import annotations

import logging
from typing import Annotated

import typer

from lpx.cli.option_groups import ModelOptions, spread_options
from lpx.cli.profile_option import ProfileOption
from lpx.cli.safety_options import SafetyOptions


@spread_options
def serve(
    context: typer.Context,
    profile: ProfileOption,
    model_options: ModelOptions,
    safety: SafetyOptions,
    host: Annotated[str, typer.Option("--host", envvar="LPX_HOST", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", envvar="LPX_PORT", min=0, max=65535, help="Port; 0 takes a free one.")
    ] = 8080,
    served_model_name: Annotated[
        str | None,
        typer.Option("--served-model-name", envvar="LPX_SERVED_MODEL_NAME", help="Name that clients see."),
    ] = None,
) -> None:
    """Serve a model over HTTP: OpenAI's API, Anthropic's Messages, a WebSocket, and a console for browsers at /.

    Example: lpx serve --port 8080

    With a profile, such as lpx tune writes: lpx serve --profile lpx.toml

    For others: lpx serve --host 0.0.0.0 --api-key-file keys.txt --ssl-certfile cert.pem --ssl-keyfile key.pem
    """
    from lpx.cli.loading import needs_pull, resolve_engine_options
    from lpx.server import serve as serve_http
    from lpx.server.listen import bind_socket
    from lpx.server.log_format import set_up_logging

    settings = safety.server_settings()
    if note := profile.describe(context) or profile.unused_note():
        set_up_logging(settings.log_format, safety.access_log)
        logging.getLogger("lpx.profile").info(note)
    if needs_pull(model_options):
        bind_socket(host, port).close()  # a busy port shows now, not after the download
    options = resolve_engine_options(model_options, served_model_name=served_model_name)
    options.max_waiting = safety.max_waiting
    code = serve_http(
        options,
        host,
        port,
        insecure_no_auth=safety.insecure_no_auth,
        settings=settings,
        access_log=safety.access_log,
    )
    raise typer.Exit(code)
