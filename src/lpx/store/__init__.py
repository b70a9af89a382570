"""The model store: where models lie on disk, which ones can be fetched by name, and how they get there.

`catalog` knows what can be fetched, `folder` reads what is there, `fetch` brings one into the other.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lpx.model.models_dir import models_dir
from lpx.store.catalog import CATALOG, DEFAULT_MODEL, CatalogEntry, catalog_entry
from lpx.store.folder import StoredModel, find_stored, list_models

if TYPE_CHECKING:
    from lpx.store.fetch import PullProgress

__all__ = [
    "CATALOG",
    "DEFAULT_MODEL",
    "CatalogEntry",
    "StoredModel",
    "catalog_entry",
    "find_stored",
    "list_models",
    "models_dir",
    "pull",
]


def pull(name: str, folder: Path, progress: PullProgress | None = None) -> Path:
    """Return the path of model `name` in `folder`, fetching it if it is not there; see `lpx.store.fetch`."""
    from lpx.store.fetch import fetch  # subprocess, zipfile and the like: not at every start

    return fetch(name, folder, progress)
