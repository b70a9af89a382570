"""The model store: where models lie on disk, which ones can be fetched by name, and how they get there.

`catalog` knows what can be fetched, `folder` reads what is there, `pull` brings one into the other.
"""

from lpx.model.models_dir import models_dir
from lpx.store.catalog import CATALOG, DEFAULT_MODEL, CatalogEntry, catalog_entry
from lpx.store.folder import StoredModel, find_stored, list_models
from lpx.store.pull import PullProgress, pull

__all__ = [
    "CATALOG",
    "DEFAULT_MODEL",
    "CatalogEntry",
    "PullProgress",
    "StoredModel",
    "catalog_entry",
    "find_stored",
    "list_models",
    "models_dir",
    "pull",
]
