"""A model small enough to reason about, and strict: for tests of the engine without weights.

The next token is a pure function of the whole history of tokens, read through the block table out of the executor's
own memory. Each slot keeps a fingerprint of everything before it, so a wrong block table, a wrong position, a stale or
foreign block, or a row that was never computed raises instead of going unnoticed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lpx.runtime.step import ExecutorInfo, SequenceInput, SequenceOutput, StepBatch, StepResult, TokenLogprobs

MASK = 2**64 - 1
HIDDEN = 6  # numbers of a hidden state
BOS, EOS, END_OF_TURN = 256, 257, 258


def mix(state: int, *values: int) -> int:
    for value in values:
        state = (state + value + 0x9E3779B97F4A7C15) & MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK
        state ^= state >> 31
    return state


def expected_tokens(prompt: Sequence[int], count: int, *, temperature: float = 0.0, seed: int = 0) -> list[int]:
    """What the fake model generates after `prompt`, worked out without engine, blocks or steps."""
    fingerprint = 0
    for position, token_id in enumerate(prompt):
        fingerprint = mix(fingerprint, position, token_id)
    generated: list[int] = []
    while len(generated) < count:
        position = len(prompt) + len(generated)
        state = mix(fingerprint, seed, position) if temperature > 0 else fingerprint
        generated.append(32 + mix(state, 0) % 95)
        fingerprint = mix(fingerprint, position, generated[-1])
    return generated


def expected_scores(prompt: Sequence[int]) -> list[float]:
    """Log-probability of each prompt token but the first."""
    fingerprint, scores = 0, []
    for position, token_id in enumerate(prompt):
        if position:
            scores.append(fake_logprob(fingerprint, token_id))
        fingerprint = mix(fingerprint, position, token_id)
    return scores


def fake_logprob(fingerprint: int, token_id: int) -> float:
    return -(mix(fingerprint, token_id) % 10_000) / 1000


def fake_hidden(fingerprint: int) -> NDArray[np.float64]:
    return np.array([mix(fingerprint, index) % 2001 / 1000 - 1 for index in range(HIDDEN)])


def expected_hidden(prompt: Sequence[int]) -> list[NDArray[np.float64]]:
    """The hidden state behind each token of a prompt."""
    fingerprint, states = 0, []
    for position, token_id in enumerate(prompt):
        fingerprint = mix(fingerprint, position, token_id)
        states.append(fake_hidden(fingerprint))
    return states


class ByteTokenizer:
    """Token ids 0 to 255 are bytes; then begin, end and end of turn."""

    vocab_size = 259
    bos_id = BOS
    eos_ids = frozenset({EOS})

    def __init__(self, add_bos: bool = False) -> None:
        self.add_bos = add_bos
        self.special_texts = {"bos_token": f"<{BOS}>", "eos_token": f"<{EOS}>"}

    def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        return ([BOS] if self.add_bos and add_special else []) + list(text.encode())

    def encode_continuation(self, text: str) -> list[int]:
        return list(text.encode())

    def split_markers(self, text: str) -> list[int | str]:
        return [text]

    def vocabulary_bytes(self) -> list[bytes]:
        return [self.token_bytes(i) for i in range(self.vocab_size)]

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        return b"".join(b"" if skip_special and self.is_control(i) else self.token_bytes(i) for i in ids).decode(
            errors="replace"
        )

    def token_bytes(self, token_id: int, *, skip_special: bool = False) -> bytes:
        if skip_special and self.is_control(token_id):
            return b""
        return bytes([token_id]) if token_id < 256 else f"<{token_id}>".encode()

    def token_text(self, token_id: int) -> str:
        return self.token_bytes(token_id).decode(errors="replace")

    def is_control(self, token_id: int) -> bool:
        return token_id >= 256


class LineTemplate:
    """One line a message; enough of a chat template for the engine."""

    source = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"

    def encode(self, messages: list[dict[str, str]], *, add_generation_prompt: bool = True, **_: object) -> list[int]:
        text = "".join(f"{message['role']}: {message['content']}\n" for message in messages)
        return list((text + ("assistant: " if add_generation_prompt else "")).encode())


@dataclass
class StepRecord:
    """What one step was asked: (first position, rows, sampled rows) of each sequence."""

    rows: list[tuple[int, int, int]] = field(default_factory=list)

    @property
    def total(self) -> int:
        return sum(count for _, count, _ in self.rows)


class FakeExecutor:
    """See the module. `choose` replaces the next-token function; printable bytes by default, never an end token."""

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        block_size: int = 4,
        budget: int | None = None,
        choose: Callable[[list[int]], int | str] | None = None,
        poisoned: int | None = None,
        fail_at_step: int | None = None,
        before_step: Callable[[int], None] | None = None,
    ) -> None:
        self.info = ExecutorInfo(
            "cpu", "fake", 1, "F32 100%", "f16", block_size, num_blocks, 1000, num_blocks * block_size, 10, 1000, HIDDEN
        )
        self.budget = budget
        self.choose = choose
        self.poisoned = poisoned  # a sequence whose history holds this id reports an error
        self.fail_at_step = fail_at_step
        self.before_step = before_step
        self.window = 0  # of penalties, in tokens; 0: they look at all
        self.steps: list[StepRecord] = []
        self.populates = True
        self.populated: list[tuple[int, int]] = []  # first block and count of each call
        self.closed = 0
        self._slots: list[tuple[int, int, int] | None] = [None] * (num_blocks * block_size)

    def step(self, batch: StepBatch) -> StepResult:
        assert not self.closed, "step after close"
        if self.before_step is not None:
            self.before_step(len(self.steps))
        if self.fail_at_step == len(self.steps):
            raise RuntimeError("injected device fault")
        self.steps.append(StepRecord([(s.start_position, len(s.token_ids), s.sample_rows) for s in batch.sequences]))
        assert self.budget is None or self.steps[-1].total <= self.budget, "token budget exceeded"
        written: set[int] = set()
        for sequence in batch.sequences:
            mine = self._write(sequence)
            assert not mine & written, "two sequences write to the same block"
            written |= mine
        return StepResult([self._read(sequence) for sequence in batch.sequences])

    def populate_kv(self, first: int, count: int) -> bool:
        assert not self.closed, "populate_kv after close"
        self.populated.append((first, count))
        return self.populates

    def close(self) -> None:
        self.closed += 1

    def _slot(self, sequence: SequenceInput, position: int) -> int:
        size = self.info.block_size
        return sequence.block_table[position // size] * size + position % size

    def _write(self, sequence: SequenceInput) -> set[int]:
        assert len(sequence.token_ids) > 0, "a sequence without rows"
        blocks = set()
        for position, token_id in enumerate(sequence.token_ids, sequence.start_position):
            before = 0
            if position:
                previous = self._slots[self._slot(sequence, position - 1)]
                assert previous is not None
                assert previous[0] == position - 1, f"position {position} follows {previous[0]}"
                before = previous[2]
            slot = self._slot(sequence, position)
            self._slots[slot] = (position, token_id, mix(before, position, token_id))
            blocks.add(slot // self.info.block_size)
        return blocks

    def _history(self, sequence: SequenceInput, end: int) -> tuple[list[int], int]:
        """Tokens of positions 0 to `end` - 1 and their fingerprint, checked slot by slot."""
        tokens, fingerprint = [], 0
        for position in range(end):
            held = self._slots[self._slot(sequence, position)]
            assert held is not None, f"position {position} was never computed"
            fingerprint = mix(fingerprint, position, held[1])
            assert (held[0], held[2]) == (position, fingerprint), f"foreign or stale KV at position {position}"
            tokens.append(held[1])
        return tokens, fingerprint

    def _read(self, sequence: SequenceInput) -> SequenceOutput:
        end = sequence.start_position + len(sequence.token_ids)
        tokens, _ = self._history(sequence, end)
        if self.poisoned is not None and self.poisoned in tokens:
            return SequenceOutput([], None, None, error="not a number")
        sampled: list[int] = []
        logprobs: list[TokenLogprobs] | None = None if sequence.logprobs is None else []
        for position in range(end - sequence.sample_rows + 1, end + 1):
            seen, fingerprint = self._history(sequence, position)
            drafted = position - (end - sequence.sample_rows + 1)
            sampled.append(self._sample(sequence, seen, fingerprint, position, drafted))
            if logprobs is not None and sequence.logprobs is not None:
                logprobs.append(self._score(fingerprint, sampled[-1], sequence.logprobs))
        scores: list[TokenLogprobs | None] | None = None
        if len(sequence.score_targets):
            assert len(sequence.score_targets) == len(sequence.token_ids)
            scores = []
            for position, target in enumerate(sequence.score_targets, sequence.start_position):
                _, at = self._history(sequence, position + 1)
                scores.append(None if target < 0 else self._score(at, target, sequence.score_logprobs))
        return SequenceOutput(sampled, logprobs, scores, pool_sum=self._pool(sequence))

    def _pool(self, sequence: SequenceInput) -> NDArray[np.float64] | None:
        if sequence.pool_rows is None:
            return None
        pooled = np.zeros(HIDDEN) if sequence.pool_sum is None else sequence.pool_sum.copy()
        for row in range(*sequence.pool_rows):
            _, fingerprint = self._history(sequence, sequence.start_position + row + 1)
            pooled += fake_hidden(fingerprint)
        return pooled

    def _sample(self, sequence: SequenceInput, tokens: list[int], fingerprint: int, position: int, drafted: int) -> int:
        settings = sequence.sampling
        assert settings is not None
        if settings.needs_history:
            history = [*sequence.prompt_ids, *sequence.output_ids]
            expected = tokens[: len(tokens) - drafted]
            assert history == (expected[-self.window :] if self.window else expected), "wrong history for penalties"
        certain = [token_id for token_id, bias in settings.logit_bias.items() if bias >= 100]
        if certain:
            return certain[0]
        state = fingerprint
        if settings.temperature > 0:
            state = mix(state, settings.seed, position)
        allowed: list[int] | None = None
        if sequence.masks is not None:
            assert sequence.masks.shape == (sequence.sample_rows, 9), "a mask for each row, a bit for each id"
            allowed = [i for i in range(259) if sequence.masks[drafted, i // 32] >> (i % 32) & 1]
            allowed = [i for i in allowed if i not in sequence.banned_ids] or allowed
            assert allowed, "nothing is allowed"
        for attempt in range(1000):
            token_id: int | str
            if self.choose is not None and attempt == 0:
                token_id = self.choose(tokens)
            else:
                token_id = 32 + mix(state, attempt) % 95
            token_id = ord(token_id) if isinstance(token_id, str) else token_id
            if allowed is not None:
                return token_id if token_id in allowed else allowed[mix(state, attempt) % len(allowed)]
            if token_id not in sequence.banned_ids and settings.logit_bias.get(token_id, 0) > -100:
                return token_id
        raise AssertionError("every token is banned")

    def _score(self, fingerprint: int, token_id: int, count: int) -> TokenLogprobs:
        logprobs = [fake_logprob(fingerprint, candidate) for candidate in range(259)] if count else []
        ranked = sorted(range(len(logprobs)), key=lambda candidate: (-logprobs[candidate], candidate))
        return TokenLogprobs(
            token_id,
            fake_logprob(fingerprint, token_id),
            ranked.index(token_id) + 1 if ranked else 1,
            [(candidate, logprobs[candidate]) for candidate in ranked[:count]],
        )


class FollowingExecutor(FakeExecutor):
    """Runs `more_steps`, each with the ids that the one before sampled, as the native core does."""

    def step(self, batch: StepBatch) -> StepResult:
        result = super().step(StepBatch(batch.sequences))
        assert not batch.more_steps or all(row.masks is None for row in batch.sequences), "a mask holds for one step"
        rows, made = batch.sequences, [list(output.sampled_ids) for output in result.sequences]
        for _ in range(batch.more_steps):
            if any(ids[-1] in row.stop_ids for row, ids in zip(rows, made, strict=True)):
                break
            following = [
                SequenceInput(
                    ids[-1:], row.start_position + len(ids), row.block_table, sample_rows=1, sampling=row.sampling
                )
                for row, ids in zip(rows, made, strict=True)
            ]
            for ids, output in zip(made, super().step(StepBatch(following)).sequences, strict=True):
                ids.extend(output.sampled_ids)
        return StepResult([SequenceOutput(ids, None, None) for ids in made])
