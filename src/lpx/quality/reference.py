"""What a configuration is compared with: another file, or the same one with other options."""

from __future__ import annotations

import dataclasses

from lpx.errors import ConfigError
from lpx.options import EngineOptions, parse_kv_cache_dtype

_KEYS = ("model", "quantization", "kv_cache_dtype", "isa", "threads")


def parse_reference(text: str, subject: EngineOptions) -> EngineOptions:
    """Options of the reference that `text` names: a file, folder or name, or `key=value` pairs with commas between.

    Keys: model, quantization, kv_cache_dtype, isa, threads. What is not said is the subject's, but for KV in f16 and
    weights as the file holds them. A part without `=` belongs to the value before, as in `kv_cache_dtype=q8,q4`.
    Raises ConfigError.
    """
    plain = _unquantized(subject)
    if "=" not in text:
        return dataclasses.replace(plain, model=text, served_model_name=None)
    values: dict[str, str] = {}
    last = ""
    for part in text.split(","):
        key, given, value = part.partition("=")
        if not given and last:
            values[last] += f",{part.strip()}"
            continue
        last = key.strip().replace("-", "_")
        if last not in _KEYS:
            raise ConfigError(f"the reference {text!r} has the key {key.strip()!r}; known are {', '.join(_KEYS)}")
        values[last] = value.strip()
    if "model" in values:
        plain = dataclasses.replace(plain, served_model_name=None)
    threads = values.pop("threads", None)
    if threads is None:
        return dataclasses.replace(plain, **values)  # type: ignore[arg-type]  # strings, as their fields are
    if not threads.isascii() or not threads.isdigit():
        raise ConfigError(f"the reference {text!r} has threads={threads}, which is not a whole number")
    return dataclasses.replace(plain, threads=int(threads), **values)  # type: ignore[arg-type]


def default_reference(subject: EngineOptions) -> EngineOptions | None:
    """The same file without quantization at load and with KV in f16; None where the subject is that already."""
    plain = _unquantized(subject)
    same = parse_kv_cache_dtype(subject.kv_cache_dtype) == ("f16", "f16") and subject.quantization in (None, "none")
    return None if same else plain


def differ_in_kv_only(subject: EngineOptions, reference: EngineOptions) -> bool:
    """Whether the two run the same weights in the same way, and keep keys and values in different types."""
    return subject.kv_cache_dtype != reference.kv_cache_dtype and (
        dataclasses.replace(subject, kv_cache_dtype=reference.kv_cache_dtype, quantization=None)
        == dataclasses.replace(reference, quantization=None)
        and subject.quantization in (None, "none")
        and reference.quantization in (None, "none")
    )


def _unquantized(subject: EngineOptions) -> EngineOptions:
    return dataclasses.replace(subject, quantization=None, kv_cache_dtype="f16")
