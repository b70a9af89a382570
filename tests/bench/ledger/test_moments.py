"""Points in time as people type them."""

from __future__ import annotations

import contextlib
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lpx.bench.ledger.moments import parse_moment
from lpx.errors import ConfigError

SHANGHAI = timezone(timedelta(hours=8))
NOW = datetime(2026, 1, 31, 12, 0, tzinfo=SHANGHAI)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("30m", NOW - timedelta(minutes=30)),
        ("12h", NOW - timedelta(hours=12)),
        (" 7d ", NOW - timedelta(days=7)),
        ("2w", NOW - timedelta(weeks=2)),
        ("2026-01-30", datetime(2026, 1, 30, tzinfo=SHANGHAI)),
        ("2026-01-30T09:30", datetime(2026, 1, 30, 9, 30, tzinfo=SHANGHAI)),
        ("2026-01-30T09:30:00Z", datetime(2026, 1, 30, 9, 30, tzinfo=timezone.utc)),
        ("2026-01-30 09:30+01:00", datetime(2026, 1, 30, 8, 30, tzinfo=timezone.utc)),
    ],
)
def test_moments(text, moment):
    assert parse_moment(text, NOW) == moment


@pytest.mark.parametrize(
    "text",
    [
        "",
        "yesterday",
        "7",
        "d",
        "-7d",
        "1.5d",
        "٧d",
        "999999999w",
        "2026-13-01",
        "7 y",
        "0001-01-01T00:00+23:59",
        "9999-12-31T23:59-01:00",
    ],
)
def test_what_is_none_is_refused_with_examples(text):
    with pytest.raises(ConfigError, match="7d"):
        parse_moment(text, NOW)


@given(st.text(max_size=30))
def test_any_text_is_a_moment_or_refused(text):
    with contextlib.suppress(ConfigError):
        assert parse_moment(text, NOW).tzinfo is not None
