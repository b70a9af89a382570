"""A package index of one folder, with a small stand-in for a model package built by the test itself."""

from __future__ import annotations

import base64
import hashlib
import os
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from lpx.store import CATALOG, CatalogEntry
from tests.store.openable import gguf

TINY = CatalogEntry(
    name="tiny",
    title="A tiny stand-in",
    licence="Apache-2.0",
    package="lpx-tiny-model",
    version="1.0",
    file="tiny.gguf",
    file_bytes=0,
    sha256="",
    download_bytes=3_000_000,
)


def entry_for(content: bytes) -> CatalogEntry:
    """The catalog entry that expects exactly `content`."""
    return replace(TINY, file_bytes=len(content), sha256=hashlib.sha256(content).hexdigest())


class FakeIndex:
    """A folder of wheels that pip is pointed at, and the environment that points it there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.marker = folder / "code-was-run"
        self.environment = {
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(folder),
        }

    def put(self, members: dict[str, bytes]) -> Path:
        """Build the wheel of the tiny package holding `members`, and code that leaves a mark if it ever runs."""
        info = "lpx_tiny_model-1.0.dist-info"
        code = f"import pathlib; pathlib.Path({str(self.marker)!r}).touch()\n".encode()
        files = {
            "lpx_tiny_model/__init__.py": code,
            **members,
            f"{info}/METADATA": b"Metadata-Version: 2.1\nName: lpx-tiny-model\nVersion: 1.0\n",
            f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        record = "".join(f"{name},sha256={_digest(data)},{len(data)}\n" for name, data in files.items())
        wheel = self.folder / "lpx_tiny_model-1.0-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in files.items():
                archive.writestr(name, data)
            archive.writestr(f"{info}/RECORD", record + f"{info}/RECORD,,\n")
        return wheel


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


@pytest.fixture
def content() -> bytes:
    return gguf(7, 2_500_000)  # several chunks


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeIndex:
    folder = tmp_path / "index"
    folder.mkdir()
    fake = FakeIndex(folder)
    for name, value in fake.environment.items():
        monkeypatch.setenv(name, value)
    return fake


@pytest.fixture
def tiny(index: FakeIndex, content: bytes, monkeypatch: pytest.MonkeyPatch) -> CatalogEntry:
    """The tiny model, in the catalog and in the index."""
    entry = entry_for(content)
    index.put({"lpx_tiny_model/tiny.gguf": content})
    monkeypatch.setitem(CATALOG, "tiny", entry)
    return entry
