"""Whole next-token distributions from LPX's executor, row by row."""

import numpy as np

from lpx.model.files import open_model
from lpx.model.tokenizer import load_tokenizer
from lpx.runtime.cpu.executor import CpuExecutor
from lpx.runtime.options import RuntimeOptions
from lpx.runtime.step import SequenceInput, StepBatch


class LpxRows:
    """A model, its tokenizer and its executor; a context manager."""

    def __init__(self, path, window, threads=None, isa=None):
        self._files = open_model(path)
        self._tokenizer = load_tokenizer(self._files)
        self.bos_id, self.add_bos = self._tokenizer.bos_id, self._tokenizer.add_bos
        options = RuntimeOptions(
            threads=threads,
            isa=isa,
            quantization=None,
            kv_cache_memory=None,
            max_model_len=window,
            max_num_seqs=1,
            max_num_batched_tokens=window,
        )
        self._executor = CpuExecutor.load(self._files, options)
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

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._executor.close()
        self._files.close()
