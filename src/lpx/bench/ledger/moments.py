"""Points in time as people type them."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone

from lpx.errors import ConfigError

_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def parse_moment(text: str, now: datetime) -> datetime:
    """`7d` before `now` (m, h, d, w), or a date or time in ISO form, without a zone in that of `now`.

    Raises ConfigError.
    """
    cleaned = text.strip()
    try:
        if ago := re.fullmatch(r"(\d{1,9})\s*([mhdw])", cleaned, re.ASCII):
            return now - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        moment = datetime.fromisoformat(re.sub(r"[Zz]$", "+00:00", cleaned))
        moment = moment if moment.tzinfo else moment.replace(tzinfo=now.tzinfo)
        moment.astimezone(timezone.utc)  # which may be beyond the first or the last year
        return moment
    except (ValueError, OverflowError):
        raise ConfigError(
            f"{text!r} is no point in time; write 7d, 12h, 30m or 2w for so long ago, or a date such as 2026-01-31 or "
            "2026-01-31T09:30"
        ) from None
