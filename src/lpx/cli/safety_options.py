"""Options of `lpx serve` about who may use it, how much, and what is written down."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lpx.cli.option_groups import size_parameter
from lpx.errors import ConfigError

if TYPE_CHECKING:
    from lpx.server.settings import ServerSettings


def _access(*names: str, help: str, **more: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel="Access", **more)


def _limit(*names: str, help: str, **more: Any) -> Any:
    more = {"min": 1, **more} if "parser" not in more else more
    return typer.Option(*names, help=help, rich_help_panel="Limits of all clients together", **more)


def _batches(*names: str, help: str, **more: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel="Files and batches", **more)


def _tls(*names: str, help: str, **more: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel="TLS and browsers", **more)


def _log(*names: str, help: str, **more: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel="Logs", **more)


@dataclass(frozen=True, kw_only=True)
class SafetyOptions:
    api_key: Annotated[
        list[str] | None,
        _access(
            "--api-key",
            help="A key that clients must show; may be given several times. Others on this machine can see it in the "
            "list of processes: better set LPX_API_KEY (several with spaces between), or --api-key-file.",
            envvar="LPX_API_KEY",
            show_default=False,
        ),
    ] = None
    api_key_file: Annotated[
        Path | None,
        _access(
            "--api-key-file",
            help="A file of keys, one on a line: KEY or NAME:KEY, then limits such as requests_per_minute=60. Read "
            "again on SIGHUP.",
            envvar="LPX_API_KEY_FILE",
        ),
    ] = None
    admin_api_key: Annotated[
        list[str] | None,
        _access(
            "--admin-api-key",
            help="A key that may change what is served (POST /admin/models/reload); better set LPX_ADMIN_API_KEY, or "
            "write `admin` behind a key of the key file.",
            envvar="LPX_ADMIN_API_KEY",
            show_default=False,
        ),
    ] = None
    insecure_no_auth: Annotated[
        bool, _access("--insecure-no-auth", help="Allow a host that other machines reach without any key.")
    ] = False
    allowed_hosts: Annotated[
        list[str] | None,
        _access(
            "--allowed-hosts",
            help="Host name that clients may use besides loopback names and addresses; may be given several times.",
        ),
    ] = None

    max_concurrent_requests: Annotated[
        int | None, _limit("--max-concurrent-requests", help="Requests that are answered at once.")
    ] = None
    requests_per_minute: Annotated[int | None, _limit("--requests-per-minute", help="Requests in a minute.")] = None
    tokens_per_minute: Annotated[
        int | None, _limit("--tokens-per-minute", help="Tokens of prompts and answers in a minute.")
    ] = None
    max_prompt_tokens: Annotated[int | None, _limit("--max-prompt-tokens", help="Longest prompt.")] = None
    max_output_tokens: Annotated[int | None, _limit("--max-output-tokens", help="Longest answer.")] = None
    max_choices: Annotated[
        int | None, _limit("--max-choices", help="Choices of a request: prompts times n. Default: 1024.")
    ] = None
    max_body_size: Annotated[
        int, _limit("--max-body-size", help="Largest request body.", parser=size_parameter, metavar="SIZE")
    ] = 8 * 1024 * 1024
    max_waiting: Annotated[
        int,
        _limit("--max-waiting", help="Sequences that may wait beside those that run; more get 429.", min=0),
    ] = 1024
    max_connections: Annotated[int, _limit("--max-connections", help="Open connections.")] = 1000

    data_dir: Annotated[
        Path | None,
        _batches(
            "--data-dir",
            help="Private folder that keeps files and batches over restarts: turns /v1/files and /v1/batches on.",
            envvar="LPX_DATA_DIR",
        ),
    ] = None
    batch_max_inflight: Annotated[
        int, _batches("--batch-max-inflight", help="Requests of batches that run at once.", min=1)
    ] = 16
    max_file_size: Annotated[
        int, _batches("--max-file-size", help="Largest uploaded file.", parser=size_parameter, metavar="SIZE")
    ] = 200 * 1024 * 1024
    max_stored_size: Annotated[
        int, _batches("--max-stored-size", help="All files of one key together.", parser=size_parameter, metavar="SIZE")
    ] = 2 * 1024 * 1024 * 1024
    keep_files_days: Annotated[
        int, _batches("--keep-files-days", help="Days until files and ended batches are deleted.", min=1, max=3650)
    ] = 30

    ssl_keyfile: Annotated[str | None, _tls("--ssl-keyfile", help="Private key, if not in the certificate's file.")] = (
        None
    )
    ssl_certfile: Annotated[str | None, _tls("--ssl-certfile", help="Certificate in PEM form: serve HTTPS.")] = None
    ssl_ca_certs: Annotated[
        str | None, _tls("--ssl-ca-certs", help="Authorities whose client certificates are accepted.")
    ] = None
    ssl_cert_reqs: Annotated[
        int, _tls("--ssl-cert-reqs", help="Client certificates: 0 none, 1 optional, 2 required.", min=0, max=2)
    ] = 0
    allowed_origins: Annotated[
        list[str] | None,
        _tls(
            "--allowed-origins",
            help="Origin whose pages may use this server from a browser (CORS), such as https://app.example; a JSON "
            "list, or several times. Default: none.",
        ),
    ] = None
    allowed_methods: Annotated[
        list[str] | None, _tls("--allowed-methods", help="Methods that these pages may use. Default: all.")
    ] = None
    allowed_headers: Annotated[
        list[str] | None, _tls("--allowed-headers", help="Headers that these pages may send. Default: all.")
    ] = None
    allow_credentials: Annotated[
        bool, _tls("--allow-credentials", help="Let these pages send credentials of the browser.")
    ] = False

    request_timings: Annotated[
        bool,
        _log(
            "--enable-request-timings/--no-enable-request-timings",
            help='Put `timings` into answers. A request decides for itself with "timings": true or false.',
        ),
    ] = True
    log_format: Annotated[
        str, _log("--log-format", help="text, or json: one object a line.", envvar="LPX_LOG_FORMAT")
    ] = "text"
    log_requests_to: Annotated[
        Path | None,
        _log(
            "--log-requests-to",
            help="Folder for the texts of requests and answers, one file for each key. Default: texts are not kept.",
        ),
    ] = None
    access_log: Annotated[bool, _log("--access-log", help="Log a line for each HTTP request.")] = False

    def server_settings(self) -> ServerSettings:
        """Checked; ConfigError names what is wrong."""
        from lpx.batch.store import StoreLimits
        from lpx.server.settings import Cors, Limits, ServerSettings, Tls

        for name in ("LPX_API_KEY", "LPX_ADMIN_API_KEY"):
            os.environ.pop(name, None)  # of no use to any program that this one starts
        return ServerSettings(
            allowed_hosts=tuple(self.allowed_hosts or ()),
            api_keys=tuple(self.api_key or ()),
            api_key_file=self.api_key_file,
            admin_api_keys=tuple(self.admin_api_key or ()),
            limits=Limits(
                max_concurrent_requests=self.max_concurrent_requests,
                requests_per_minute=self.requests_per_minute,
                tokens_per_minute=self.tokens_per_minute,
                max_prompt_tokens=self.max_prompt_tokens,
                max_output_tokens=self.max_output_tokens,
                max_choices=self.max_choices,
            ),
            max_body_bytes=self.max_body_size,
            max_connections=self.max_connections,
            cors=Cors(
                origins=_list("--allowed-origins", self.allowed_origins, ()),
                methods=_list("--allowed-methods", self.allowed_methods, ("*",)),
                headers=_list("--allowed-headers", self.allowed_headers, ("*",)),
                credentials=self.allow_credentials,
            ),
            tls=Tls(
                certfile=self.ssl_certfile,
                keyfile=self.ssl_keyfile,
                ca_certs=self.ssl_ca_certs,
                cert_reqs=self.ssl_cert_reqs,
            ),
            request_timings=self.request_timings,
            log_format=self.log_format,
            log_requests_to=self.log_requests_to,
            data_dir=self.data_dir,
            batch_max_inflight=self.batch_max_inflight,
            store_limits=StoreLimits(
                max_file_bytes=self.max_file_size,
                max_stored_bytes=self.max_stored_size,
                keep_s=self.keep_files_days * 24 * 3600,
            ),
        )


def _list(option: str, given: list[str] | None, default: tuple[str, ...]) -> tuple[str, ...]:
    """Plain values, and JSON lists of them as vLLM has it."""
    if not given:
        return default
    values: list[str] = []
    for text in given:
        if not text.lstrip().startswith("["):
            values.append(text)
            continue
        try:
            listed = json.loads(text)
        except ValueError:
            listed = None
        if not isinstance(listed, list) or not all(isinstance(each, str) for each in listed):
            raise ConfigError(f"{option} takes a value, or a JSON list of strings such as '[\"https://app.example\"]'")
        values += listed
    return tuple(values)
