"""Where the ledger lies unless a command is told otherwise."""

from __future__ import annotations

import os
from pathlib import Path


def default_ledger_path() -> Path:
    """`LPX_LEDGER`, else `lpx/ledger.sqlite` in the user's data folder. It need not exist."""
    if chosen := os.environ.get("LPX_LEDGER"):
        return Path(chosen).expanduser().absolute()
    import platformdirs

    return platformdirs.user_data_path("lpx", appauthor=False) / "ledger.sqlite"
