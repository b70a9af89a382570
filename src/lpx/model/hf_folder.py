"""The small files of a Hugging Face folder: configs, what they say of the tokenizer, and the chat template."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lpx.errors import ModelFileError, ModelNotFoundError, TokenizerError
from lpx.model.safetensors_reader import read_json
from lpx.model.tokenizer_source import HfTokenizerSource

_MAX_TEMPLATE_BYTES = 1_000_000


class HfFolder:
    """A folder with `config.json`, whose files are read when they are asked for. Raises ModelFileError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not (path / "config.json").exists():
            raise ModelNotFoundError(f"{path}: this folder has no config.json")
        self.config: dict[str, Any] = read_json(path / "config.json")
        self._tokenizer_config = self._optional_json("tokenizer_config.json")

    def _optional_json(self, name: str) -> dict[str, Any]:
        path = self.path / name
        return read_json(path) if path.exists() else {}

    def tokenizer_source(self, vocab_rows: int) -> HfTokenizerSource:
        """What the folder says of its tokenizer. Raises TokenizerError when there is no tokenizer.json."""
        path = self.path / "tokenizer.json"
        if not path.exists():
            raise TokenizerError(f"{self.path}: tokenizer.json is missing; LPX reads no other tokenizer files")
        text_config = self.config.get("text_config")
        configs = [("config.json", self.config)]
        if isinstance(text_config, dict):
            configs.append(("config.json: text_config", text_config))
        configs.append(("generation_config.json", self._optional_json("generation_config.json")))
        eos: set[int] = set()
        bos: int | None = None
        for name, values in configs:
            eos |= self._ids(values, "eos_token_id", name, vocab_rows)
            found = self._ids(values, "bos_token_id", name, vocab_rows)
            bos = min(found) if found and bos is None else bos
        eos |= self._tokenizer_eos(vocab_rows)
        return HfTokenizerSource(
            path=path,
            tokenizer_config=self._tokenizer_config,
            special_tokens_map=self._optional_json("special_tokens_map.json"),
            bos_id=bos,
            eos_ids=frozenset(eos),
            vocab_rows=vocab_rows,
        )

    def _ids(self, values: Mapping[str, Any], key: str, file: str, vocab_rows: int) -> set[int]:
        """One id or a list of them; null and -1 mean none."""
        value = values.get(key)
        ids = set()
        for item in value if isinstance(value, list) else [value]:
            if item is None or item == -1:
                continue
            if isinstance(item, bool) or not isinstance(item, int) or not 0 <= item < vocab_rows:
                raise ModelFileError(
                    f"{self.path / file}: {key} is {item!r}, but must be a token id below {vocab_rows}"
                )
            ids.add(item)
        return ids

    def _tokenizer_eos(self, vocab_rows: int) -> set[int]:
        """The id of tokenizer_config.json's eos_token, where that file has the ids of its added tokens."""
        eos = _token_text(self._tokenizer_config.get("eos_token"))
        added = self._tokenizer_config.get("added_tokens_decoder")
        if eos is None or not isinstance(added, dict):
            return set()
        return {
            int(number)
            for number, token in added.items()
            if number.isdecimal() and int(number) < vocab_rows and _token_text(token) == eos
        }

    def chat_template(self) -> str | None:
        """The template as shipped: chat_template.jinja, else tokenizer_config.json's (of several, the one called
        "default"), else chat_template.json's."""
        jinja = self.path / "chat_template.jinja"
        if jinja.exists():
            if jinja.stat().st_size > _MAX_TEMPLATE_BYTES:
                raise ModelFileError(f"{jinja}: larger than the limit of {_MAX_TEMPLATE_BYTES} bytes")
            try:
                return jinja.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise ModelFileError(f"{jinja}: cannot be read: {error}") from None
        for name, values in (
            ("tokenizer_config.json", self._tokenizer_config),
            ("chat_template.json", self._optional_json("chat_template.json")),
        ):
            template = values.get("chat_template")
            if isinstance(template, list):
                named = {t["name"]: t.get("template") for t in template if isinstance(t, dict) and "name" in t}
                template = named.get("default")
                if template is None:
                    raise ModelFileError(f"{self.path / name}: none of its chat templates is called 'default'")
            if template is not None:
                if not isinstance(template, str):
                    raise ModelFileError(f"{self.path / name}: chat_template is not a string")
                return template
        return None


def _token_text(token: Any) -> str | None:
    """A token is a string, or an object with its string as `content`."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None
