"""What a load is: which server, which prompts, how fast they come. Travels as JSON, so that a run can be repeated."""

from __future__ import annotations

import dataclasses
import ipaddress
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from lpx.addresses import without_secrets
from lpx.errors import ConfigError

ENDPOINTS = {
    "openai-completions": "/v1/completions",
    "openai-chat": "/v1/chat/completions",
    "lpx": "/generate",
}
ENDPOINT_ALIASES = {"openai": "openai-completions", "vllm": "openai-completions"}  # vLLM's names
DATASETS = ("fixed", "random", "prefix_repetition", "long", "chat", "custom", "sharegpt")
DATASET_ALIASES = {"shared-prefix": "prefix_repetition", "jsonl": "custom"}
FILE_DATASETS = ("custom", "sharegpt")
GOODPUT_FIGURES = ("ttft", "tpot", "itl", "e2el")
RAMP_UPS = ("linear", "exponential")

_MAX_REQUESTS = 1_000_000
MAX_INPUT_LEN = 1 << 20  # tokens: a longer text takes this client seconds to make
MAX_OUTPUT_LEN = (1 << 31) - 1
_LEAST, _MOST = 1e-6, 1e9  # of rates, times and shapes: beyond, sums lose their digits


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSettings:
    """One load on one server. Lengths are tokens, times seconds, rates requests a second.

    `nonce` goes into the prompts, so that no server knows them from an earlier run; None draws a new one for every run,
    and the same nonce gives the same prompts again. Raises ConfigError for values that make no sense.
    """

    base_url: str
    model: str | None = None  # None: the first one that the server names
    endpoint_type: str = "openai-completions"
    endpoint: str | None = None  # path; None: the type's own
    dataset_name: str = "fixed"
    dataset_path: str | None = None
    num_prompts: int | None = None
    duration_s: float | None = None
    request_rate: float | None = None  # None: as fast as max_concurrency lets them
    burstiness: float = 1.0  # shape of the gamma distribution between requests; 1 is Poisson
    max_concurrency: int | None = None
    ramp_up_strategy: str | None = None
    ramp_up_start_rps: float | None = None
    ramp_up_end_rps: float | None = None
    input_len: int | None = None
    output_len: int | None = None
    range_ratio: float = 0.0  # lengths are drawn from ±this share around input_len and output_len
    prefix_len: int | None = None  # tokens that prompts have in common
    num_prefixes: int = 1
    ignore_eos: bool = False
    temperature: float | None = 0.0  # None: not sent
    seed: int = 0
    num_warmups: int | None = None
    stream: bool = True
    unique_prompts: bool | None = None  # None: all sets but the user's own files
    nonce: str | None = None
    tokenizer: str | None = None  # a model or tokenizer that counts tokens; None: the server's /tokenize
    goodput: Mapping[str, float] = field(default_factory=dict)  # most milliseconds, by GOODPUT_FIGURES
    percentiles: tuple[float, ...] = (90.0, 95.0, 99.0)
    request_timeout_s: float = 600.0
    insecure: bool = False  # takes any certificate
    extra_body: Mapping[str, Any] = field(default_factory=dict)  # more members of every request
    metadata: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "endpoint_type", ENDPOINT_ALIASES.get(self.endpoint_type, self.endpoint_type))
        put(self, "dataset_name", DATASET_ALIASES.get(self.dataset_name, self.dataset_name))
        put(self, "extra_body", checked_object("--extra-body", self.extra_body))
        put(self, "percentiles", tuple(float(percentile) for percentile in self.percentiles))
        if self.endpoint_type not in ENDPOINTS:
            raise ConfigError(
                f"--endpoint-type {self.endpoint_type!r} is not known; take one of {', '.join(ENDPOINTS)}"
            )
        base, path = _split_url(self.base_url)
        put(self, "base_url", base)
        if path is not None and self.endpoint is None:
            put(self, "endpoint", path)
        if self.endpoint is not None and re.fullmatch(r"/[!-~]*", self.endpoint) is None:
            raise ConfigError(f"--endpoint is a path such as /v1/completions, not {self.endpoint!r}")
        self._check_data()
        self._check_pace()

    def _check_data(self) -> None:
        if self.dataset_name not in DATASETS:
            raise ConfigError(f"--dataset-name {self.dataset_name!r} is not known; take one of {', '.join(DATASETS)}")
        if self.dataset_name in FILE_DATASETS and self.dataset_path is None:
            raise ConfigError(f"--dataset-name {self.dataset_name} needs --dataset-path FILE")
        if self.dataset_name not in FILE_DATASETS and self.dataset_path is not None:
            raise ConfigError(
                f"--dataset-path is for {' and '.join(FILE_DATASETS)}; the set {self.dataset_name} comes with LPX"
            )
        if self.dataset_name == "chat" and self.endpoint_type != "openai-chat":
            raise ConfigError("--dataset-name chat is a conversation: it needs --endpoint-type openai-chat")
        made = ("random", "prefix_repetition", "long")
        for name, given, sets in (
            ("--random-input-len", self.input_len is not None, made),
            ("--random-range-ratio", self.range_ratio != 0, made),
            ("--random-prefix-len", self.prefix_len is not None, made[:2]),
            ("--num-prefixes", self.num_prefixes != 1, made[:2]),
        ):
            if given and self.dataset_name not in sets:
                raise ConfigError(f"{name} is for --dataset-name {' and '.join(sets)}, not {self.dataset_name}")
        for name, value, least, most in (
            ("--random-input-len", self.input_len, 1, MAX_INPUT_LEN),
            ("--random-output-len", self.output_len, 1, MAX_OUTPUT_LEN),
            ("--random-prefix-len", self.prefix_len, 0, MAX_INPUT_LEN),
            ("--num-prefixes", self.num_prefixes, 1, _MAX_REQUESTS),
            ("--num-warmups", self.num_warmups, 0, _MAX_REQUESTS),
        ):
            check_whole(name, value, least, most)
        if not 0 <= self.range_ratio < 1:
            raise ConfigError(f"--random-range-ratio must be at least 0 and below 1, not {self.range_ratio:g}")
        for name, limit in self.goodput.items():
            if name not in GOODPUT_FIGURES or not limit > 0 or math.isinf(limit):
                raise ConfigError(
                    f"--goodput {name}:{limit:g} is no limit; write milliseconds for {', '.join(GOODPUT_FIGURES)}, "
                    "such as ttft:200"
                )
        for percentile in self.percentiles:
            if not 0 < percentile < 100:
                raise ConfigError(f"--metric-percentiles must lie between 0 and 100, not {percentile:g}")

    def _check_pace(self) -> None:
        if self.burstiness != 1 and not self.paced:
            raise ConfigError("--burstiness is about requests that come at times of their own: it needs --request-rate")
        check_whole("--num-prompts", self.num_prompts, 1, _MAX_REQUESTS)
        check_whole("--max-concurrency", self.max_concurrency, 1, _MAX_REQUESTS)
        for name, value in (
            ("--duration", self.duration_s),
            ("--request-rate", self.request_rate),
            ("--burstiness", self.burstiness),
            ("--request-timeout", self.request_timeout_s),
            ("--ramp-up-start-rps", self.ramp_up_start_rps),
            ("--ramp-up-end-rps", self.ramp_up_end_rps),
        ):
            if value is None:
                continue
            if not (value > 0 and math.isfinite(value)):
                raise ConfigError(f"{name} must be a number above 0, not {value:g}")
            if not _LEAST <= value <= _MOST:
                raise ConfigError(f"{name} must be from {_LEAST:g} to {_MOST:g}, not {value:g}")
        if self.temperature is not None and not (self.temperature >= 0 and math.isfinite(self.temperature)):
            raise ConfigError(f"--temperature must be at least 0, not {self.temperature:g}")
        ends = (self.ramp_up_start_rps, self.ramp_up_end_rps)
        if self.ramp_up_strategy is None:
            if ends != (None, None):
                raise ConfigError("--ramp-up-start-rps and --ramp-up-end-rps need --ramp-up-strategy")
        elif self.ramp_up_strategy not in RAMP_UPS:
            raise ConfigError(f"--ramp-up-strategy {self.ramp_up_strategy!r} is not known; take linear or exponential")
        elif None in ends:
            raise ConfigError("--ramp-up-strategy needs --ramp-up-start-rps and --ramp-up-end-rps")
        elif self.request_rate is not None:
            raise ConfigError("--ramp-up-strategy takes the place of --request-rate; leave one of them out")

    @property
    def path(self) -> str:
        """Where requests go, below `base_url`."""
        return self.endpoint or ENDPOINTS[self.endpoint_type]

    @property
    def makes_unique(self) -> bool:
        """Whether each prompt gets a beginning of its own."""
        return self.dataset_name not in FILE_DATASETS if self.unique_prompts is None else self.unique_prompts

    @property
    def paced(self) -> bool:
        """Whether requests come at times of their own instead of when others end."""
        return self.request_rate is not None or self.ramp_up_strategy is not None

    def as_json(self) -> dict[str, Any]:
        """JSON values, without what has its default."""
        values = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        defaults = LoadSettings(base_url=self.base_url)
        kept = {name: value for name, value in values.items() if value != getattr(defaults, name)}
        kept["base_url"] = self.base_url
        for name, value in kept.items():
            if isinstance(value, tuple):
                kept[name] = list(value)
            elif isinstance(value, Mapping):
                kept[name] = dict(value)
        return kept

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> LoadSettings:
        """The settings that `as_json` gave. Raises ConfigError for members that are none of them."""
        known = {each.name for each in dataclasses.fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown or "base_url" not in values:
            wrong = f"{', '.join(unknown)} not known" if unknown else "base_url is missing"
            raise ConfigError(f"these are no settings of a load: {wrong}")
        return cls(**values)


def check_whole(name: str, value: int | None, least: int, most: int) -> None:
    """Raise ConfigError for a number of an option that is outside of these; None is none."""
    if value is None or least <= value <= most:
        return
    if value < least:
        raise ConfigError(f"{name} must be at least {least}, not {value}")
    digits = f"{value:,}" if value < 10**15 else "a number of so many digits"
    raise ConfigError(f"{name} must be at most {most:,}, not {digits}")


def checked_object(option: str, value: Any) -> dict[str, Any]:
    """`value` as the members of an object. Raises ConfigError where it is none, or holds what JSON has no words for."""
    if not isinstance(value, Mapping):
        raise ConfigError(f'{option} is a JSON object such as {{"top_k": 1}}, not {str(value)[:80]}')
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"{option} cannot be sent as JSON: {error}") from None
    return dict(value)


