"""Logits of a reference that wait in a temporary file, where memory does not hold two models at once."""

from __future__ import annotations

import shutil
import tempfile

import numpy as np
from numpy.typing import NDArray

from lpx.errors import MemoryLimitError

_SPARE = 64 << 20  # bytes that the file leaves free


class SpilledLogits:
    """Owns an unnamed file of float32 [rows, vocab] in the folder for temporary files; a context manager.

    Written from start to end, then read from start to end. The system removes the file whatever ends the process.
    """

    def __init__(self, rows: int, vocab_size: int) -> None:
        """Raises MemoryLimitError, with the numbers, where the folder has too little room."""
        self.rows = rows
        self._vocab_size = vocab_size
        folder = tempfile.gettempdir()
        needed, free = rows * vocab_size * 4, shutil.disk_usage(folder).free
        if needed + _SPARE > free:
            raise MemoryLimitError(
                f"memory does not hold both models at once, and the reference's logits of {rows} positions need "
                f"{needed / 2**20:,.0f} MiB on disk, but {folder} has {free / 2**20:,.0f} MiB. Compare fewer windows "
                "(--windows), or name a folder with more room in TMPDIR"
            )
        self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  # closed by __exit__
        self._reading = False

    def append(self, block: NDArray[np.float32]) -> None:
        """Raises MemoryLimitError when the room went to somebody else in the meantime."""
        try:
            self._file.write(np.ascontiguousarray(block, dtype=np.float32).data)
        except OSError as error:
            raise MemoryLimitError(
                f"the reference's logits cannot be written to {tempfile.gettempdir()}: {error.strerror}. Compare fewer "
                "windows (--windows), or name a folder with more room in TMPDIR"
            ) from error

    def read(self, rows: int) -> NDArray[np.float32]:
        """The next `rows` rows."""
        if not self._reading:
            self._file.seek(0)
            self._reading = True
        data = self._file.read(rows * self._vocab_size * 4)
        return np.frombuffer(data, dtype=np.float32).reshape(rows, self._vocab_size)

    def __enter__(self) -> SpilledLogits:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
