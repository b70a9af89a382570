"""What can go wrong with a ledger."""

from __future__ import annotations

from lpx.errors import LpxError


class LedgerError(LpxError):
    """The ledger cannot be read or written; the message names the file, the reason and the way out."""

    exit_code = 3  # apart from 1 and 2, so that scripts can tell it from a measurement that failed
    help_code = "LPX-E090"


class UnknownRunError(LedgerError):
    """The ledger holds no run, baseline or tag of that name."""

    exit_code = 2
    http_status = 404
