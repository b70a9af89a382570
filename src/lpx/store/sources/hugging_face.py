"""`hf:owner/name[:FILE or QUANT]`: repositories of Hugging Face, or of the mirror that HF_ENDPOINT names.

Endpoint and token are huggingface_hub's (`HF_ENDPOINT`, `HF_TOKEN`, `hf auth login`), which also reads the repository's
list of files. The bytes come by LPX's own way, so that all sources resume and are checked alike.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any

from lpx.errors import DownloadError
from lpx.store.download import RemoteFile
from lpx.store.http import TryAgain, Web
from lpx.store.names import name_from, shown
from lpx.store.sources.plan import HubFile, Plan, check_distinct, flat_path, is_size
from lpx.store.sources.selection import choose

_HEX = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_HTTP_LIBRARIES = ("httpx", "httpx2", "httpcore", "httpcore2", "requests", "urllib3")  # of huggingface_hub's versions


@dataclass(frozen=True, slots=True)
class HuggingFaceSource:
    """One model of a repository."""

    repository: str  # "owner/name"
    wanted: str | None = None  # a file or a precision
    revision: str | None = None

    def plan(self, web: Web) -> Plan:
        """Ask the hub. Raises DownloadError."""
        from huggingface_hub import constants, get_token, hf_hub_url
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

        if constants.HF_HUB_OFFLINE:
            raise DownloadError("HF_HUB_OFFLINE is set, so Hugging Face is not asked; unset it to pull from there")
        endpoint = (os.environ.get("HF_ENDPOINT") or constants.ENDPOINT).rstrip("/")
        web.check_endpoint(endpoint, "HF_ENDPOINT")
        token = get_token()
        info = web.ask(lambda: self._info(endpoint, token, web.patience.timeout_s))
        where = f"hf:{self.repository}"
        files = _hub_files(info, endpoint, where)
        kind, chosen, quant = choose(files, self.wanted, where)
        headers = {key: str(value) for key, value in build_hf_headers(token=token or False).items() if value}
        paths = [flat_path(file.path) for file in chosen]
        check_distinct(paths)
        return Plan(
            name=model_name(self.repository, quant),
            source=where + (f":{self.wanted}" if self.wanted else f":{quant}" if quant else ""),
            files=tuple(
                RemoteFile(
                    path=path,
                    url=hf_hub_url(self.repository, file.path, revision=info.sha, endpoint=endpoint),
                    bytes=file.bytes,
                    sha256=file.sha256,
                    git_sha1=file.git_sha1,
                    headers=headers,
                )
                for path, file in zip(paths, chosen, strict=True)
            ),
            format=kind,
            revision=info.sha,
            licence=_licence(info),
            title=info.id if isinstance(info.id, str) else self.repository,
        )

    def _info(self, endpoint: str, token: str | None, timeout_s: float) -> Any:
        """The repository's files at one commit. Raises TryAgain for what may pass."""
        from huggingface_hub import HfApi
        from huggingface_hub.errors import (
            GatedRepoError,
            HfHubHTTPError,
            HFValidationError,
            RepositoryNotFoundError,
            RevisionNotFoundError,
        )

        try:
            return HfApi(endpoint=endpoint, token=token or False).model_info(
                self.repository, revision=self.revision, files_metadata=True, timeout=timeout_s
            )
        except GatedRepoError:
            raise DownloadError(
                f"hf:{self.repository} is gated: accept its terms on its page, and set HF_TOKEN to a token of the "
                "account that has"
            ) from None
        except RevisionNotFoundError:
            raise DownloadError(f"hf:{self.repository} has no revision {shown(self.revision or '')}") from None
        except RepositoryNotFoundError:
            raise DownloadError(
                f"there is no hf:{self.repository} at {endpoint}, or it is private: check the spelling, or set HF_TOKEN"
            ) from None
        except HFValidationError as error:
            raise DownloadError(f"hf:{self.repository}: {error}") from None
        except HfHubHTTPError as error:
            status = getattr(error.response, "status_code", 0)
            if status in (408, 429) or status >= 500:
                raise TryAgain(f"{endpoint} answers {status}") from error
            raise DownloadError(f"{endpoint} answers {status} to hf:{self.repository}") from error
        except (TypeError, AttributeError, KeyError, OverflowError) as error:  # huggingface_hub trusts what it is sent
            raise DownloadError(_nonsense(endpoint, f"hf:{self.repository}", f"{error}")) from error
        except (OSError, ValueError) as error:  # its HTTP library differs by version; their errors are OSErrors or not
            raise TryAgain(f"{endpoint}: {error}") from error
        except Exception as error:
            if type(error).__module__.split(".")[0] in _HTTP_LIBRARIES:
                raise TryAgain(f"{endpoint}: {error}") from error
            raise


def model_name(repository: str, quant: str | None) -> str:
    """`qwen2.5-0.5b-instruct-q4_k_m` for Qwen/Qwen2.5-0.5B-Instruct-GGUF in that precision."""
    base = repository.rpartition("/")[2]
    for suffix in ("-GGUF", "-gguf", "_GGUF", "_gguf", ".gguf"):
        base = base.removesuffix(suffix)
    if quant and not base.lower().endswith(quant):
        base = f"{base}-{quant}"
    return name_from(base)


def _hub_files(info: Any, endpoint: str, where: str) -> list[HubFile]:
    """The files that the hub lists. Raises DownloadError where the list makes no sense."""
    if not isinstance(info.sha, str) or not info.sha:
        raise DownloadError(_nonsense(endpoint, where, f"its commit is {info.sha!r}"))
    return [_hub_file(sibling, endpoint, where) for sibling in info.siblings or ()]


def _hub_file(sibling: Any, endpoint: str, where: str) -> HubFile:
    path, size, lfs = sibling.rfilename, sibling.size or 0, sibling.lfs
    sha256 = lfs.get("sha256") if isinstance(lfs, dict) else getattr(lfs, "sha256", None)
    git_sha1 = None if sha256 else sibling.blob_id
    if not isinstance(path, str):
        raise DownloadError(_nonsense(endpoint, where, f"a file is called {path!r}"))
    if not is_size(size):
        raise DownloadError(_nonsense(endpoint, where, f"{shown(path)} has the size {size!r}"))
    for found in (sha256, git_sha1):
        if found is not None and not (isinstance(found, str) and _HEX.fullmatch(found)):
            raise DownloadError(_nonsense(endpoint, where, f"{shown(path)} has the hash {found!r}"))
    return HubFile(path=path, bytes=size, sha256=sha256, git_sha1=git_sha1)


def _nonsense(endpoint: str, where: str, what: str) -> str:
    said = what if len(what) <= 200 else what[:197] + "..."
    return f"{endpoint} answers {where} with something that describes no model: {said}"


def _licence(info: Any) -> str | None:
    data = getattr(info, "card_data", None)
    for name in ("license_name", "license"):
        value = data.get(name) if data is not None and hasattr(data, "get") else None
        if isinstance(value, str) and value not in ("", "other"):
            return value
    for tag in info.tags or ():
        if isinstance(tag, str) and tag.startswith("license:"):
            return tag.removeprefix("license:")
    return None
