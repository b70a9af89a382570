"""`ms:owner/name[:FILE or QUANT]`: repositories of ModelScope, by its public REST interface.

`MODELSCOPE_DOMAIN` names another host, and `MODELSCOPE_API_TOKEN` an account, as in ModelScope's own library.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from lpx.errors import DownloadError
from lpx.store.download import RemoteFile
from lpx.store.http import Web
from lpx.store.names import shown
from lpx.store.sources.hugging_face import model_name
from lpx.store.sources.plan import HubFile, Plan, check_distinct, flat_path, is_size
from lpx.store.sources.selection import choose

_DOMAIN = "www.modelscope.cn"
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class ModelScopeSource:
    """One model of a repository."""

    repository: str  # "owner/name"
    wanted: str | None = None  # a file or a precision
    revision: str | None = None

    def plan(self, web: Web) -> Plan:
        """Ask the hub. Raises DownloadError."""
        endpoint = _endpoint(web)
        revision = self.revision or "master"
        headers = _headers()
        base = f"{endpoint}/api/v1/models/{quote(self.repository)}"
        where = f"ms:{self.repository}"
        query = urlencode({"Revision": revision, "Recursive": "true"})
        listed = _data(web.json(f"{base}/repo/files?{query}", headers, where), where)
        entries = listed.get("Files") or []
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise DownloadError(f"{endpoint} answers {where} with something that is no list of files")
        files = [_hub_file(entry) for entry in entries if entry.get("Type") != "tree"]
        kind, chosen, quant = choose(files, self.wanted, where)
        details = self._details(web, base, headers, where)
        paths = [flat_path(file.path) for file in chosen]
        check_distinct(paths)
        return Plan(
            name=model_name(self.repository, quant),
            source=where + (f":{self.wanted}" if self.wanted else f":{quant}" if quant else ""),
            files=tuple(
                RemoteFile(
                    path=path,
                    url=f"{base}/repo?{urlencode({'Revision': revision, 'FilePath': file.path})}",
                    bytes=file.bytes,
                    sha256=file.sha256,
                    headers=headers,
                )
                for path, file in zip(paths, chosen, strict=True)
            ),
            format=kind,
            revision=_commit(entries, chosen) or revision,
            licence=_text(details, "License"),
            title=self.repository,
        )

    def _details(self, web: Web, base: str, headers: Mapping[str, str], where: str) -> Mapping[str, Any]:
        """What the repository says of itself: worth having, and no reason to fail."""
        try:
            return _data(web.json(base, headers, where), where)
        except DownloadError:
            return {}


def _endpoint(web: Web) -> str:
    domain = os.environ.get("MODELSCOPE_DOMAIN") or _DOMAIN
    endpoint = (domain if "://" in domain else f"https://{domain}").rstrip("/")
    web.check_endpoint(endpoint, "MODELSCOPE_DOMAIN")
    return endpoint


def _headers() -> dict[str, str]:
    token = os.environ.get("MODELSCOPE_API_TOKEN")
    return {"authorization": f"Bearer {token}"} if token else {}


def _data(answer: Any, where: str) -> Mapping[str, Any]:
    """What ModelScope wraps into `Data`. Raises DownloadError where it says that it failed."""
    data = answer.get("Data") if isinstance(answer, dict) else None
    if not isinstance(data, dict) or answer.get("Code", 200) != 200:
        said = str(answer.get("Message", ""))[:200] if isinstance(answer, dict) else ""
        raise DownloadError(f"{where} cannot be had: ModelScope says {shown(said) if said else 'nothing that helps'}")
    return data


def _hub_file(entry: Mapping[str, Any]) -> HubFile:
    path, size, sha256 = entry.get("Path"), entry.get("Size"), str(entry.get("Sha256") or "").lower()
    if not isinstance(path, str) or not isinstance(size, int) or not is_size(size):
        raise DownloadError(f"ModelScope lists a file without a path or a size: {shown(f'{path!s:.80}, {size!s:.80}')}")
    return HubFile(path, size, sha256 if _SHA256.fullmatch(sha256) else None)


def _commit(entries: list[dict[str, Any]], chosen: list[HubFile]) -> str | None:
    """The latest commit that touched the files, which stands for their state."""
    wanted = {file.path for file in chosen}
    touched = [entry for entry in entries if entry.get("Path") in wanted and isinstance(entry.get("Revision"), str)]
    latest = max(touched, key=_committed, default=None)
    return None if latest is None else str(latest["Revision"])


def _committed(entry: Mapping[str, Any]) -> float:
    """When, as ModelScope has it: only good to be compared."""
    date = entry.get("CommittedDate")
    return date if is_size(date) else 0  # type: ignore[return-value]


def _text(values: Mapping[str, Any], key: str) -> str | None:
    value = values.get(key)
    return value if isinstance(value, str) and value else None
