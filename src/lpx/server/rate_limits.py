"""What a client may ask for, and how much of it it has left: caps, token buckets, and requests under way.

Time is monotonic, so that a stepped clock neither opens nor closes anything. Memory is two numbers for each limit of
each key. What is taken is given back by whoever took it, on every kind of end.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from time import monotonic

from lpx.server.errors import HttpError
from lpx.server.settings import Limits

Clock = Callable[[], float]


class LimitReached(HttpError):
    """429 with `Retry-After`: a rate or a number of requests is used up."""

    def __init__(self, message: str, *, reason: str, retry_after_s: float) -> None:
        seconds = max(1, math.ceil(retry_after_s))
        super().__init__(
            429,
            f"{message} Try again in {seconds} s.",
            code="rate_limit_exceeded",
            headers={"retry-after": str(seconds)},
        )
        self.reason = reason


class TokenBucket:
    """Holds what one minute allows, and fills up evenly. It may owe: more can be spent than was asked for at first."""

    __slots__ = ("_balance", "_clock", "_filled_at", "capacity")

    def __init__(self, per_minute: int, clock: Clock = monotonic) -> None:
        self.capacity = float(per_minute)
        self._clock = clock
        self._balance = self.capacity
        self._filled_at = clock()

    @property
    def balance(self) -> float:
        now = self._clock()
        self._balance = min(self.capacity, self._balance + (now - self._filled_at) * self.capacity / 60)
        self._filled_at = now
        return self._balance

    def wait_s(self, amount: float) -> float:
        """Seconds until `amount` can be taken; what is more than a minute's worth needs the whole bucket."""
        missing = min(amount, self.capacity) - self.balance
        return max(0.0, missing * 60 / self.capacity)

    def take(self, amount: float) -> None:
        self._balance = self.balance - amount

    def give(self, amount: float) -> None:
        self._balance = min(self.capacity, self.balance + amount)


class Quota:
    """What one key, or all clients together, have under way and have left."""

    __slots__ = ("_limits", "_requests", "tokens", "under_way", "whose")

    def __init__(self, limits: Limits, whose: str, clock: Clock = monotonic) -> None:
        self.whose = whose  # "this key" or "this server", for messages
        self.under_way = 0
        self._limits = limits
        self._requests = _bucket(limits.requests_per_minute, clock)
        self.tokens = _bucket(limits.tokens_per_minute, clock)

    @property
    def limits(self) -> Limits:
        return self._limits

    def begin_request(self) -> None:
        """Count a request; `end_request` must follow. Raises `LimitReached` and counts nothing."""
        most = self._limits.max_concurrent_requests
        if most is not None and self.under_way >= most:
            raise LimitReached(
                f"{most} requests are under way, as many as {self.whose} allows at once.",
                reason="concurrent_requests",
                retry_after_s=1,
            )
        if self._requests is not None:
            if wait := self._requests.wait_s(1):
                raise LimitReached(
                    f"The limit of {self._limits.requests_per_minute} requests per minute of {self.whose} is reached.",
                    reason="requests_per_minute",
                    retry_after_s=wait,
                )
            self._requests.take(1)
        self.under_way += 1

    def end_request(self) -> None:
        self.under_way -= 1

    def check_tokens(self, amount: int) -> None:
        """Raise `LimitReached` when so many tokens are not left."""
        if self.tokens is not None and (wait := self.tokens.wait_s(amount)):
            raise LimitReached(
                f"The limit of {self._limits.tokens_per_minute} tokens per minute of {self.whose} is reached; "
                f"this request may take {amount}.",
                reason="tokens_per_minute",
                retry_after_s=wait,
            )


def _bucket(per_minute: int | None, clock: Clock) -> TokenBucket | None:
    return None if per_minute is None else TokenBucket(per_minute, clock)


def begin_requests(quotas: tuple[Quota, ...]) -> None:
    """Count a request with all of them or with none."""
    begun: list[Quota] = []
    try:
        for quota in quotas:
            quota.begin_request()
            begun.append(quota)
    except LimitReached:
        for quota in begun:
            quota.end_request()
        raise


class Ticket:
    """Tokens that were set aside for a request that runs, and its slot where it has one of its own.

    `settle` charges what was used and returns the rest. A ticket that is dropped returns all but the prompt.
    """

    __slots__ = ("_charged", "_prompt_tokens", "_quotas", "_reserved", "_slots")

    def __init__(
        self, quotas: tuple[Quota, ...], *, prompt_tokens: int, reserved: int, slots: tuple[Quota, ...] = ()
    ) -> None:
        """Raises `LimitReached` when the tokens, or slots, are not there; then nothing is taken."""
        self._charged = [quota.tokens for quota in quotas if quota.tokens is not None]
        self._slots: tuple[Quota, ...] = ()
        self._prompt_tokens = prompt_tokens
        self._reserved = 0
        for quota in quotas:
            quota.check_tokens(reserved)
        begin_requests(slots)
        self._slots = slots
        self._reserved = reserved
        for bucket in self._charged:
            bucket.take(reserved)

    def settle(self, used: int) -> None:
        """The request has ended and used so many tokens. Later calls do nothing."""
        charged, self._charged = self._charged, []
        slots, self._slots = self._slots, ()
        for bucket in charged:
            bucket.give(self._reserved - used)  # less than nothing when it used more
        for quota in slots:
            quota.end_request()

    def __del__(self) -> None:
        if getattr(self, "_reserved", 0):
            self.settle(self._prompt_tokens)
