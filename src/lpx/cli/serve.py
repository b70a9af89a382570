"""`lpx serve`: the HTTP service."""

from __future__ import annotations

from typing import Annotated

import typer

from lpx.cli.option_groups import ModelOptions, spread_options


@spread_options
def serve(
    model_options: ModelOptions,
    host: Annotated[
        str, typer.Option("--host", envvar="LPX_HOST", help="Address to listen on. Others than loopback are exposed.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", envvar="LPX_PORT", min=0, max=65535, help="0 takes a free one.")
    ] = 8080,
    served_model_name: Annotated[
        str | None,
        typer.Option("--served-model-name", envvar="LPX_SERVED_MODEL_NAME", help="Name that clients see."),
    ] = None,
) -> None:
    """Serve a model over HTTP with OpenAI's API and POST /generate.

    Example: lpx serve --model-path models/ --port 8080
    """
    from lpx.cli.loading import resolve_engine_options
    from lpx.server import serve as serve_http

    options = resolve_engine_options(model_options, served_model_name=served_model_name)
    raise typer.Exit(serve_http(options, host, port))
