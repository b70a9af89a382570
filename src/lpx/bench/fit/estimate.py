"""Memory and the limit of speed for every precision of a model on one target.

The limit of decoding is the bandwidth over the bytes of a token: weights that a step reads, and the keys and values of
the context. It is a limit, not a promise; `lpx bench latency` shows how near the engine comes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from lpx.bench.fit.precisions import (
    PRECISIONS,
    Matrix,
    in_whole_blocks,
    matrices_at,
    packed_bytes,
    read_share,
    stored_bytes,
)
from lpx.bench.fit.subject import FitModel
from lpx.bench.fit.target import FitTarget
from lpx.errors import ConfigError
from lpx.model.config import ModelConfig

KV_TYPES = ("f16", "q8")
_MOST_STREAMS = 65_536
_USUAL_CONTEXT = 4096
_BATCHED_TOKENS = 512  # default of --max-num-batched-tokens

# The interpreter with what LPX imports, and a tokenizer by its vocabulary: what processes held, after work, beyond
# weights, cache in use and planned work buffers, for vocabularies from 49,152 to 262,144 tokens.
_PROCESS_BYTES = 40_000_000
_BYTES_PER_TOKEN_OF_VOCABULARY = 165


@dataclass(frozen=True, slots=True)
class FitRow:
    """One precision of the weights with one type of the KV cache."""

    precision: str  # "file", or a name of `PRECISIONS`
    kv_cache_dtype: str
    weight_bytes: int
    kv_bytes_per_token: float
    buffer_bytes: int  # work buffers for the context asked for
    process_bytes: int  # Python and the tokenizer; on a card nothing
    needed_bytes: int  # for one stream of the context asked for
    fits: bool
    longest_context: int  # tokens of one stream; 0: not even the weights fit
    streams: int  # of the context asked for
    tokens_per_second: float | None  # at most, of one stream at the beginning
    tokens_per_second_at_context: float | None  # at most, of one stream at the end of the context asked for


@dataclass(frozen=True, slots=True)
class FitReport:
    model: FitModel
    target: FitTarget
    context: int  # tokens of prompt and answer together
    rows: tuple[FitRow, ...]

    @property
    def best_fit(self) -> FitRow | None:
        """The most precise row that fits; the file's own counts first."""
        return next((row for row in self.rows if row.fits), None)

    def to_json(self) -> dict[str, Any]:
        """Everything as plain values, what is said about it included."""
        model, config, gpu = self.model, self.model.config, self.target.gpu
        return {
            "model": {
                "name": model.name,
                "own_name": model.own_name,
                "origin": model.origin,
                "path": None if model.path is None else str(model.path),
                "architecture": config.architecture,
                "parameters": model.parameters,
                "num_layers": config.num_layers,
                "num_kv_heads": config.num_kv_heads,
                "head_dim": config.head_dim,
                "max_position": config.max_position,
                "file_bytes": model.file_bytes,
                "notes": list(model.notes),
            },
            "target": {
                **{key: value for key, value in asdict(self.target).items() if key != "gpu"},
                "gpu": None if gpu is None else {**asdict(gpu), "capabilities": asdict(gpu.capabilities)},
            },
            "context": self.context,
            "rows": [asdict(row) for row in self.rows],
            "advice": advice(self),
        }


def estimate_fit(model: FitModel, target: FitTarget, context: int | None = None) -> FitReport:
    """All precisions with all types of cache. `context` defaults to 4,096 tokens, or what the model was made for.

    Raises ConfigError for a context that the model does not have, and UnsupportedModelError for sizes that the kernels
    cannot do.
    """
    config = model.config
    if context is None:
        context = min(_USUAL_CONTEXT, config.max_position)
    elif not 1 <= context <= config.max_position:
        raise ConfigError(
            f"--max-model-len {context} must be from 1 to {config.max_position}, the positions that {model.name} was "
            "made for"
        )
    choices: list[tuple[str, list[Matrix]]] = [("file", list(model.matrices))] if model.matrices else []
    made = [(precision.name, matrices_at(config, precision)) for precision in PRECISIONS]
    choices += [(name, matrices) for name, matrices in made if in_whole_blocks(matrices)]
    rows = [
        _row(model, target, name, matrices, kv_cache_dtype, context)
        for name, matrices in choices
        for kv_cache_dtype in KV_TYPES
    ]
    return FitReport(model, target, context, tuple(rows))


