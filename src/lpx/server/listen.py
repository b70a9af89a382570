"""The listening socket: taken before anything slow happens, and a clear word when somebody else has it."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import socket

from lpx.errors import ConfigError, LpxError

_BACKLOG = 1024
# A client whose machine is gone, or that takes nothing of what was sent for so long, is not there any more.
_UNACKNOWLEDGED_MS = 60_000
_KEEPALIVE_S = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))


class PortInUseError(LpxError):
    """Another process listens on the port."""

    help_code = "LPX-E040"


class AddressError(ConfigError):
    """The host or port cannot be listened on."""

    help_code = "LPX-E041"


def bind_socket(host: str, port: int) -> socket.socket:
    """A socket that listens on `host`:`port` (port 0: a free one).

    It listens at once, so that a second server started meanwhile cannot take the same port; connections wait in the
    backlog until the event loop accepts them. Raises `PortInUseError` with the holder where it can be known, and
    `AddressError` for a host or port that cannot be used.
    """
    if not 0 <= port <= 65535:
        raise AddressError(f"port {port} is not a port number; use 0 to 65535")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, ValueError) as exc:
        raise AddressError(f"host {host!r} cannot be resolved: {exc}") from exc
    family, kind, protocol, _, address = min(found, key=lambda each: each[0] != socket.AF_INET)
    listener = socket.socket(family, kind, protocol)
    try:
        # Connections of a server that just ended (TIME_WAIT) must not block its successor; a listener still does.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _watch_for_dead_peers(listener)  # accepted sockets inherit it
        listener.bind(address)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except OSError as exc:
        listener.close()
        if exc.errno == errno.EADDRINUSE:
            raise PortInUseError(
                f"port {port} on {host} is in use{_holder(port)}; stop that process or choose another --port"
            ) from exc
        if exc.errno == errno.EACCES:
            raise AddressError(f"port {port} may not be used by this user; choose one above 1023") from exc
        raise AddressError(f"cannot listen on {host} port {port}: {exc.strerror}") from exc
    return listener


def _watch_for_dead_peers(listener: socket.socket) -> None:
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, seconds in _KEEPALIVE_S:
        if hasattr(socket, name):
            listener.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), seconds)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_MS)


def is_loopback(listener: socket.socket) -> bool:
    """Whether only this machine can reach the socket."""
    return ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback


def _holder(port: int) -> str:
    """The process that listens on `port`, as " by process PID (name)"; empty when the system does not tell."""
    import psutil  # type: ignore[import-untyped]

    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections(kind="tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port:
                if connection.pid is None:
                    continue
                name = ""
                with contextlib.suppress(psutil.Error):
                    name = f" ({psutil.Process(connection.pid).name()})"
                return f" by process {connection.pid}{name}"
    return ""
