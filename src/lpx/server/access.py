"""The outermost layers: which host names are served, who is let in, and what every answer carries.

Everything needs a key once keys are set, but what `PUBLIC_PATHS` lists; what lies under `ADMIN_PREFIX` needs an admin
key. Both are compared with the decoded path, so that whatever the router would make of an odd path, it needs a key.
WebSockets and mounted applications come through here like everything else.
"""

from __future__ import annotations

from collections.abc import Collection

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lpx.server.api_keys import ApiKey
from lpx.server.caller import ANYBODY, Caller, set_caller
from lpx.server.credentials import (
    WEBSOCKET_PROTOCOL,
    header,
    is_from_this_machine,
    is_same_origin,
    key_of,
    shows_key,
)
from lpx.server.engines import one_use
from lpx.server.errors import HttpError, response_for_path
from lpx.server.limits import host_allowed
from lpx.server.login_page import login_page
from lpx.server.rate_limits import LimitReached, begin_requests
from lpx.server.request_log import log_refusal
from lpx.server.service import Service

# /health* says whether the service is up; /login takes a key.
PUBLIC_PATHS = frozenset({"/health", "/health/live", "/health/ready", "/login"})
ADMIN_PREFIX = "/admin/"

_SECURITY_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),  # without any, a form's Origin would be null
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cache-control", b"no-store"),
)


