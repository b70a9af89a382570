"""The `lpx` command: one file per command, which parses, calls and prints."""

from __future__ import annotations

import os
import sys

EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells report it


def is_debugging() -> bool:
    """Whether LPX_DEBUG asks for tracebacks."""
    return os.environ.get("LPX_DEBUG", "0") not in ("", "0")


def main() -> None:
    """Run the command line of this process and exit with its code."""
    # LPX never calls the BLAS that comes with NumPy; starting its threads takes longer than the rest of NumPy.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

    try:
        from lpx.cli.app import run_app
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    run_app()
