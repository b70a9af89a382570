"""Runs an executor through the step contract and collects whole next-token distributions."""

import numpy as np

from lpx.runtime.step import SamplerSettings, SequenceInput, StepBatch


def full_row(top, vocab_size):
    """[vocab] from (id, log-probability) pairs that name every id once."""
    row = np.full(vocab_size, np.nan)
    for token_id, value in top:
        row[token_id] = value
    assert not np.isnan(row).any(), "the executor left tokens out"
    return row


class Stream:
    """One sequence that is fed piece by piece; rows of log-probabilities collect in `rows`."""

    def __init__(self, vocab_size, block_table):
        self.vocab_size = vocab_size
        self.block_table = block_table
        self.position = 0
        self.rows = []

    def feed(self, token_ids):
        """The next prompt chunk, every row scored."""
        return self._input(token_ids, score_targets=[0] * len(token_ids), score_logprobs=self.vocab_size)

    def decode(self, token_id):
        """One token, its successor sampled greedily with all log-probabilities."""
        return self._input([token_id], sample_rows=1, sampling=SamplerSettings(), logprobs=self.vocab_size)

    def _input(self, token_ids, **wanted):
        start, self.position = self.position, self.position + len(token_ids)
        return SequenceInput(token_ids=list(token_ids), start_position=start, block_table=self.block_table, **wanted)

    def take(self, output):
        assert output.error is None
        for score in (output.scores or []) + (output.logprobs or []):
            self.rows.append(full_row(score.top, self.vocab_size))


def run_step(executor, pairs):
    """Runs (stream, input) pairs as one batch."""
    result = executor.step(StepBatch([item for _, item in pairs]))
    for (stream, _), output in zip(pairs, result.sequences, strict=True):
        stream.take(output)
    return result


def blocks_for(executor, tokens, first=0, stride=1):
    """A block table for `tokens` positions: `first`, `first + stride`, …"""
    count = -(-tokens // executor.info.block_size)
    table = [first + stride * i for i in range(count)]
    assert max(table) < executor.info.num_blocks
    return table


def stored_kv(executor, config, block_table, tokens):
    """Per layer, the keys and values [tokens, KV heads, head size] that the cache holds of a sequence."""
    heads = config.get("num_key_value_heads") or config["num_attention_heads"]
    blocks = block_table[: -(-tokens // executor.info.block_size)]

    def of_layer(layer):
        kv = [[executor._decoder.kv_block(b, layer, head) for b in blocks] for head in range(heads)]
        return tuple(
            np.stack([np.concatenate([block[i] for block in of_head]) for of_head in kv], axis=1)[:tokens]
            for i in range(2)
        )

    return [of_layer(layer) for layer in range(config["num_hidden_layers"])]


def prompt_log_probs(executor, vocab_size, token_ids, chunk=None):
    """[tokens, vocab] of one prompt, `chunk` tokens a step (default: all)."""
    stream = Stream(vocab_size, blocks_for(executor, len(token_ids)))
    size = chunk or len(token_ids)
    for start in range(0, len(token_ids), size):
        run_step(executor, [(stream, stream.feed(token_ids[start : start + size]))])
    return np.array(stream.rows)
