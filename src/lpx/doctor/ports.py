"""The ports that services of this kind use, and who holds them."""

from __future__ import annotations

from collections.abc import Iterator

from lpx.doctor.configuration import configured
from lpx.doctor.finding import Finding, Fix, Status
from lpx.doctor.machine import Machine
from lpx.doctor.sockets import Listener, read_listeners

DEFAULT_PORT = 8080
USUAL_PORTS = (8000, DEFAULT_PORT, 7860)


def check(machine: Machine) -> Iterator[Finding]:
    text = str(configured(machine, "port") or "")
    own = _port(text) if text else DEFAULT_PORT
    if own is None:
        yield _no_port(text)
    listeners = read_listeners(machine)
    for port in sorted({*USUAL_PORTS, *([] if own is None else [own])}):
        yield port_finding(port, listeners, is_configured=port == own)


def _port(text: str) -> int | None:
    number = int(text) if text.isdecimal() and len(text) <= 5 else 0
    return number if 0 < number < 65536 else None


def _no_port(text: str) -> Finding:
    return Finding(
        check="ports",
        title="port",
        status=Status.ERROR,
        found=f"LPX_PORT, or the profile, says {text[:80]!r}",
        wanted="a number from 1 to 65535",
        why="lpx serve does not start with it",
        do="correct LPX_PORT, or port in the profile",
    )


def port_finding(port: int, listeners: tuple[Listener, ...] | None, *, is_configured: bool) -> Finding:
    def finding(status: Status, found: str, do: str = "", fixes: tuple[Fix, ...] = ()) -> Finding:
        return Finding(
            check="ports",
            title=f"port {port}",
            status=status,
            found=found,
            wanted="free" + (", because lpx serve takes it" if is_configured else ""),
            why="a server that finds its port taken does not start" if is_configured else "servers often use this port",
            do=do,
            page="LPX-E040" if do else "",
            fixes=fixes,
        )

    if listeners is None:
        return finding(Status.UNKNOWN, "the system does not say who listens", f"ss -ltnp 'sport = :{port}'")
    here = [listener for listener in listeners if listener.port == port]
    if not here:
        return finding(Status.OK, "free")
    holder = next((listener.holder for listener in here if listener.holder is not None), None)
    if holder is None:
        return finding(
            Status.WARNING,
            f"taken on {here[0].address}; this user may not see by whom",
            f"sudo ss -ltnp 'sport = :{port}' names it; or use another port with --port",
        )
    if holder.is_lpx_server:
        return finding(Status.NOTE, f"LPX serves here: {holder}")
    comm = f"/proc/{holder.pid}/comm"
    end = Fix(
        title=f"End the process that holds port {port}",
        needed=f'[ "$(cat {comm} 2>/dev/null)" = {_quoted(holder.name)} ]',
        commands=(f"kill {holder.pid}",),
        risky=True,
    )
    return finding(
        Status.WARNING,
        f"taken by {holder} on {here[0].address}",
        f"end it (kill {holder.pid}), or use another port with --port",
        (end,),
    )


def _quoted(text: str) -> str:
    import shlex

    return shlex.quote(text)
