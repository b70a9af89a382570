"""Asking servers for things: one client for all sources, with its redirects, failures and patience in one place."""

from __future__ import annotations

import contextlib
import ipaddress
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from lpx import __version__
from lpx.errors import DownloadError

if TYPE_CHECKING:
    import httpx

_MOST_REDIRECTS = 10
_MOST_JSON_BYTES = 32 << 20
_TRIES_OF_QUESTIONS = 3  # before anything is fetched: somebody waits to hear that there is no network
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})  # a later try may go better


@dataclass(frozen=True, slots=True)
class Patience:
    """How often what may pass is tried again, and with what pauses."""

    tries: int = 6  # in a row without any progress
    pause_s: float = 1.0  # doubled with each try
    longest_pause_s: float = 60.0
    timeout_s: float = 30.0  # without a byte
    sleep: Callable[[float], None] = time.sleep


class TryAgain(Exception):
    """What failed may pass."""

    def __init__(self, reason: str, after_s: float | None = None) -> None:
        super().__init__(reason)
        self.after_s = after_s  # as the server has it


class Web:
    """An HTTP client for the time of one pull. Proxies and certificates come from the environment, as usual."""

    def __init__(self, *, insecure: bool = False, patience: Patience | None = None) -> None:
        import httpx

        self.patience = patience or Patience()
        self.insecure = insecure
        self._client = httpx.Client(
            timeout=httpx.Timeout(self.patience.timeout_s),
            headers={"user-agent": f"lpx/{__version__}", "accept-encoding": "identity"},
            follow_redirects=False,
        )

    def __enter__(self) -> Web:
        return self

    def __exit__(self, *ending: object) -> None:
        self._client.close()

    def ask(self, question: Callable[[], Any]) -> Any:
        """`persist` for what is asked before anything is fetched."""
        return self.persist(question, tries=_TRIES_OF_QUESTIONS)

    @contextlib.contextmanager
    def get(self, url: str, headers: Mapping[str, str] | None = None, what: str = "") -> Iterator[httpx.Response]:
        """The answer to a GET, its body unread. Redirects are followed; credentials stay with the first host.

        Raises TryAgain for what may pass (a cut connection, 429, 5xx), DownloadError for all else but 200, 206, 416.
        """
        import httpx

        what = what or urlsplit(url).path
        response: httpx.Response | None = None
        try:
            request = self._client.build_request("GET", url, headers=dict(headers or {}))
            for _ in range(_MOST_REDIRECTS):
                response = self._client.send(request, stream=True)
                if response.next_request is None:
                    break
                self._check_hop(request.url, response.next_request.url)
                response.close()
                request = response.next_request
            else:
                raise DownloadError(f"{_host(url)} redirects {what} more than {_MOST_REDIRECTS} times")
            _check_status(response, what)
            yield response
        except httpx.TransportError as error:
            raise TryAgain(f"{_host(url)}: {_reason(error)}") from error
        except (httpx.InvalidURL, httpx.DecodingError, UnicodeError) as error:
            raise DownloadError(f"{_host(url)}: {what} cannot be asked for: {error}") from error
        finally:
            if response is not None:
                response.close()

    def json(self, url: str, headers: Mapping[str, str] | None = None, what: str = "") -> Any:
        """A JSON document. Raises DownloadError, after as many tries as there is patience for."""

        def ask() -> Any:
            with self.get(url, headers, what) as response:
                body = b""
                for chunk in response.iter_bytes():
                    body += chunk
                    if len(body) > _MOST_JSON_BYTES:
                        raise DownloadError(f"{_host(url)} answers {what} with more than {_MOST_JSON_BYTES} bytes")
            try:
                import json

                return json.loads(body)
            except (ValueError, RecursionError):
                raise DownloadError(f"{_host(url)} answers {what} with something that is not JSON") from None

        return self.ask(ask)

    def persist(
        self, ask: Callable[[], Any], progressed: Callable[[], bool] = lambda: False, *, tries: int | None = None
    ) -> Any:
        """`ask` again while it raises TryAgain: so often in a row, unless `progressed` says that it came further."""
        tries = self.patience.tries if tries is None else min(tries, self.patience.tries)
        failures = 0
        while True:
            try:
                return ask()
            except TryAgain as failure:
                failures = 1 if progressed() else failures + 1
                if failures >= tries:
                    raise DownloadError(f"{failure}; tried {failures} times, try again later") from failure
                pause = self.patience.pause_s * 2 ** (failures - 1) if failure.after_s is None else failure.after_s
                self.patience.sleep(min(pause, self.patience.longest_pause_s))

    def check_endpoint(self, url: str, setting: str) -> None:
        """A hub that is spoken to without TLS must be on this machine, or wanted so. Raises DownloadError."""
        parts = urlsplit(url)
        if parts.scheme == "https" or self.insecure or (parts.scheme == "http" and _is_loopback(parts.hostname or "")):
            return
        raise DownloadError(f"{setting} is {url!r}, which is not https; change it, or allow that with --insecure")

    def _check_hop(self, before: httpx.URL, after: httpx.URL) -> None:
        if after.scheme not in ("http", "https"):
            raise DownloadError(f"{before.host} redirects to {str(after)[:200]!r}, which is not a web address")
        if before.scheme == "https" and after.scheme != "https" and not self.insecure:
            raise DownloadError(f"{before.host} redirects to {after.host} without TLS; allow that with --insecure")
        if _is_local(after.host) and not _is_local(before.host):
            raise DownloadError(
                f"{before.host} redirects to {after.host}, an address of this machine or its network link"
            )


def _check_status(response: httpx.Response, what: str) -> None:
    status, host = response.status_code, response.url.host
    if status in (200, 206, 416):
        return
    if status in _PASSING:
        raise TryAgain(f"{host} answers {status} to {what}", _retry_after(response))
    if status in (401, 403):
        raise DownloadError(
            f"{host} answers {status} to {what}: it is private, gated or not there. If you may have it, set the token "
            "of an account that has accepted its terms (HF_TOKEN, MODELSCOPE_API_TOKEN)"
        )
    if status in (404, 410):
        raise DownloadError(f"{host} has no {what} (it answers {status})")
    raise DownloadError(f"{host} answers {status} to {what}")


def _retry_after(response: httpx.Response) -> float | None:
    text = response.headers.get("retry-after", "")
    return float(text) if text.isdigit() and len(text) < 7 else None


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__


def _host(url: str) -> str:
    return urlsplit(url).netloc.rpartition("@")[2] or url[:80]


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_local(host: str) -> bool:
    """Loopback and link-local addresses, where only this machine, or a cloud's metadata service, answers."""
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return host == "localhost"
    mapped = getattr(address, "ipv4_mapped", None) or address
    return bool(mapped.is_loopback or mapped.is_link_local or mapped.is_unspecified)
