"""Steps on the processor: loads weights into the native decoder and runs it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lpx import _native
from lpx.errors import ConfigError, ModelFileError
from lpx.plain_text import utf8_text
from lpx.runtime.cpu.flat_step import FlatStep
from lpx.runtime.cpu.topology import describe_crowding
from lpx.runtime.kv_quality import describe_kv_loss
from lpx.runtime.memory import MemoryPlan, native_config, plan_memory, quantize_bits
from lpx.runtime.step import ExecutorInfo, StepBatch, StepResult

if TYPE_CHECKING:
    from lpx.model.config import WeightTensor
    from lpx.model.files import ModelFiles
    from lpx.runtime.options import RuntimeOptions

_LOG = logging.getLogger(__name__)
_BATCH_BYTES = 32 << 20


class CpuExecutor:
    """Implements `lpx.runtime.step.Executor` with the native decoder. Not thread-safe: one caller at a time."""

    def __init__(
        self, decoder: _native.Decoder, info: ExecutorInfo, vocab_size: int, max_model_len: int, windows: Sequence[int]
    ) -> None:
        self._decoder: _native.Decoder | None = decoder
        self._info = info
        self._vocab_size = vocab_size
        self._windows = windows  # of each layer, in tokens; 0: the whole context
        self.max_model_len = max_model_len

    @classmethod
    def load(
        cls,
        files: ModelFiles,
        options: RuntimeOptions,
        progress: Callable[[int, int], None] | None = None,
        plan: MemoryPlan | None = None,
    ) -> CpuExecutor:
        """Plan memory unless that was done (`plan`), then read and pack every weight of `files`.

        `progress(done, total)` is called with bytes of the file. Raises MemoryLimitError before anything is loaded,
        ConfigError for options that cannot be honoured, and ModelFileError for tensors that do not fit the model.
        """
        plan = plan or plan_memory(files, options)
        config = files.config
        if (loss := describe_kv_loss(config, plan.kv_cache_dtype)) is not None:
            _LOG.warning("%s", loss)
        if (crowding := describe_crowding(plan.threads)) is not None:
            _LOG.warning("%s", crowding)
        try:
            decoder = _native.Decoder(
                config=native_config(config),
                threads=plan.threads,
                isa=utf8_text(options.isa or ""),
                max_rows=options.max_num_batched_tokens,
                max_model_len=plan.max_model_len,
                kv_blocks=plan.num_blocks,
                key_type=plan.kv_types[0],
                value_type=plan.kv_types[1],
            )
        except ValueError as error:
            raise ConfigError(str(error)) from error
        total = sum(files.weight_types.values())
        done = 0
        packed: dict[str, int] = {}
        for batch in _batches(files.weights()):
            packings = [_packing(weight, options.quantization) for weight in batch]
            try:
                decoder.set_weights(packings)
            except ValueError as error:
                raise ModelFileError(f"{files.path}: {error}") from error
            for _, stored, rows, cols, data, _, bits, _ in packings:
                kind = {8: "q8", 4: "q4"}.get(bits, stored)
                packed[kind] = packed.get(kind, 0) + _native.PackedMatrix.packed_bytes(stored, rows, cols, bits)
                done += data.nbytes
            if progress is not None:
                progress(min(done, total), total)
        try:
            decoder.finish()
        except ValueError as error:
            raise ModelFileError(f"{files.path}: {error}") from error
        windows = [layer.window for layer in config.layers]
        info = _info(decoder, plan, packed, config.hidden_size)
        return cls(decoder, info, config.vocab_size, plan.max_model_len, windows)

    @property
    def info(self) -> ExecutorInfo:
        return self._info

    def step(self, batch: StepBatch) -> StepResult:
        """Run one step. Raises ValueError for ids, positions or blocks out of range, before anything is written.

        A sequence whose logits are not finite gets an `error`; the others are unaffected.
        """
        flat = FlatStep(batch, self._vocab_size, self._info.hidden_size)
        return flat.results(self._open().step(**flat.rows, **flat.sampling, **flat.following, **flat.pooling))

    def logits(self, batch: StepBatch) -> NDArray[np.float32]:
        """The step's logits [rows that sample or are scored, vocab] instead of its samples."""
        return self._open().logits(**FlatStep(batch, self._vocab_size).rows)

    def populate_kv(self, first: int, count: int) -> bool:
        """As `Executor.populate_kv`; needs Linux 5.14. Raises IndexError for blocks outside of the cache."""
        return self._open().populate_kv(first, count)

    def set_profiling(self, on: bool) -> None:
        """Start (or stop) measuring where steps spend their time; costs a clock reading per phase."""
        self._open().set_profiling(on)

    def step_profile(self) -> dict[str, float]:
        """Seconds per phase on the first thread since profiling was switched on."""
        return self._open().profile()

    def kv_bytes_read(self, context: float) -> float:
        """Bytes of keys and values that one row reads when it sees `context` tokens, itself included."""
        info = self._info
        per_layer = info.kv_bytes / (info.num_blocks * info.block_size * len(self._windows))
        return per_layer * sum(min(context, window or context) for window in self._windows)

    def close(self) -> None:
        """Free weights, KV cache and threads; idempotent."""
        self._decoder = None

    def _open(self) -> _native.Decoder:
        if self._decoder is None:
            raise RuntimeError("the executor is closed")
        return self._decoder


def _batches(weights: Iterator[WeightTensor]) -> Iterator[list[WeightTensor]]:
    """Weights that are packed by one native call: while it runs, other threads have Python to themselves."""
    batch: list[WeightTensor] = []
    size = 0
    for weight in weights:
        batch.append(weight)
        size += weight.data.nbytes
        if size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _packing(weight: WeightTensor, quantization: str | None) -> _native.Weight:
    """The arguments of the native core for one weight."""
    if len(weight.shape) == 1:
        rows, cols, bits = 1, weight.shape[0], 0
    else:
        rows, cols, bits = *weight.shape, quantize_bits(weight.name, weight.type, quantization)
    return weight.name, weight.type, rows, cols, weight.data, weight.row_map, bits, weight.mapped


def _info(decoder: _native.Decoder, plan: MemoryPlan, packed: dict[str, int], hidden_size: int) -> ExecutorInfo:
    total = sum(packed.values())
    shares = sorted(packed.items(), key=lambda item: -item[1])
    return ExecutorInfo(
        device="cpu",
        isa=decoder.isa,
        threads=plan.threads,
        quantization=", ".join(f"{kind} {max(1, round(100 * part / total))}%" for kind, part in shares),
        kv_cache_dtype=plan.kv_cache_dtype,
        block_size=plan.block_size,
        num_blocks=plan.num_blocks,
        weight_bytes=decoder.weight_bytes,
        kv_bytes=decoder.kv_bytes,
        work_bytes=plan.work_bytes,
        bytes_per_token=decoder.bytes_per_row_step,
        hidden_size=hidden_size,
        drafts=True,
    )
