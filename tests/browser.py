"""The Chromium that tests of pages run in: the one that LPX_BROWSER names, else one on the path.

Where LPX_BROWSER is set, tests need the browser and fail without it; elsewhere they are skipped with the reason.
"""

from __future__ import annotations

import importlib.util
import os
import shutil

VARIABLE = "LPX_BROWSER"
HOW = f"install chromium and the package playwright, or set {VARIABLE} to the browser's path"
_NAMES = ("chromium", "chromium-browser", "google-chrome")


def expected() -> bool:
    """Whether a missing browser is a fault."""
    return bool(os.environ.get(VARIABLE))


def find() -> str | None:
    """The browser's path; None when there is none or nothing to drive it with."""
    named = os.environ.get(VARIABLE)
    found = shutil.which(named) if named else next(filter(None, map(shutil.which, _NAMES)), None)
    return found if importlib.util.find_spec("playwright") is not None else None
