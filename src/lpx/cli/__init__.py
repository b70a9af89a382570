"""The `lpx` command: one file per command, which parses, calls and prints."""

from __future__ import annotations


def main() -> None:
    """Run the command line of this process and exit with its code."""
    from lpx.cli.app import run_app

    run_app()
