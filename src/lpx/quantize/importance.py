"""How much an error in each column of each matrix matters: the mean square of the column's input over a text.

The output of a matrix is the sum over its columns of weight times input. Where inputs of different columns are
independent, the expected squared error of an output is the sum of squared weight errors, each times the mean square of
its column's input.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lpx.quality.texts import Text, read_texts
from lpx.quality.windows import make_windows, spread

if TYPE_CHECKING:
    from lpx.model.files import ModelFiles
    from lpx.model.tokenizer import Tokenizer

Floats = NDArray[np.float32]

WINDOW = 512  # tokens seen together
MOST_WINDOWS = 64
_FOLDER = Path(__file__).parent / "texts"
_BUNDLED = ("english", "chinese", "code")
# Matrices that read the same input: one of them is watched.
_SAME_INPUT = {"k": "q", "v": "q", "up": "gate"}


@dataclass(frozen=True, slots=True)
class Importance:
    """Mean squares [columns] by canonical name of the matrix, and what they are from."""

    columns: Mapping[str, Floats]
    texts: tuple[str, ...]  # names
    windows: int
    tokens: int

    def of(self, name: str) -> Floats | None:
        """Of a matrix by canonical name; None where no text says anything, as of an embedding that is no head."""
        return self.columns.get(name)


def calibration_texts(path: Path | None) -> list[Text]:
    """The user's file, or the bundled texts, which are others than those that `lpx.quality` compares on."""
    if path is not None:
        return read_texts([path])
    return [Text(name, (_FOLDER / f"{name}.txt").read_text(encoding="utf-8")) for name in _BUNDLED]


def measure_importance(
    files: ModelFiles,
    tokenizer: Tokenizer,
    texts: Sequence[Text],
    *,
    threads: int,
    progress: Callable[[int, int], None] | None = None,
) -> Importance:
    """Run the model's floats on at most 64 windows of 512 tokens, spread over the texts. `progress`: layers done.

    Raises InvalidRequestError for texts of less than 2 tokens.
    """
    from lpx.quantize.float_decoder import run_layers

    size = min(WINDOW, files.config.max_position)
    windows = spread(make_windows(tokenizer, texts, size), MOST_WINDOWS)
    sums = _Sums()
    weights = {weight.name: weight for weight in files.weights()}
    ids = [window.token_ids for window in windows]
    run_layers(files.config, weights, ids, sums.add, threads=threads, progress=progress)
    columns = {name: (total / sums.tokens[name]).astype(np.float32) for name, total in sums.totals.items()}
    for name in weights:
        stem, _, last = name.rpartition(".")
        if last in _SAME_INPUT:
            columns[name] = columns[f"{stem}.{_SAME_INPUT[last]}"]
    if files.config.tied_head:
        columns["embedding"] = columns.pop("head")
    return Importance(columns, tuple(text.name for text in texts), len(windows), sum(map(len, ids)))


@dataclass(slots=True)
class _Sums:
    totals: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, values: Floats) -> None:
        if name.rpartition(".")[2] in _SAME_INPUT:
            return
        squares = np.einsum("ij,ij->j", values, values, dtype=np.float64)
        self.totals[name] = self.totals.get(name, 0) + squares
        self.tokens[name] = self.tokens.get(name, 0) + len(values)
