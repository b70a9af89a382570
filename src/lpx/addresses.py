"""Addresses as they may be shown and kept: without users, passwords, queries and fragments, which hold secrets."""

from __future__ import annotations

import re

_ADDRESS = re.compile(r"((?:[a-z][a-z0-9+.-]*:)?//)([^\s\"'<>`]+)", re.IGNORECASE)
_HOST = re.compile(r"(?:[\w.-]*|\[[0-9a-f:.]+(?:%\w+)?\])(?::\d*)?", re.IGNORECASE)
_QUERY = re.compile(r"[?&#][\w.~%+-]+=[^\s\"'<>`]*")  # of an address that is written without its scheme
_USER = re.compile(r"(?<![^\s\"'<>`=(])[^\s\"'<>`/@:=(]+:[^\s\"'<>`@/]+@(?=[\w\[])")  # name:password@host


def without_secrets(text: str) -> str:
    """`text`, every address in it cut to scheme, host, port and path.

    What cannot be told apart is dropped: a password may hold any character, written as it is.
    """
    return _QUERY.sub("", _USER.sub("", _ADDRESS.sub(_plain, text)))


def _plain(found: re.Match[str]) -> str:
    scheme, rest = found[1], found[2]
    host = re.split(r"[/?#]", rest, maxsplit=1)[0]
    if "@" in rest and (":" in host or not _HOST.fullmatch(host)):  # a password may look like a port and a path
        rest = rest.rpartition("@")[2]
    elif not _HOST.fullmatch(host):
        rest = "…"
    return scheme + re.split(r"[?#]", rest, maxsplit=1)[0]
