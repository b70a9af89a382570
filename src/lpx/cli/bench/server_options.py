"""Options of commands that measure a server, and how such a command runs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from lpx.errors import ConfigError
from lpx.plain_text import plain_text

if TYPE_CHECKING:
    import asyncio

    from lpx.bench.measurement import Subject

_T = TypeVar("_T")


def _server(*names: str, help: str, **more: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel="Server", **more)


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """Which server, and how to speak with it."""

    url: Annotated[
        str | None,
        _server(
            "--url",
            "--base-url",
            help="The server's address, with or without /v1. Default: http://127.0.0.1:8080.",
            metavar="URL",
        ),
    ] = None
    host: Annotated[str | None, _server("--host", help="Instead of --url: the server's name.", metavar="NAME")] = None
    port: Annotated[int | None, _server("--port", help="Instead of --url: the server's port.", min=1, max=65535)] = None
    model: Annotated[
        str | None, _server("--model", help="The model to ask for. Default: the first that the server lists.")
    ] = None
    endpoint_type: Annotated[
        str,
        _server(
            "--endpoint-type",
            "--backend",
            help="openai-completions, openai-chat, or lpx (POST /generate).",
            metavar="KIND",
        ),
    ] = "openai-completions"
    endpoint: Annotated[
        str | None, _server("--endpoint", help="Path of the requests, where it is not the usual one.", metavar="PATH")
    ] = None
    api_key: Annotated[
        str | None,
        _server("--api-key", help="Default: LPX_API_KEY or OPENAI_API_KEY. Others can see an option.", metavar="KEY"),
    ] = None
    insecure: Annotated[bool, _server("--insecure", help="Take any certificate.")] = False
    request_timeout: Annotated[
        float, _server("--request-timeout", help="Seconds that an answer may take.", metavar="SECONDS")
    ] = 600.0
    tokenizer: Annotated[
        str | None,
        _server(
            "--tokenizer",
            help="A .gguf file or Hugging Face folder that counts tokens. Default: the server's /tokenize.",
            metavar="PATH",
        ),
    ] = None
    extra_body: Annotated[
        str | None,
        _server("--extra-body", help="More members of every request, as a JSON object.", metavar="JSON"),
    ] = None

    @property
    def base_url(self) -> str:
        """Raises ConfigError for an address that is given twice, and for a host that is none."""
        from lpx.bench.load.settings import wrong_host

        if self.url is not None:
            if self.host is not None or self.port is not None:
                raise ConfigError("give either --url or --host and --port")
            return self.url
        host = "127.0.0.1" if self.host is None else self.host.removeprefix("[").removesuffix("]")
        if "@" in host:
            raise ConfigError("--host holds a name or password; give the key with --api-key or LPX_API_KEY")
        if "/" in host:
            raise ConfigError(f"--host {host[:80]!r} is more than the name of a server; give an address with --url")
        if re.fullmatch(r"[^:]*:\d*", host):
            name, _, port = host.partition(":")
            raise ConfigError(f"--host {host[:80]!r} holds a port; write --host {name or 'NAME'} --port {port or 'N'}")
        if (wrong := wrong_host(host)) is not None:
            raise ConfigError(f"--host: {wrong}; write a name, or a number such as 127.0.0.1")
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port or 8080}"

    def load_settings(self) -> dict[str, Any]:
        """What `LoadSettings` and `DecodeSettings` have in common. Raises ConfigError."""
        return {
            "base_url": self.base_url,
            "model": self.model,
            "endpoint_type": self.endpoint_type,
            "endpoint": self.endpoint,
            "insecure": self.insecure,
            "request_timeout_s": self.request_timeout,
            "tokenizer": self.tokenizer,
            "extra_body": _json_object(self.extra_body),
        }


def _json_object(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    from lpx.bench.load.settings import checked_object

    try:
        value = json.loads(text)
    except RecursionError:
        raise ConfigError("--extra-body is no JSON that servers take: it is nested too deeply") from None
    except ValueError as error:
        raise ConfigError(f"--extra-body is no JSON: {error}") from None
    return checked_object("--extra-body", value)


def whole_numbers(text: str, option: str) -> list[int]:
    """`1,4,16`. Raises ConfigError."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"{option} is a number or a list such as 1,4,16, not {text!r}") from None


def describe(subject: Subject) -> str:
    """One line on what is measured."""
    engine = " ".join(part for part in (subject.engine, subject.engine_version) if part)
    threads = None if subject.threads is None else f"{subject.threads} thread{'s' if subject.threads != 1 else ''}"
    where = ", ".join(part for part in (subject.device, subject.isa, threads) if part)
    known = engine if subject.engine != "unknown" else "engine unknown"
    return plain_text(f"{subject.model} at {subject.url} ({known}{f'; {where}' if where else ''})")


def run_until_interrupted(main: Callable[[asyncio.Event], Coroutine[Any, Any, _T]]) -> _T:
    """Run `main` with an event that Ctrl-C sets; a second Ctrl-C ends it at once, with KeyboardInterrupt."""
    import asyncio
    import signal

    loop = _new_loop()
    try:
        asyncio.set_event_loop(loop)
        stopping = asyncio.Event()
        task = loop.create_task(main(stopping))

        def interrupt() -> None:
            if stopping.is_set():
                task.cancel()
            stopping.set()

        loop.add_signal_handler(signal.SIGINT, interrupt)
        try:
            return loop.run_until_complete(task)
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None
        finally:
            loop.remove_signal_handler(signal.SIGINT)
            rest = asyncio.all_tasks(loop)
            for each in rest:
                each.cancel()
            loop.run_until_complete(asyncio.gather(*rest, return_exceptions=True))
            loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        asyncio.set_event_loop(None)
        loop.close()


def _new_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where there is one: it costs the measured server less of the machine."""
    import asyncio

    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
