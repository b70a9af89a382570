"""All routes that an application really has: those of included routers, WebSockets and mounts as well."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from fastapi import FastAPI
from starlette.routing import Host, Mount, WebSocketRoute


class Found(NamedTuple):
    kind: str  # "http" or "websocket"
    path: str  # as declared
    methods: frozenset[str]

    @property
    def example(self) -> str:
        """A path that the route answers."""
        return re.sub(r"\{[^}]*\}", "x", self.path)


def all_routes(app: FastAPI) -> list[Found]:
    return list(_walk(app.routes, ""))


def _walk(routes: Any, prefix: str) -> Iterator[Found]:
    for route in routes:
        nested = getattr(getattr(route, "original_router", None), "routes", None)
        if nested is not None:
            yield from _walk(nested, prefix)
        elif isinstance(route, Mount | Host):
            path = prefix + getattr(route, "path", "")
            yield Found("http", path + "/{path:path}", frozenset({"GET", "POST"}))
            yield Found("websocket", path + "/{path:path}", frozenset())
            yield from _walk(route.routes or (), path)
        elif isinstance(route, WebSocketRoute):
            yield Found("websocket", prefix + route.path, frozenset())
        else:
            yield Found("http", prefix + route.path, frozenset(route.methods or {"GET"}))
