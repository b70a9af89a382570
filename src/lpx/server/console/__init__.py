"""The console: a page at `/` to chat with the model and to see what the engine does.

`page` serves the files of the page, which need nothing from elsewhere; `live` gives the figures that it shows. What it
sends goes to the API like everybody's requests.
"""

from __future__ import annotations

from fastapi import APIRouter

from lpx.server.console import live, page

router = APIRouter()
router.include_router(page.router)
router.include_router(live.router)

__all__ = ["router"]