def _split_url(url: str) -> tuple[str, str | None]:
    """The server's address without a trailing `/v1`, and the path where the address names an endpoint."""
    example = "write it as http://127.0.0.1:8080"
    whole = url if "://" in url else f"http://{url}"
    scheme, _, rest = whole.partition("://")
    # First, for no message may repeat what is before the @; and anywhere: a password may look like a port and a path.
    if "@" in rest:
        raise ConfigError("the address holds a name or password; give the key with --api-key or LPX_API_KEY")
    shown = repr(url if len(url) <= 200 else f"{url[:200]}…")
    if scheme.lower() not in ("http", "https"):
        raise ConfigError(f"{shown} is not an address: {scheme[:20]!r} is neither http nor https; {example}")
    try:
        parts = urlsplit(whole)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise ConfigError(f"{shown} is not an address: {error}; {example}") from None
    if port is not None and port < 1:
        raise ConfigError(f"{shown} is not an address: there is no port {port}; {example}")
    if (wrong := wrong_host(host)) is not None:
        raise ConfigError(f"{shown} is not an address: {wrong}; {example}")
    if parts.query or parts.fragment or whole.endswith(("?", "#")):
        raise ConfigError(f"{without_secrets(url)[:200]!r} has a query; the address ends with the path")
    if re.fullmatch(r"[!-~]*", parts.path) is None:
        raise ConfigError(f"{shown} is not an address: its path holds a space or other letters than ASCII's; {example}")
    path, endpoint = parts.path.rstrip("/"), None
    for known in ENDPOINTS.values():
        if path.endswith(known):
            path, endpoint = path.removesuffix(known), known
    return urlunsplit((parts.scheme, parts.netloc, path.removesuffix("/v1"), "", "")), endpoint


def wrong_host(host: str) -> str | None:
    """Why this is no name or number of a machine; None: it is one."""
    if not host:
        return "the name of the server is missing"
    if ":" in host:
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            return f"{host[:80]!r} is no IPv6 address"
        return None
    if not host.isascii():
        return f"the name {host[:80]!r} has letters that the network has no words for; write its xn-- form"
    labels = host.removesuffix(".").split(".")
    if len(host) > 253 or not all(
        re.fullmatch(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?", part) for part in labels
    ):
        return f"{host[:80]!r} is no name of a server"
    return None