class HostCheck:
    """Refuses foreign Host names: a page whose name was rebound to this address is stopped here."""

    def __init__(self, app: ASGIApp, allowed_hosts: tuple[str, ...]) -> None:
        self._app = app
        self._allowed_hosts = tuple(host.lower() for host in allowed_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
            if len(hosts) > 1 or (hosts and not host_allowed(hosts[0], self._allowed_hosts)):
                refusal = HttpError(
                    403,
                    "This Host name is not served. Use localhost or the IP address, or start the server with "
                    "--allowed-hosts NAME.",
                    code="host_not_allowed",
                )
                await _refuse(scope, receive, send, refusal)
                return
        await self._app(scope, receive, send)


class AccessGuard:
    """Lets in whoever shows a key, counts requests, adds the security headers, and hides what went wrong inside."""

    def __init__(self, app: ASGIApp, service: Service, paths: Collection[str] = ()) -> None:
        """`paths` are those that logs of refusals may name."""
        self._app = app
        self._service = service
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller = ANYBODY
        status = 0

        async def sending(message: Message) -> None:
            nonlocal status
            if not status:
                status = message["status"]
                _add_security_headers(message)
            await send(message)

        if scope["path"] not in PUBLIC_PATHS:
            try:
                caller = self._caller(scope)
            except HttpError as refusal:
                if scope["method"] == "GET" and _wants_page(scope):
                    await login_page(scope, 401)(scope, receive, sending)
                else:
                    await _refuse(scope, receive, sending, refusal)
                return
        set_caller(caller)
        counted = caller.quotas if scope["method"] == "POST" else ()
        try:
            begin_requests(counted)
        except LimitReached as refusal:
            self._service.count_refusal(refusal.reason)
            log_refusal(scope, caller.name, refusal.status, refusal.code, self._paths)
            await _refuse(scope, receive, sending, refusal)
            return
        try:
            with one_use() as use:
                if scope["method"] == "POST" and not _is_admin(scope):
                    await self._service.enter(use)
                await self._app(scope, receive, sending)
        except Exception as exc:
            response = response_for_path(exc, scope["path"])
            if not status:
                await response(scope, receive, sending)
        finally:
            for quota in counted:
                quota.end_request()
            if 400 <= status < 499 and scope["method"] == "POST":
                log_refusal(scope, caller.name, status)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._check_origin(scope)
            set_caller(self._caller(scope))
        except HttpError as refusal:
            await _refuse(scope, receive, send, refusal)
            return

        async def accepting_send(message: Message) -> None:
            # A browser that offered subprotocols, one of them its key, must see one of them chosen.
            if message["type"] == "websocket.accept" and WEBSOCKET_PROTOCOL in scope.get("subprotocols", ()):
                message = {**message, "subprotocol": message.get("subprotocol") or WEBSOCKET_PROTOCOL}
            await send(message)

        await self._app(scope, receive, accepting_send)

    def _caller(self, scope: Scope) -> Caller:
        """Who is asking; raises `HttpError` 401, and 403 for what an admin key is needed for."""
        service = self._service
        if _is_admin(scope):
            return self._admin(scope)
        lasting = scope["type"] == "websocket"
        if not service.keys:
            return service.callers.of(None, counts_generations=lasting)
        return service.callers.of(self._key(scope), counts_generations=lasting)

    def _key(self, scope: Scope) -> ApiKey:
        """The key that is shown; raises `HttpError` 401 without an accepted one."""
        service = self._service
        key = key_of(scope, service.keys, service.sessions)
        if key is not None:
            return key
        service.count_refusal("key")
        log_refusal(scope, None, 401, "invalid_api_key", self._paths)
        raise HttpError(
            401,
            "This API key is not accepted here. Send another as 'Authorization: Bearer KEY' or 'x-api-key: KEY'."
            if shows_key(scope)
            else "An API key is needed: send 'Authorization: Bearer KEY' or 'x-api-key: KEY'.",
            code="invalid_api_key",
            headers={"www-authenticate": "Bearer"},
        )

    def _admin(self, scope: Scope) -> Caller:
        """Whoever shows an admin key; without any keys, whoever is on this machine. Raises `HttpError` 401 or 403."""
        service = self._service
        if service.keys.keys:
            key = self._key(scope)
            if key.admin:
                return service.callers.of(key)
            message = (
                "This key may not do that: an admin key is needed."
                if service.keys.has_admin
                else "No admin key is set: start the server with --admin-api-key, or write `admin` behind a key of the "
                "key file."
            )
        elif is_from_this_machine(scope):
            return service.callers.of(None)
        else:
            message = "Without keys, only this machine itself may do that: start the server with --admin-api-key."
        service.count_refusal("key")
        log_refusal(scope, None, 403, "admin_key_needed", self._paths)
        raise HttpError(403, message, code="admin_key_needed")

    def _check_origin(self, scope: Scope) -> None:
        """No CORS stands between a foreign page and a WebSocket: its origin is checked here."""
        origin = header(scope, b"origin")
        allowed = self._service.settings.cors.origins
        if not is_same_origin(scope) and origin not in allowed and "*" not in allowed:
            self._service.count_refusal("origin")
            raise HttpError(
                403,
                "Pages of this origin may not connect. Start the server with --allowed-origins ORIGIN to allow them.",
                code="origin_not_allowed",
            )


def _is_admin(scope: Scope) -> bool:
    path: str = scope["path"]
    return path.startswith(ADMIN_PREFIX)


def _wants_page(scope: Scope) -> bool:
    """Whether a browser asks for something to show."""
    return "text/html" in (header(scope, b"accept") or "")


def _add_security_headers(start: Message) -> None:
    headers = start["headers"] = list(start.get("headers", ()))
    present = {name.lower() for name, _ in headers}
    headers += [(name, value) for name, value in _SECURITY_HEADERS if name not in present]


async def _refuse(scope: Scope, receive: Receive, send: Send, refusal: HttpError) -> None:
    response = response_for_path(refusal, scope["path"])
    start: Message = {
        "type": "http.response.start",
        "status": response.status_code,
        "headers": [*response.raw_headers],
    }
    _add_security_headers(start)
    body: Message = {"type": "http.response.body", "body": response.body, "more_body": False}
    if scope["type"] == "http":
        await send(start)
        await send(body)
    elif "websocket.http.response" in scope.get("extensions", {}):
        await send({**start, "type": "websocket.http.response.start"})
        await send({**body, "type": "websocket.http.response.body"})
    else:
        await send({"type": "websocket.close", "code": 1008, "reason": refusal.code or ""})  # becomes a 403
