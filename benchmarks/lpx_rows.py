"""Whole next-token distributions from LPX's executor, row by row."""

import dataclasses

import numpy as np

from lpx import _native
from lpx.model.files import open_model
from lpx.model.tokenizer import load_tokenizer
from lpx.runtime.cpu.executor import CpuExecutor
from lpx.runtime.options import RuntimeOptions
from lpx.runtime.step import SequenceInput, StepBatch


class LpxRows:
    """A model, its tokenizer and its executor; a context manager. With `float_weights` its matrices are dequantized to
    F16, and activations stay floats."""

    def __init__(self, path, window, threads=None, isa=None, kv_cache_dtype="auto", float_weights=False):
        self._files = open_model(path)
        self._tokenizer = load_tokenizer(self._files)
        self.bos_id, self.add_bos = self._tokenizer.bos_id, self._tokenizer.add_bos
        options = RuntimeOptions(
            threads=threads,
            isa=isa,
            quantization=None,
            kv_cache_memory=None,
            kv_cache_dtype=kv_cache_dtype,
            max_model_len=window,
            max_num_seqs=1,
            max_num_batched_tokens=window,
        )
        self._executor = CpuExecutor.load(_FloatFiles(self._files) if float_weights else self._files, options)
        self.isa = self._executor.info.isa

    def encode(self, text):
        return self._tokenizer.encode(text, add_special=False)

    def log_probs(self, window, rows=64):
        """Yields float64 [vocab] of every position, `rows` positions a step."""
        blocks = list(range(-(-len(window) // self._executor.info.block_size)))
        for start in range(0, len(window), rows):
            ids = window[start : start + rows]
            sequence = SequenceInput(
                token_ids=ids, start_position=start, block_table=blocks, score_targets=[0] * len(ids)
            )
            for logits in self._executor.logits(StepBatch([sequence])):
                shifted = logits.astype(np.float64) - logits.max()
                yield shifted - np.log(np.exp(shifted).sum())

    def close(self):
        self._executor.close()
        self._files.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class _FloatFiles:
    """Model files with their matrices as F16."""

    def __init__(self, files):
        self._files = files

    def __getattr__(self, name):
        return getattr(self._files, name)

    def matrix_shapes(self):
        return [(name, "F16", shape) for name, _, shape in self._files.matrix_shapes()]

    def weights(self):
        for weight in self._files.weights():
            if len(weight.shape) == 2:
                rows = _native.decode_rows(weight.type, weight.shape[1], weight.data)
                weight = dataclasses.replace(
                    weight, type="F16", data=rows.astype(np.float16).view(np.uint8).reshape(-1), mapped=False
                )
            yield weight
