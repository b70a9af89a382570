"""What a request shows to be let in: a key in a header or a WebSocket subprotocol, or the cookie of a browser session.

Keys are never taken from the URL, which ends up in histories and logs.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
from urllib.parse import urlsplit

from starlette.types import Scope

from lpx.server.api_keys import ApiKey, KeyRing
from lpx.server.sessions import Sessions

WEBSOCKET_PROTOCOL = "lpx.v1"
WEBSOCKET_KEY_PREFIX = "lpx.key."  # then the key in base64url without padding, as browsers can send no headers


def key_of(scope: Scope, ring: KeyRing, sessions: Sessions) -> ApiKey | None:
    """The key that an `http` or `websocket` scope shows, or None when it shows no accepted one."""
    for candidate in _shown_keys(scope):
        if key := ring.find(candidate):
            return key
    token = session_token(scope)
    if token is not None and is_same_origin(scope):
        return sessions.find(token)
    return None


def shows_key(scope: Scope) -> bool:
    """Whether a key was sent at all."""
    return bool(_shown_keys(scope))


def header(scope: Scope, name: bytes) -> str | None:
    """The value of a header that comes once; None when it is missing or comes twice."""
    values: list[bytes] = [value for key, value in scope["headers"] if key == name]
    return values[0].decode("latin-1") if len(values) == 1 else None


def _shown_keys(scope: Scope) -> list[str]:
    shown = []
    scheme, _, credentials = (header(scope, b"authorization") or "").partition(" ")
    if scheme.lower() == "bearer" and credentials.strip():
        shown.append(credentials.strip())
    if key := (header(scope, b"x-api-key") or "").strip():
        shown.append(key)
    if scope["type"] == "websocket":
        for protocol in scope.get("subprotocols", ()):
            if protocol.startswith(WEBSOCKET_KEY_PREFIX):
                encoded = protocol.removeprefix(WEBSOCKET_KEY_PREFIX)
                try:
                    shown.append(base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).decode())
                except (binascii.Error, ValueError):
                    continue
    return shown


def is_same_origin(scope: Scope) -> bool:
    """Whether a browser says that the request comes from a page of this server, or no browser says anything.

    Host and port count, not the scheme: a proxy may end TLS before this server.
    """
    if header(scope, b"sec-fetch-site") not in (None, "same-origin", "none"):
        return False
    if not any(name == b"origin" for name, _ in scope["headers"]):
        return True
    origin, host = header(scope, b"origin"), header(scope, b"host")
    if origin is None or host is None:
        return False
    try:
        return urlsplit(origin).netloc.lower() == host.strip().lower()
    except ValueError:
        return False


def is_from_this_machine(scope: Scope) -> bool:
    """Whether the client is on this machine, and speaks for nobody elsewhere as a proxy does."""
    client = scope.get("client")
    if not client or any(name in (b"forwarded", b"x-forwarded-for", b"via") for name, _ in scope["headers"]):
        return False
    try:
        address = ipaddress.ip_address(client[0])
    except ValueError:
        return False
    return bool((getattr(address, "ipv4_mapped", None) or address).is_loopback) and is_same_origin(scope)


def cookie_name(scope: Scope) -> str:
    """Differs by port, since browsers send cookies of one host to all of its ports."""
    server = scope.get("server") or ("", None)
    name = f"lpx_session_{server[1] or 0}"
    return f"__Host-{name}" if scope.get("scheme") in ("https", "wss") else name


def session_token(scope: Scope) -> str | None:
    wanted = cookie_name(scope)
    cookies: list[bytes] = [value for name, value in scope["headers"] if name == b"cookie"]
    for pair in b";".join(cookies).decode("latin-1").split(";"):
        name, equals, token = pair.strip().partition("=")
        if equals and name == wanted:
            return token
    return None
