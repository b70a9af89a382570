"""Which files of a repository make up the model that is meant.

A repository of GGUF files holds one model in several precisions, each a file or a set of parts: the part of the name
that tells the precision chooses (`:q4_k_m`), and without one it is Q4_K_M, as llama.cpp has it. A repository of
safetensors is one model of several files. Pickle files are never fetched.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from lpx.errors import DownloadError, UnsupportedModelError
from lpx.store.names import shown
from lpx.store.sources.plan import HubFile

DEFAULT_QUANT = "q4_k_m"

_PART = re.compile(r"-(\d{5})-of-(\d{5})(?=\.gguf$)", re.IGNORECASE)
_QUANT = re.compile(
    r"(?:^|[-._/])((?:i?q[1-8](?:_[a-z0-9]+)*)|f16|f32|bf16|fp16|tq[12]_0|mxfp4(?:_moe)?)(?=$|[-._/])", re.IGNORECASE
)
# Beside the weights: what says how to compute and how to read text.
_BESIDE = frozenset(
    {
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "tokenizer.model",
        "special_tokens_map.json",
        "added_tokens.json",
        "vocab.json",
        "merges.txt",
        "chat_template.json",
        "chat_template.jinja",
        "model.safetensors.index.json",
        "1_Pooling/config.json",
        "LICENSE",
        "LICENSE.txt",
        "LICENSE.md",
    }
)
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


def choose(files: Sequence[HubFile], wanted: str | None, where: str) -> tuple[str, list[HubFile], str | None]:
    """(format, files, precision or None) of what `wanted` means in a repository: a file, a precision, or nothing.

    Raises DownloadError, which lists what there is, and UnsupportedModelError for pickle checkpoints.
    """
    ggufs = [file for file in files if _is_model(file.path)]
    if wanted is not None:
        return _choose_wanted(files, ggufs, wanted, where)
    if ggufs and not _is_folder(files):
        return _choose_quant(ggufs, None, where)
    if _is_folder(files):
        return "safetensors", _folder(files), None
    if any(file.path.lower().endswith(_PICKLES) for file in files):
        raise UnsupportedModelError(
            f"{where} has its weights in pickle files only, which run code when they are loaded: LPX never takes them. "
            "Look for the same model with .safetensors or .gguf files"
        )
    raise DownloadError(f"{where} has neither .gguf files nor config.json with .safetensors files")


def _choose_wanted(
    files: Sequence[HubFile], ggufs: list[HubFile], wanted: str, where: str
) -> tuple[str, list[HubFile], str | None]:
    if wanted.lower() == "safetensors" and _is_folder(files):
        return "safetensors", _folder(files), None
    if not wanted.lower().endswith(".gguf"):
        return _choose_quant(ggufs, wanted, where)
    matches = [file for file in ggufs if file.path == wanted] or [
        file for file in ggufs if file.path.lower().rpartition("/")[2] == wanted.lower().rpartition("/")[2]
    ]
    if len(matches) != 1:
        raise DownloadError(f"{where} has no file {shown(wanted)}; {_listed(ggufs)}")
    return "gguf", _with_parts(matches[0], ggufs), quant_of(matches[0].path)


def _choose_quant(ggufs: list[HubFile], wanted: str | None, where: str) -> tuple[str, list[HubFile], str | None]:
    sets = [file for file in ggufs if _PART.search(file.path) is None or _PART.search(file.path)[1] == "00001"]  # type: ignore[index]
    if wanted is None and len(sets) == 1:
        return "gguf", _with_parts(sets[0], ggufs), quant_of(sets[0].path)
    asked = (wanted or DEFAULT_QUANT).lower()
    matches = [file for file in sets if (quant_of(file.path) or "").lower() == asked]
    if not matches:
        what = f"no precision {shown(wanted)}" if wanted else f"several precisions, and no {DEFAULT_QUANT}"
        raise DownloadError(f"{where} has {what}; {_listed(ggufs)}")
    if len(matches) > 1:
        names = ", ".join(file.path for file in matches[:4])
        raise DownloadError(f"{where} has several files of precision {asked}: {names}; give the file, as :FILE.gguf")
    return "gguf", _with_parts(matches[0], ggufs), quant_of(matches[0].path)


def quant_of(path: str) -> str | None:
    """The precision that a file's name tells, in lower case: the last one that it mentions."""
    stem = _PART.sub("", path.rpartition("/")[2])
    found = _QUANT.findall(stem[: -len(".gguf")] if stem.lower().endswith(".gguf") else stem)
    return found[-1].lower() if found else None


def _with_parts(first: HubFile, ggufs: list[HubFile]) -> list[HubFile]:
    match = _PART.search(first.path)
    if match is None:
        return [first]
    stem, count = first.path[: match.start()], match[2]
    paths = [f"{stem}-{number:05d}-of-{count}.gguf" for number in range(1, int(count) + 1)]
    by_path = {file.path: file for file in ggufs}
    if missing := [path for path in paths if path not in by_path]:
        raise DownloadError(f"the repository lacks {len(missing)} parts of the model, the first is {missing[0]}")
    return [by_path[path] for path in paths]


def _is_model(path: str) -> bool:
    name = path.lower().rpartition("/")[2]
    return name.endswith(".gguf") and not name.startswith(("mmproj", "imatrix")) and "mmproj" not in name


def _is_folder(files: Sequence[HubFile]) -> bool:
    paths = {file.path for file in files}
    return "config.json" in paths and any(_is_weights(path) for path in paths)


def _folder(files: Sequence[HubFile]) -> list[HubFile]:
    return [file for file in files if file.path in _BESIDE or _is_weights(file.path)]


def _is_weights(path: str) -> bool:
    # Mistral's repositories hold the same weights twice; `consolidated` are those of its own format.
    return path.endswith(".safetensors") and "/" not in path and not path.startswith("consolidated")


def _listed(ggufs: list[HubFile]) -> str:
    quants = sorted({quant for file in ggufs if (quant := quant_of(file.path))})
    if not ggufs:
        return "it has no .gguf files"
    if not quants:
        return "there are: " + ", ".join(file.path for file in ggufs[:8])
    return "there are: " + ", ".join(quants)
