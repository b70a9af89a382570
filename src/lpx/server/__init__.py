"""The HTTP service. Imports are lazy, so that the port can be bound before the heavy modules load."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lpx.server.app import create_app
    from lpx.server.process import serve
    from lpx.server.settings import ServerSettings

__all__ = ["ServerSettings", "create_app", "serve"]


def __getattr__(name: str) -> Any:
    if name == "create_app":
        from lpx.server.app import create_app

        return create_app
    if name == "serve":
        from lpx.server.process import serve

        return serve
    if name == "ServerSettings":
        from lpx.server.settings import ServerSettings

        return ServerSettings
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
