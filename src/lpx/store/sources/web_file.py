"""`https://…/model.gguf#sha256=…`: one file at an address, whose hash the user knows."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from lpx.addresses import without_secrets
from lpx.errors import DownloadError, UnsupportedModelError
from lpx.store.download import RemoteFile
from lpx.store.http import Web
from lpx.store.names import check_file_name, name_from
from lpx.store.sources.plan import Plan

_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class WebFileSource:
    """One GGUF file."""

    url: str  # without the fragment; a query may hold a signature that is good for an hour
    sha256: str

    @classmethod
    def parse(cls, address: str, sha256: str | None, *, insecure: bool) -> WebFileSource:
        """Raises DownloadError for an address without TLS or without a hash."""
        url, _, fragment = address.partition("#")
        try:
            parts = urlsplit(url)
        except ValueError:
            raise DownloadError(f"{address[:200]!r} is not an address") from None
        if parts.scheme == "http" and not insecure:
            raise DownloadError(f"{url[:200]} has no TLS; use https, or allow that with --insecure")
        if parts.username or parts.password:
            raise DownloadError("the address holds a password, which would end up in the manifest; leave it out")
        given = (sha256 or fragment.removeprefix("sha256=")).strip().lower()
        if not _SHA256.fullmatch(given):
            raise DownloadError(
                f"the SHA-256 of the file is needed, so that what comes is what was meant: {url[:200]}#sha256=… or "
                "--sha256 with 64 hexadecimal digits"
            )
        return cls(url, given)

    def plan(self, web: Web) -> Plan:
        """Nothing is asked yet."""
        name = check_file_name(unquote(urlsplit(self.url).path).rpartition("/")[2])
        if not name.lower().endswith(".gguf"):
            raise UnsupportedModelError(f"{name} is no .gguf file; models of several files come from hf: or ms:")
        stem = name[: -len(".gguf")]
        return Plan(
            name=name_from(stem),
            source=f"{without_secrets(self.url)}#sha256={self.sha256}",
            files=(RemoteFile(path=f"{stem}.gguf", url=self.url, sha256=self.sha256),),
            format="gguf",
        )
