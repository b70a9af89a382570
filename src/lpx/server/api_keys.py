"""API keys: who may use the service. Where they come from, and how one is recognised.

Only digests are kept, under a key of this process. A candidate is compared with all of them, each time in full and in
constant time, so that neither a common beginning nor the place in the list can be felt. No message holds a key.
"""

from __future__ import annotations

import logging
import re
import secrets
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from hmac import compare_digest
from itertools import takewhile
from pathlib import Path

from lpx.errors import ConfigError
from lpx.regular_file import read_bounded
from lpx.server.settings import Limits, limit_names

logger = logging.getLogger("lpx.server")

MAX_KEYS = 1000
MAX_KEY_LENGTH = 512
_SHORT = 16  # characters; shorter keys can be guessed by somebody with time
_MAX_FILE_BYTES = 1024 * 1024
_NAMED = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,63}):(.*)", re.DOTALL)
_KEY = re.compile(r"[\x21-\x7e]+")  # what a header can carry
_SECRET = secrets.token_bytes(32)


class ApiKeyError(ConfigError):
    """Keys, or the file that holds them, cannot be used."""

    help_code = "LPX-E045"


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One client of the service."""

    name: str  # as the file has it, else a short hash; for logs
    digest: bytes = field(repr=False)
    limits: Limits = field(default_factory=Limits)
    admin: bool = False  # may change what is served
    owner: str = field(default="", repr=False)  # as `identity`, but the same after a restart where data is kept

    @property
    def identity(self) -> str:
        """Tells keys apart inside this process; says nothing outside."""
        return self.digest.hex()


class KeyRing:
    """All keys that are accepted. With none but those of admins, everybody may use the service."""

    def __init__(
        self,
        keys: Iterable[str] = (),
        path: Path | None = None,
        admin_keys: Iterable[str] = (),
        owner_secret: bytes | None = None,
    ) -> None:
        """`keys` are plain keys; `path` is a file of them (see `parse_key_file`). Raises `ApiKeyError`.

        `owner_secret` is that of a data folder, whose owners it tells apart.
        """
        self._given = tuple(dict.fromkeys(keys))
        self._admins = tuple(dict.fromkeys(admin_keys))
        self._owner_secret = owner_secret or _SECRET
        self._path = path
        self._keys = self._read()

    def __bool__(self) -> bool:
        return bool(self._given or self._path is not None)

    @property
    def has_admin(self) -> bool:
        return any(key.admin for key in self._keys)

    @property
    def keys(self) -> tuple[ApiKey, ...]:
        return self._keys

    @property
    def can_reload(self) -> bool:
        return self._path is not None

    def reload(self) -> None:
        """Read the file again. Raises `ApiKeyError`, and goes on with the keys that it had."""
        self._keys = self._read()

    def find(self, candidate: str) -> ApiKey | None:
        """The key that `candidate` is, or None."""
        digest = _digest(candidate)
        found = None
        for key in self._keys:
            if compare_digest(digest, key.digest):
                found = key
        return found

    def with_identity(self, identity: str) -> ApiKey | None:
        """The key of that identity while it is accepted."""
        return next((key for key in self._keys if compare_digest(key.identity, identity)), None)

    def with_owner(self, owner: str) -> ApiKey | None:
        """The key of that owner while it is accepted."""
        return next((key for key in self._keys if compare_digest(key.owner, owner)), None)

    def _read(self) -> tuple[ApiKey, ...]:
        secret = self._owner_secret
        entries, defaults = ([], Limits()) if self._path is None else _read_file(self._path, secret)
        keys = [_key(text, None, Limits(), "--api-key", secret) for text in self._given] + entries
        keys += [_key(text, None, Limits(), "--admin-api-key", secret, admin=True) for text in self._admins]
        if self._path is not None and not entries:
            raise ApiKeyError(f"the key file {self._path} holds no keys; write one on a line, or leave the option out")
        if len(keys) > MAX_KEYS:
            raise ApiKeyError(f"{len(keys)} API keys are too many; at most {MAX_KEYS} can be told apart in time")
        for what in ("digest", "name"):
            seen: dict[object, str] = {}
            for key in keys:
                if getattr(key, what) in seen:
                    raise ApiKeyError(
                        f"the API keys {seen[getattr(key, what)]} and {key.name} have the same "
                        f"{'key' if what == 'digest' else 'name'}; each must have its own"
                    )
                seen[getattr(key, what)] = key.name
        return tuple(replace(key, limits=key.limits.filled_from(defaults)) for key in keys)


def _digest(text: str) -> bytes:
    return blake2b(text.encode("utf-8", "surrogateescape"), key=_SECRET, digest_size=32).digest()


def _key(
    text: str, name: str | None, limits: Limits, where: str, owner_secret: bytes, *, admin: bool = False
) -> ApiKey:
    if not _KEY.fullmatch(text) or len(text) > MAX_KEY_LENGTH:
        raise ApiKeyError(
            f"{where}: a key must have 1 to {MAX_KEY_LENGTH} visible ASCII characters and no spaces; "
            'make one with: python -c "import secrets; print(secrets.token_urlsafe(32))"'
        )
    if name is None:
        # Not secret by itself, but too short to say what the key is.
        name = "key-" + blake2b(text.encode(), person=b"lpx key name", digest_size=4).hexdigest()
    if len(text) < _SHORT:
        logger.warning("the API key %s has less than %d characters and may be guessed", name, _SHORT)
    owner = blake2b(text.encode(), key=owner_secret, person=b"lpx owner", digest_size=16).hexdigest()
    return ApiKey(name, _digest(text), limits, admin, owner)


def _read_file(path: Path, owner_secret: bytes) -> tuple[list[ApiKey], Limits]:
    try:
        data = read_bounded(path, _MAX_FILE_BYTES)
        mode = path.stat().st_mode
    except OSError as exc:
        raise ApiKeyError(f"the key file {path} cannot be read: {exc.strerror}") from None
    if stat.S_ISREG(mode) and mode & 0o077:
        logger.warning("others on this machine may read or change the key file %s: chmod 600 %s", path, path)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise ApiKeyError(f"the key file {path} is not UTF-8 text") from None
    return parse_key_file(text, str(path), owner_secret)


def parse_key_file(text: str, source: str, owner_secret: bytes = _SECRET) -> tuple[list[ApiKey], Limits]:
    """Keys of a file, and the limits of those that have none of their own.

    A line is `KEY` or `NAME:KEY`, then any `LIMIT=NUMBER` (names as in `Limits`), and `admin` for a key that may change
    what is served. `*` in place of a key sets limits for all keys. Empty lines are passed over, and what stands behind
    a `#` at the beginning of a line or after a space.
    Raises `ApiKeyError`, which names the line and repeats nothing of it.
    """
    keys: list[ApiKey] = []
    defaults = Limits()
    for number, line in enumerate(text.splitlines(), 1):
        first, *rest = line.split() or ["#"]
        if first.startswith("#"):
            continue
        where = f"{source}, line {number}"
        fields = [*takewhile(lambda field_: not field_.startswith("#"), rest)]
        admin = first != "*" and "admin" in fields
        if admin:
            fields.remove("admin")
        limits = _limits(fields, where)
        if first == "*":
            defaults = limits
            continue
        named = _NAMED.fullmatch(first)
        name, key = (named[1], named[2]) if named else (None, first)
        keys.append(_key(key, name, limits, where, owner_secret, admin=admin))
    return keys, defaults


def _limits(fields: list[str], where: str) -> Limits:
    values: dict[str, int] = {}
    for field_ in fields:
        name, equals, number = field_.partition("=")
        if name not in limit_names() or not equals or name in values or not re.fullmatch(r"[1-9][0-9]{0,14}", number):
            raise ApiKeyError(
                f"{where}: after the key come limits as NAME=NUMBER, each once, and admin; names are "
                f"{', '.join(limit_names())}"
            )
        values[name] = int(number)
    return Limits(**values)
