"""The model store: where models lie on disk, which ones can be fetched, how they get there, and which version is used.

`sources` know where models come from, `fetch` brings one into the folder, `folder` reads what is there, `versions`
changes which is current and takes others out, `verify` says whether all is still what it was.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from lpx.model.models_dir import models_dir
from lpx.store.catalog import CATALOG, DEFAULT_MODEL, CatalogEntry, catalog_entry
from lpx.store.folder import StoredModel, find_stored, list_models, list_versions, named_as_stored, stored_name

if TYPE_CHECKING:
    from lpx.store.locks import Progress

__all__ = [
    "CATALOG",
    "DEFAULT_MODEL",
    "CatalogEntry",
    "StoredModel",
    "catalog_entry",
    "find_stored",
    "list_models",
    "list_versions",
    "models_dir",
    "named_as_stored",
    "pull",
    "pull_version",
    "stored_name",
]


def pull(reference: str, folder: Path, progress: Progress | None = None, **options: Any) -> Path:
    """The path of the model that `reference` names in `folder`, fetched if it is not there; see `lpx.store.fetch`."""
    return pull_version(reference, folder, progress, **options).path


def pull_version(reference: str, folder: Path, progress: Progress | None = None, **options: Any) -> StoredModel:
    """As `pull`, and returns the version."""
    from lpx.store.fetch import fetch  # subprocess, zipfile and the like: not at every start

    return fetch(reference, folder, progress, **options)
