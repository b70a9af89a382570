"""The body of `POST /admin/models/reload`."""

from __future__ import annotations

from lpx.server.schemas.sampling import StrictRequest


class ReloadRequest(StrictRequest):
    """`{}` serves what the model's name means now."""

    model: str | None = None  # NAME or NAME@VERSION of the model folder
    drain: bool = False  # let what runs end, and free the old engine, before the new one is loaded
    force: bool = False  # load anew even what is served already
