"""Failures beside a command's work: said at once, while the result is still shown and the exit code tells of them.

The exit code is the process's, so this is the one place of the command line that holds state.
"""

from __future__ import annotations

import sys

from lpx.errors import error_line

_exit_code = 0


def report_failure(message: str, exit_code: int, help_code: str) -> None:
    """Say on stderr what failed, and let the command end with `exit_code` once it has done its work."""
    global _exit_code
    _exit_code = exit_code
    print(error_line(message, help_code), file=sys.stderr)


def exit_code_after_success() -> int:
    """What a command exits with that would end with 0: that, unless a failure was reported."""
    return _exit_code
