"""The page of models says what the code says."""

from __future__ import annotations

import re

from lpx.model.architectures import ARCHITECTURES, Architecture
from lpx.model.tensor_types import TYPES
from tests.docs.pages import DOCS

PAGE = (DOCS / "models.md").read_text(encoding="utf-8")


def _row(arch: Architecture) -> list[str]:
    return [
        {"silu": "silu", "gelu_tanh": "gelu (tanh)"}[arch.activation],
        {"none": "none", "optional": "optional", "qkv": "q, k, v"}[arch.biases],
        "yes" if arch.qk_norm else "no",
        "yes" if arch.post_norms else "no",
        "times √hidden" if arch.scaled_embedding else "as it is",
        "yes" if arch.fused else "no",
        "tied" if arch.tied_by_default else "own",
    ]


def test_the_table_of_families_is_that_of_the_code() -> None:
    rows = re.findall(r"^\| [^|]+ \| `(\w+)` \| (.+) \|$", PAGE, re.MULTILINE)
    shown = {name: cells.split(" | ") for name, cells in rows}
    assert shown == {arch.name: _row(arch) for arch in ARCHITECTURES.values()}


def test_every_type_of_weights_is_named() -> None:
    listed = re.search(r"^\| weights \| (.+?) \|", PAGE, re.MULTILINE)
    assert listed is not None
    assert set(listed[1].split(", ")) == set(TYPES)
    guide = (DOCS / "user-guide.md").read_text(encoding="utf-8")
    assert f"| GGUF v2, v3 | {listed[1]} |" in guide
