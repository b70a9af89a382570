"""Every fenced block says what it holds, and holds it."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from lpx.profile import read_profile
from tests.docs.pages import BLOCKS, Block, in_language, name_of

# What the other languages hold is looked at here or in test_commands.py; `text` is output and other files.
_LANGUAGES = {"sh", "console", "python", "json", "toml", "yaml", "html", "text"}


@pytest.mark.parametrize("block", BLOCKS, ids=name_of)
def test_blocks_name_their_language(block: Block) -> None:
    assert block.language in _LANGUAGES
    if block.language == "text":
        assert not re.search(r"^(\$ |lpx [a-z]+ |curl |python3? |pip )", block.text, re.MULTILINE)


@pytest.mark.parametrize("block", in_language("python"), ids=name_of)
def test_python_compiles_and_uses_what_lpx_has(block: Block) -> None:
    tree = ast.parse(block.text)
    compile(tree, name_of(block), "exec")
    found: dict[str, Any] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "lpx":
            module = importlib.import_module(node.module or "")
            found |= {name.name: getattr(module, name.name) for name in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in found:
            positional = [None] * len(node.args)
            named = {keyword.arg: None for keyword in node.keywords if keyword.arg}
            inspect.signature(found[node.func.id]).bind(*positional, **named)


@pytest.mark.parametrize("block", in_language("json"), ids=name_of)
def test_json_parses(block: Block) -> None:
    try:
        json.loads(block.text)
    except json.JSONDecodeError:
        for line in block.text.splitlines():
            json.loads(line)


@pytest.mark.parametrize("block", in_language("toml"), ids=name_of)
def test_profiles_are_taken(block: Block, tmp_path: Path) -> None:
    (tmp_path / "lpx.toml").write_text(block.text, encoding="utf-8")
    assert read_profile(tmp_path / "lpx.toml").values


@pytest.mark.parametrize("block", in_language("yaml"), ids=name_of)
def test_yaml_parses(block: Block) -> None:
    assert yaml.safe_load(block.text)
