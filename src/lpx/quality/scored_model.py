"""A loaded model of which whole next-token distributions are wanted: weights, tokenizer, room for one sequence.

An engine keeps distributions to itself and shares its cache among requests; this is an executor without them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from lpx.errors import ConfigError
from lpx.options import EngineOptions
from lpx.runtime.memory import FLOAT_TYPES

if TYPE_CHECKING:
    from lpx.model.config import WeightTensor
    from lpx.model.files import ModelFiles
    from lpx.model.tokenizer import Tokenizer
    from lpx.runtime.cpu.executor import CpuExecutor
    from lpx.runtime.memory import MemoryPlan
    from lpx.runtime.options import RuntimeOptions
    from lpx.runtime.step import ExecutorInfo

_ROWS = 64  # of one step
_LOGITS = 8 << 20  # numbers that are held at once: 32 MiB


class ScoredModel:
    """Owns an executor; a context manager. Not thread-safe."""

    def __init__(self, options: EngineOptions, window: int, *, dequantize: bool = False) -> None:
        """Open the files of `options.model`; weights are loaded by `load`.

        `window` is the longest sequence in tokens. With `dequantize`, quantized matrices run as F16: then activations
        stay floats, and nothing but what is asked about differs between two configurations of a file.

        Raises ConfigError for a window that is longer than the model's context, and what `open_model` raises.
        """
        from lpx.model.files import open_model, resolve_model
        from lpx.model.models_dir import models_dir
        from lpx.model.tokenizer import load_tokenizer

        self.options = options
        self.window = window
        self.path = resolve_model(options.model, models_dir(options.models_dir))
        opened = open_model(self.path, max_model_len=window)
        try:
            if window > opened.config.max_position:
                raise ConfigError(
                    f"a window of {window} tokens is more than the {opened.config.max_position} positions that "
                    f"{self.path.name} was made for: take a smaller --window"
                )
            self.tokenizer: Tokenizer = load_tokenizer(opened, pre_tokenizer=options.tokenizer_pre)
            opened.forget_tokenizer_source()
        except BaseException:
            opened.close()
            raise
        self.config = opened.config
        self.vocab_size = opened.config.vocab_size  # of the distributions
        self.weight_types = dict(opened.weight_types)
        self._opened = opened
        self._files = cast("ModelFiles", _FloatFiles(opened)) if dequantize else opened
        self._executor: CpuExecutor | None = None
        self._info: ExecutorInfo | None = None

    def plan(self, available: int | None = None) -> MemoryPlan:
        """What `load` would take. Raises MemoryLimitError and ConfigError as `plan_memory` does."""
        from lpx.runtime.memory import plan_memory

        return plan_memory(self._files, self._runtime_options(), available=available)

    def load(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Load the weights, unless they are; `progress(done, total)` in bytes."""
        from lpx.runtime.cpu.executor import CpuExecutor

        if self._executor is None:
            self._executor = CpuExecutor.load(self._files, self._runtime_options(), progress)
            self._info = self._executor.info

    def unload(self) -> None:
        """Free the weights; `load` may be called again."""
        if self._executor is not None:
            self._cpu.close()
            self._executor = None

    @property
    def is_loaded(self) -> bool:
        return self._executor is not None

    @property
    def info(self) -> ExecutorInfo:
        """What is really in use, or was before the weights were freed. Raises RuntimeError before `load`."""
        if self._info is None:
            raise RuntimeError("the model's weights are not loaded")
        return self._info

    def logits(self, token_ids: Sequence[int]) -> Iterator[NDArray[np.float32]]:
        """Blocks of rows, float32 [rows, vocab], over all positions of one sequence of at most `window` ids."""
        from lpx.runtime.step import SequenceInput, StepBatch

        cpu = self._cpu
        rows = max(1, min(_ROWS, _LOGITS // self.vocab_size))
        blocks = list(range(-(-len(token_ids) // cpu.info.block_size)))
        for start in range(0, len(token_ids), rows):
            ids = list(token_ids[start : start + rows])
            sequence = SequenceInput(
                token_ids=ids, start_position=start, block_table=blocks, score_targets=[0] * len(ids)
            )
            yield cpu.logits(StepBatch([sequence]))

    def close(self) -> None:
        self.unload()
        self._opened.close()

    def __enter__(self) -> ScoredModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _cpu(self) -> CpuExecutor:
        if self._executor is None:
            raise RuntimeError("the model's weights are not loaded")
        return self._executor

    def _runtime_options(self) -> RuntimeOptions:
        from lpx.runtime.options import RuntimeOptions

        return RuntimeOptions(
            threads=self.options.threads,
            isa=self.options.isa,
            quantization=self.options.quantization,
            kv_cache_dtype=self.options.kv_cache_dtype,
            max_model_len=self.window,
            max_num_seqs=1,
            max_num_batched_tokens=min(_ROWS, self.window),
        )


class _FloatFiles:
    """Model files with their quantized matrices as F16."""

    def __init__(self, files: ModelFiles) -> None:
        self._files = files

    def __getattr__(self, name: str) -> object:
        return getattr(self._files, name)

    def matrix_shapes(self) -> list[tuple[str, str, tuple[int, int]]]:
        return [
            (name, kind if kind in FLOAT_TYPES else "F16", shape) for name, kind, shape in self._files.matrix_shapes()
        ]

    def weights(self) -> Iterator[WeightTensor]:
        from lpx import _native

        for weight in self._files.weights():
            if len(weight.shape) == 2 and weight.type not in FLOAT_TYPES:
                rows = _native.decode_rows(weight.type, weight.shape[1], weight.data)
                data = rows.astype(np.float16).view(np.uint8).reshape(-1)
                weight = dataclasses.replace(weight, type="F16", data=data, mapped=False)
            yield weight
