"""Which model is meant: a file, a folder, a config.json, a name of the store, a known model, a number of parameters."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from lpx.bench.fit.precisions import Matrix, parameter_count
from lpx.errors import ConfigError
from lpx.model.config import ModelConfig

KNOWN = Path(__file__).with_name("known_models.json")
_COUNT = re.compile(r"(\d{1,6}(?:\.\d{1,6})?)\s*([kmbt])", re.IGNORECASE | re.ASCII)
_UNITS = {"k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
_FAR = 1.5  # times the largest known model
_LEAST_COUNT, _MOST_COUNT = 1e6, 1e12

Origin = Literal["file", "config", "known", "count"]


@dataclass(frozen=True, slots=True)
class FitModel:
    """A model as far as it is known before loading."""

    name: str
    origin: Origin
    config: ModelConfig
    parameters: float
    path: Path | None = None  # of the file, the folder or the config
    own_name: str | None = None  # what the file itself calls the model
    matrices: tuple[Matrix, ...] = ()  # as the file holds them; empty without a file
    file_bytes: int | None = None
    scale: float = 1.0  # weights of `config` times this are the model's: for a number of parameters
    notes: tuple[str, ...] = field(default_factory=tuple)


def resolve_subject(name: str, models_dir: Path) -> FitModel:
    """What `name` means; reads headers and configs only. Raises ConfigError, and what a broken file raises."""
    from lpx import store

    if not name.strip():
        raise ConfigError("the name of the model is empty; give a file, a folder, a name, or a number such as 7B")
    path = Path(os.path.expanduser(name))
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as error:  # such as a name that is longer than names of files can be
        shown = name if len(name) <= 60 else f"{name[:60]}…"
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"the model {shown!r} cannot be looked for: {reason}") from None
    if path.suffix.lower() == ".json" and path.exists():
        return _from_config(path)
    stored = None if path.exists() else store.find_stored(name, models_dir)
    if path.exists() or stored is not None:
        found = path if stored is None else stored.path
        return _from_path(found, store.stored_name(str(found), models_dir))
    known = _known_models().get(_plain(name)) or _known_models().get(_plain(name.rsplit("/", 1)[-1]))
    if name in store.CATALOG:
        entry = store.CATALOG[name]
        if known is not None:
            note = f"{entry.file_bytes / 1e6:,.0f} MB as lpx models pull {name} brings it"
            return _known(known, notes=(note,))
    if known is not None:
        return _known(known)
    match = _COUNT.fullmatch(name.strip())
    if match is not None:
        return _from_count(name.strip(), float(match[1]) * _UNITS[match[2].lower()])
    near = difflib.get_close_matches(_plain(name), _known_models(), n=3, cutoff=0.4)
    hint = f"; near are {', '.join(_known_models()[each]['name'] for each in near)}" if near else ""
    raise ConfigError(
        f"{name!r} is no file, no folder, no model of the store and no known model{hint}. Give a .gguf file, a folder, "
        "a config.json, a name, or a number of parameters such as 7B"
    )


def known_names() -> list[str]:
    return [row["name"] for row in _known_models().values()]


def _from_path(path: Path, stored_name: str | None) -> FitModel:
    """By the name that it has in the model folder, as everywhere; else by its file's."""
    from lpx.model.files import open_model, resolve_model

    if path.is_dir() and (path / "config.json").exists() and not any(path.glob("*.safetensors")):
        return _from_config(path / "config.json")
    with open_model(resolve_model(str(path))) as files:
        matrices = tuple(files.matrix_shapes())
        return FitModel(
            name=stored_name or files.name,
            origin="file",
            own_name=files.own_name,
            config=files.config,
            parameters=sum(rows * columns for _, _, (rows, columns) in matrices),
            path=files.path,
            matrices=matrices,
            file_bytes=files.file_bytes,
        )


def _from_config(path: Path) -> FitModel:
    from lpx.model.hf_config import config_from_hf
    from lpx.model.safetensors_reader import read_json

    values = dict(read_json(path))
    notes = []
    section = values.pop("quantization_config", None)  # changes the precision of the files, not the shape
    if section is not None:
        method = section.get("quant_method", "unknown") if isinstance(section, dict) else "unknown"
        notes.append(f"the files are quantized by {method}, which LPX does not load: the rows are for other files")
    config, _ = config_from_hf(values, path.absolute().parent.name, str(path))
    return FitModel(config.name, "config", config, parameter_count(config), path=path, notes=tuple(notes))


@functools.cache
def _known_models() -> dict[str, dict[str, Any]]:
    rows = json.loads(KNOWN.read_text(encoding="utf-8"))
    return {_plain(row["name"]): row for row in rows}


def _known(row: dict[str, Any], notes: tuple[str, ...] = ()) -> FitModel:
    config = _config_of(row)
    return FitModel(row["name"], "known", config, parameter_count(config), notes=notes)


def _config_of(row: dict[str, Any]) -> ModelConfig:
    from lpx.model.hf_config import config_from_hf

    return config_from_hf({key: value for key, value in row.items() if key != "name"}, row["name"], row["name"])[0]


def _from_count(name: str, count: float) -> FitModel:
    """The known model that is nearest in size lends its shape; its weights are scaled."""
    if not _LEAST_COUNT <= count <= _MOST_COUNT:
        raise ConfigError(f"{name} parameters are no model: give a number from 1M to 1T, such as 7B")
    # Shapes with few heads of keys and values, as models have them now; older ones need several times the cache.
    candidates = [config for row in _known_models().values() if (config := _config_of(row)).num_kv_heads < 16]
    nearest = min(candidates, key=lambda config: abs(_log_ratio(parameter_count(config), count)))
    scale = count / parameter_count(nearest)
    note = (
        f"the shape is that of {nearest.name}, scaled: {nearest.num_layers} layers, {nearest.num_kv_heads} KV heads of "
        f"{nearest.head_dim}. A model with more KV heads needs more cache; its config.json tells"
    )
    notes = [note]
    if scale > _FAR:
        notes.append("no known shape is that large, so its cache is guessed too small")
    config = dataclasses.replace(nearest, name=name)
    return FitModel(name, "count", config, count, scale=scale, notes=tuple(notes))


def _log_ratio(a: float, b: float) -> float:
    from math import log

    return log(a / b)


def _plain(name: str) -> str:
    """Without what tells chat models, files and versions of one shape apart."""
    text = name.lower()
    for ending in (".gguf", "-instruct", "-it", "-chat", "-base", "-hf", "-coder"):
        text = text.replace(ending, "")
    text = re.sub(r"[-_.](q\d.*|f16|bf16|gguf)$", "", text)
    return re.sub(r"[\s_-]+", "", text)
