"""What the service may be told, apart from the engine's own options."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Limits of the HTTP service."""

    allowed_hosts: tuple[str, ...] = ()  # Host names accepted besides loopback names and IP literals
    max_body_bytes: int = 8 * 1024 * 1024
    max_json_depth: int = 64
    max_prompts: int = 1024  # prompts of one request
    max_choices: int = 1024  # prompts times n of one request
    body_timeout_s: float = 30.0  # longest wait for the next piece of a request body
    grace_seconds: float = 30.0  # how long running requests may go on after SIGTERM
