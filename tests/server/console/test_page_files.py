"""The files of the console: complete, unchanged, kept by browsers, and nothing else of the disk."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import httpx
import pytest

from lpx.server.console import page
from tests.server.live_server import LiveServer

VENDOR = Path(page.__file__).parent / "static/vendor"


def files_of(server: LiveServer) -> list[str]:
    return re.findall(r'(?:src|href)="(console/[^"]+)"', server.get("/").text)


def test_page_names_files_that_are_there(shared_server: LiveServer) -> None:
    response = shared_server.get("/")
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    files = files_of(shared_server)
    assert len(files) > 5
    kinds = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}
    for name in files:
        found = shared_server.get("/" + name)
        assert found.status_code == 200, name
        assert found.headers["content-type"] == kinds[Path(name).suffix]
        assert found.headers["x-content-type-options"] == "nosniff"
        assert found.headers["cache-control"] == "private, max-age=31536000, immutable"


def test_policy_allows_nothing_from_elsewhere_and_nothing_inline(shared_server: LiveServer) -> None:
    policy = dict(
        part.strip().split(" ", 1) for part in shared_server.get("/").headers["content-security-policy"].split(";")
    )
    assert policy["default-src"] == policy["base-uri"] == policy["frame-ancestors"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["require-trusted-types-for"] == "'script'"
    text = shared_server.get("/").text
    assert not re.search(r"<style|\son\w+=|\sstyle=|<script(?![^>]*\ssrc=)", text)


def test_unchanged_files_are_not_sent_again(shared_server: LiveServer) -> None:
    for path in ("/", "/" + files_of(shared_server)[0]):
        etag = shared_server.get(path).headers["etag"]
        again = shared_server.get(path, headers={"if-none-match": f'"other", W/{etag}'})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == etag
        assert shared_server.get(path, headers={"if-none-match": '"other"'}).status_code == 200
        head = shared_server.client.head(path)
        assert (head.status_code, head.content) == (200, b"")


@pytest.mark.parametrize(
    "name",
    [
        "",
        "index.html",
        "nothing.js",
        "../page.py",
        "..%2fpage.py",
        "vendor/../../page.py",
        "vendor%2f..%2f..%2fpage.py",
        "/etc/passwd",
        "%2e%2e/%2e%2e/app.py",
        "vendor",
        "app.js%00.css",
    ],
)
def test_nothing_but_the_files_is_served(shared_server: LiveServer, name: str) -> None:
    folder = files_of(shared_server)[0].rsplit("/", 1)[0]
    url = httpx.URL(shared_server.url).copy_with(raw_path=f"/{folder}/{name}".encode())
    response = shared_server.client.get(url)
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "not_found"


def test_another_version_is_not_served(shared_server: LiveServer) -> None:
    name = files_of(shared_server)[0].rsplit("/", 1)[1]
    assert shared_server.get(f"/console/0123456789abcdef/{name}").status_code == 404


def test_libraries_are_what_the_manifest_says(shared_server: LiveServer) -> None:
    packages = json.loads((VENDOR / "manifest.json").read_text())["packages"]
    recorded = {}
    for package in packages:
        assert package["license"]
        assert package["version"]
        assert package["integrity"].startswith("sha512-")
        assert any("LICENSE" in file["to"] for file in package["files"].values())
        recorded |= {file["to"]: file["sha256"] for file in package["files"].values()}
    present = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in VENDOR.iterdir()}
    del present["manifest.json"]
    assert present == recorded


def test_imports_name_files(shared_server: LiveServer) -> None:
    """A bare name in an import needs an import map, which is an inline script."""
    folder = VENDOR.parent
    for path in folder.rglob("*.js"):
        for name in re.findall(r'(?:^|[;}\s])(?:import|export)\b[^;"\']*?from\s*["\']([^"\']+)["\']', path.read_text()):
            assert name.startswith("./"), f"{path.name} imports {name}"
            assert (path.parent / name).is_file(), f"{path.name} imports {name}"
