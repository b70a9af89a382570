"""How many wrong keys one address may try at `/login`, which needs no key to be asked.

Only wrong keys count. Beyond them the address waits, also with the right key, or guessing would go on; who shows a key
in a header is not concerned. Behind a proxy all clients have its address.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from time import monotonic

from lpx.server.rate_limits import Clock, LimitReached, TokenBucket

WRONG_KEYS_PER_MINUTE = 10
MAX_ADDRESSES = 10_000  # that are remembered; whoever has tried nothing for the longest is forgotten first


class LoginThrottle:
    """Owns what each address has left."""

    def __init__(self, clock: Clock = monotonic) -> None:
        self._clock = clock
        self._left: OrderedDict[str, TokenBucket] = OrderedDict()

    def check(self, address: str) -> None:
        """Raises `LimitReached` when the address has to wait."""
        bucket = self._left.get(_network(address))
        if bucket is not None and (wait := bucket.wait_s(1)):
            raise LimitReached("Too many wrong keys came from this address.", reason="key", retry_after_s=wait)

    def note_wrong_key(self, address: str) -> None:
        name = _network(address)
        bucket = self._left.pop(name, None) or TokenBucket(WRONG_KEYS_PER_MINUTE, self._clock)
        bucket.take(1)
        self._left[name] = bucket
        if len(self._left) > MAX_ADDRESSES:
            self._left.popitem(last=False)


def _network(address: str) -> str:
    """What one client has to itself: an IPv4 address, or 64 bits of an IPv6 one."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return str(parsed)
