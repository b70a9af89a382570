"""Browser sessions: who has shown a key at /login, for as long as the cookie lasts.

The cookie holds a random token, not the key: cookies of one host go to every port on it. Only the token's digest is
kept, and nothing outlives the process.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from hashlib import sha256
from time import monotonic

from lpx.server.api_keys import ApiKey, KeyRing
from lpx.server.rate_limits import Clock

LIFETIME_S = 12 * 3600
MAX_SESSIONS = 1000  # the oldest goes first


class Sessions:
    def __init__(self, ring: KeyRing, clock: Clock = monotonic) -> None:
        self._ring = ring
        self._clock = clock
        self._open: OrderedDict[bytes, tuple[str, float]] = OrderedDict()  # by digest: key's identity, end

    def begin(self, key: ApiKey) -> str:
        """A token that stands for `key` from now on."""
        while self._open and (len(self._open) >= MAX_SESSIONS or next(iter(self._open.values()))[1] <= self._clock()):
            self._open.popitem(last=False)
        token = secrets.token_urlsafe(32)
        self._open[_digest(token)] = (key.identity, self._clock() + LIFETIME_S)
        return token

    def find(self, token: str) -> ApiKey | None:
        """The key behind a token, while both are good."""
        entry = self._open.get(_digest(token))
        if entry is None or entry[1] <= self._clock():
            return None
        return self._ring.with_identity(entry[0])

    def end(self, token: str) -> None:
        self._open.pop(_digest(token), None)


def _digest(token: str) -> bytes:
    return sha256(token.encode("utf-8", "surrogateescape")).digest()
