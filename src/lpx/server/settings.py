"""What the service may be told, apart from the engine's own options."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from urllib.parse import urlsplit

from lpx.batch.store import StoreLimits
from lpx.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one key, or of all clients together; None is no limit of this kind."""

    max_concurrent_requests: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None  # of prompts and answers
    max_body_bytes: int | None = None
    max_prompt_tokens: int | None = None  # of one prompt
    max_output_tokens: int | None = None  # of one choice
    max_choices: int | None = None  # of one request: prompts times n

    def __post_init__(self) -> None:
        for name in limit_names():
            value = getattr(self, name)
            if value is not None and (type(value) is not int or not 1 <= value < 2**53):
                raise ConfigError(f"the limit {name} must be a whole number of at least 1")

    def filled_from(self, defaults: Limits) -> Limits:
        """These, with `defaults` where they say nothing."""
        own = {name: getattr(self, name) for name in limit_names()}
        return Limits(**{name: getattr(defaults, name) if value is None else value for name, value in own.items()})

    def tightened_by(self, others: Limits) -> Limits:
        """The lower one of each kind."""
        both = {
            name: [value for value in (getattr(self, name), getattr(others, name)) if value is not None]
            for name in limit_names()
        }
        return Limits(**{name: min(values, default=None) for name, values in both.items()})


def limit_names() -> tuple[str, ...]:
    return tuple(field.name for field in fields(Limits))


@dataclass(frozen=True, slots=True)
class Cors:
    """Which pages of other origins may use the service from a browser; none by default."""

    origins: tuple[str, ...] = ()  # such as https://app.example, or * for all
    methods: tuple[str, ...] = ("*",)
    headers: tuple[str, ...] = ("*",)
    credentials: bool = False

    def __post_init__(self) -> None:
        for origin in self.origins:
            if origin != "*" and not _is_origin(origin):
                raise ConfigError(
                    f"allowed origin {origin!r} is not an origin; write scheme and host, such as https://app.example"
                )
        if self.credentials and "*" in self.origins:
            raise ConfigError("credentials cannot be allowed to every origin; name the origins with --allowed-origins")


def _is_origin(text: str) -> bool:
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.netloc) and text == f"{parts.scheme}://{parts.netloc}"


@dataclass(frozen=True, slots=True)
class Tls:
    """Files in PEM form. Without a certificate the service speaks plain HTTP."""

    certfile: str | None = None
    keyfile: str | None = None  # None: the key is in the certificate's file
    ca_certs: str | None = None  # of clients' certificates
    cert_reqs: int = 0  # of clients: 0 none, 1 optional, 2 required

    def __post_init__(self) -> None:
        if self.certfile is None and (self.keyfile or self.ca_certs or self.cert_reqs):
            raise ConfigError("TLS options need --ssl-certfile, the certificate of the server")
        if self.cert_reqs not in (0, 1, 2):
            raise ConfigError(f"ssl_cert_reqs must be 0 (none), 1 (optional) or 2 (required), not {self.cert_reqs!r}")
        if self.cert_reqs and self.ca_certs is None:
            raise ConfigError("certificates of clients can only be checked with --ssl-ca-certs")


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Keys, limits and logs of the HTTP service."""

    allowed_hosts: tuple[str, ...] = ()  # Host names accepted besides loopback names and IP literals
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    api_key_file: Path | None = None
    admin_api_keys: tuple[str, ...] = field(default=(), repr=False)  # of those who may change what is served
    limits: Limits = field(default_factory=Limits)  # of all clients together, and of each request
    cors: Cors = field(default_factory=Cors)
    tls: Tls = field(default_factory=Tls)
    log_format: str = "text"  # or "json"
    request_timings: bool = True  # `timings` in answers, unless a request says otherwise
    log_requests_to: Path | None = None  # a folder for the texts of requests and answers
    data_dir: Path | None = None  # for files and batches; without it there are none
    batch_max_inflight: int = 16  # requests of batches at once
    store_limits: StoreLimits = field(default_factory=StoreLimits)  # of files and batches
    max_body_bytes: int = 8 * 1024 * 1024
    max_json_depth: int = 64
    max_prompts: int = 1024  # prompts of one request
    max_choices: int = 1024  # prompts times n of one request
    max_connections: int = 1000
    body_timeout_s: float = 30.0  # longest wait for the next piece of a request body
    min_body_rate: float = 10_000.0  # bytes per second that a body must come with after that time
    write_timeout_s: float = 30.0  # longest wait for a client that does not read its answer
    grace_seconds: float = 30.0  # how long running requests may go on after SIGTERM

    def __post_init__(self) -> None:
        if self.log_format not in ("text", "json"):
            raise ConfigError(f"log_format {self.log_format!r} is not known; use text or json")