def advice(report: FitReport) -> list[str]:
    """Sentences: what does not fit and what would."""
    target, rows = report.target, report.rows
    best = report.best_fit
    context = f"{report.context:,} tokens"
    if best is None:
        least = min(rows, key=lambda row: row.needed_bytes)
        spare = target.usable_bytes - (least.needed_bytes - least.weight_bytes)
        told = [
            f"Nothing fits for {context}: {_called(least)} needs {in_gib(least.needed_bytes)}, and "
            f"{in_gib(target.usable_bytes)} can be had."
        ]
        if least.longest_context:
            told.append(f"It fits for up to {least.longest_context:,} tokens: lower --max-model-len.")
        elif spare > 0:
            size = report.model.parameters * spare / least.weight_bytes
            told.append(f"In this precision a model of about {in_parameters(size)} parameters would fit.")
        return told
    told = []
    missing = _missing(rows)
    if missing:
        told.append(f"Does not fit for {context}: {', '.join(missing)}; {in_gib(target.usable_bytes)} can be had.")
        told.append(f"The most precise that fits: {_called(best)}.")
    if best.longest_context < report.model.config.max_position:
        longest = max(rows, key=lambda row: row.longest_context)
        told.append(
            f"Memory limits the context of {_called(best)} to {best.longest_context:,} of "
            f"{report.model.config.max_position:,} tokens"
            + (f"; {_called(longest)} has {longest.longest_context:,}." if longest is not best else ".")
        )
    return told


def _missing(rows: tuple[FitRow, ...]) -> list[str]:
    """What does not fit: a precision with its smallest need, or with the one cache that is too large."""
    found = []
    for precision in dict.fromkeys(row.precision for row in rows):
        own = [row for row in rows if row.precision == precision]
        failing = [row for row in own if not row.fits]
        if failing and len(failing) == len(own):
            least = min(failing, key=lambda row: row.needed_bytes)
            found.append(f"{_weights(least)} (at least {in_gib(least.needed_bytes)})")
        else:
            found += [f"{_called(row)} ({in_gib(row.needed_bytes)})" for row in failing]
    return found


def in_gib(count: float) -> str:
    return f"{count / 2**30:,.2f} GiB" if count >= 2**30 else f"{count / 2**20:,.0f} MiB"


def in_parameters(count: float) -> str:
    return f"{count / 1e9:.3g}B" if count >= 1e9 else f"{count / 1e6:.3g}M"


def _called(row: FitRow) -> str:
    return f"{_weights(row)} with a cache of {row.kv_cache_dtype}"


def _weights(row: FitRow) -> str:
    return "the file as it is" if row.precision == "file" else row.precision


def _row(
    model: FitModel, target: FitTarget, name: str, matrices: list[Matrix], kv_cache_dtype: str, context: int
) -> FitRow:
    from lpx import _native
    from lpx.runtime.memory import native_config

    config = model.config
    native = native_config(config)
    on_card = target.kind == "gpu"
    weights = int(model.scale * (stored_bytes(matrices) if on_card else packed_bytes(matrices, config)))
    block_bytes, block_size = native.kv_block_bytes(kv_cache_dtype, kv_cache_dtype), _native.KV_BLOCK_SIZE
    process = 0 if on_card else _PROCESS_BYTES + _BYTES_PER_TOKEN_OF_VOCABULARY * config.vocab_size

    def buffers(tokens: int) -> int:
        if on_card:
            return card_buffer_bytes(config)
        return native.work_bytes(max_rows=_BATCHED_TOKENS, max_model_len=tokens, threads=target.threads or 1)

    def needed(tokens: int) -> int:
        return weights + process + buffers(tokens) + -(-tokens // block_size) * block_bytes

    spare = target.usable_bytes - (weights + process + buffers(context))
    longest = _largest(config.max_position, lambda tokens: needed(tokens) <= target.usable_bytes)
    read = weights * read_share(matrices)
    kv_per_token = block_bytes / block_size
    return FitRow(
        precision=name,
        kv_cache_dtype=kv_cache_dtype,
        weight_bytes=weights,
        kv_bytes_per_token=kv_per_token,
        buffer_bytes=buffers(context),
        process_bytes=process,
        needed_bytes=needed(context),
        fits=needed(context) <= target.usable_bytes,
        longest_context=longest,
        streams=max(0, min(_MOST_STREAMS, spare // (-(-context // block_size) * block_bytes))),
        tokens_per_second=_rate(target, read),
        tokens_per_second_at_context=_rate(target, read + _kv_bytes_read(config, kv_per_token, context)),
    )


def card_buffer_bytes(config: ModelConfig) -> int:
    """Activations of a step in f16 and logits in f32, about: what an engine on a card keeps beside the rest."""
    activations = _BATCHED_TOKENS * (6 * config.hidden_size + 3 * config.intermediate_size) * 2
    return activations + 64 * config.vocab_size * 4


def _kv_bytes_read(config: ModelConfig, kv_bytes_per_token: float, context: int) -> float:
    """What a token at the end of the context reads; layers with a window read no more than that."""
    of_layer = kv_bytes_per_token / config.num_layers
    return sum(of_layer * min(context, layer.window or context) for layer in config.layers)


def _rate(target: FitTarget, bytes_of_token: float) -> float | None:
    return None if target.bytes_per_second is None else target.bytes_per_second / bytes_of_token


def _largest(most: int, holds: Callable[[int], bool]) -> int:
    """The largest number up to `most` for which `holds` is true, if it is so for all smaller ones; 0 for none."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if holds(middle):
            low = middle
        else:
            high = middle - 1
    return low
