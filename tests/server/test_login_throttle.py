"""Wrong keys at /login: a few at once, then as slowly as the allowance fills up again."""

from __future__ import annotations

import pytest

from lpx.server.login_throttle import MAX_ADDRESSES, WRONG_KEYS_PER_MINUTE, LoginThrottle
from lpx.server.rate_limits import LimitReached
from lpx.server.settings import ServerSettings
from tests.server.conftest import StartServer

KEY = "sk-test-key-0123456789"


def test_guessing_ends_in_429_and_other_ways_in_stay_open(start_server: StartServer) -> None:
    server = start_server(settings=ServerSettings(api_keys=(KEY,)))
    assert server.post("/login", {"key": KEY}).status_code == 204
    for number in range(WRONG_KEYS_PER_MINUTE):
        assert server.post("/login", {"key": f"wrong-{number}"}).status_code == 401
    for key in ("wrong", KEY):
        answer = server.post("/login", {"key": key})
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        assert 1 <= int(answer.headers["retry-after"]) <= 60 // WRONG_KEYS_PER_MINUTE
    form = {"content-type": "application/x-www-form-urlencoded"}
    assert server.client.post("/login", content="key=wrong", headers=form).status_code == 429
    assert server.get("/v1/models", headers={"authorization": f"Bearer {KEY}"}).status_code == 200


def test_each_address_has_its_own_allowance_which_fills_up() -> None:
    now = 0.0
    throttle = LoginThrottle(lambda: now)
    for _ in range(WRONG_KEYS_PER_MINUTE):
        throttle.check("2001:db8::1")
        throttle.note_wrong_key("2001:db8::1")
    for same in ("2001:db8::1", "2001:db8::ffff:2", "2001:db8::1%eth0"):
        with pytest.raises(LimitReached):
            throttle.check(same)
    for other in ("2001:db8:0:1::1", "192.0.2.1", "::ffff:192.0.2.1", "", "unix"):
        throttle.check(other)
    now = 60 / WRONG_KEYS_PER_MINUTE
    throttle.check("2001:db8::1")


def test_many_addresses_take_bounded_room() -> None:
    throttle = LoginThrottle()
    for number in range(MAX_ADDRESSES + 100):
        throttle.note_wrong_key(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
    assert len(throttle._left) == MAX_ADDRESSES
