"""Embeddings: which hidden states of a prompt are summed up, and what becomes of the sum."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lpx.errors import InvalidRequestError

if TYPE_CHECKING:
    from lpx.model.pooling import PoolingKind


def rows_to_pool(kind: PoolingKind, start: int, end: int, length: int) -> tuple[int, int] | None:
    """Of the rows of positions [start, end) of a prompt of `length` tokens, those that count; None for none of them."""
    if kind == "mean":
        return 0, end - start
    if kind == "first":
        return (0, 1) if start == 0 else None
    return (end - start - 1, end - start) if end == length else None


def finish_embedding(
    pooled: NDArray[np.float64],
    kind: PoolingKind,
    tokens: int,
    *,
    dimensions: int | None = None,
    normalize: bool = True,
) -> NDArray[np.float32]:
    """The embedding from the sum of hidden states: averaged, cut to `dimensions`, and brought to length 1.

    Cutting comes first, as for OpenAI's models (Matryoshka embeddings, Kusupati et al. 2022).
    """
    vector = pooled / tokens if kind == "mean" else pooled
    if dimensions is not None:
        vector = vector[:dimensions]
    if normalize:
        length = float(np.linalg.norm(vector))
        if length > 0:
            vector = vector / length
    return vector.astype(np.float32)


def check_dimensions(dimensions: int | None, hidden_size: int) -> None:
    """Raise `InvalidRequestError` unless so many numbers can be given."""
    if dimensions is not None and not 1 <= dimensions <= hidden_size:
        raise InvalidRequestError(
            f"dimensions must be from 1 to {hidden_size}, the model's own number, not {dimensions}", param="dimensions"
        )
