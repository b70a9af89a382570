"""What a model will need in memory, counted before anything is loaded (I5)."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lpx.errors import ConfigError, KvCacheTooSmallError, MemoryLimitError, UnsupportedModelError
from lpx.options import parse_kv_cache_dtype
from lpx.runtime.cpu.cgroup import memory_available
from lpx.runtime.cpu.topology import default_threads

if TYPE_CHECKING:
    from lpx import _native
    from lpx.model.config import ModelConfig
    from lpx.model.files import ModelFiles
    from lpx.runtime.options import RuntimeOptions

FLOAT_TYPES = frozenset({"F32", "F16", "BF16"})
LEAST_SPLIT_HEAD = 64 << 20  # weights, see splits_head

# The KV cache takes at most this part of what weights and work buffers leave free, unless it is set: other programs
# need memory too, and a cache for every sequence at full length is rarely filled.
_KV_SHARE = 0.25
# Without --max-model-len a cache that holds this many tokens is enough to start with.
_LEAST_DEFAULT_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes by purpose, and the sizes they follow from."""

    weight_bytes: int
    kv_bytes: int
    work_bytes: int
    num_blocks: int
    block_size: int  # tokens
    max_model_len: int
    threads: int
    kv_types: tuple[str, str]  # of keys and values

    @property
    def kv_cache_dtype(self) -> str:
        """The name of `kv_types`, as the option spells it."""
        key, value = self.kv_types
        return key if key == value else f"{key},{value}"

    @property
    def total_bytes(self) -> int:
        return self.weight_bytes + self.kv_bytes + self.work_bytes


def plan_memory(files: ModelFiles, options: RuntimeOptions, *, available: int | None = None) -> MemoryPlan:
    """Sizes of everything that `CpuExecutor.load` would allocate.

    `available` is what may be taken, in bytes; the machine is asked when it is None. Raises MemoryLimitError, with the
    numbers and what to lower, when the need is greater, and ConfigError for options that cannot be honoured.
    """
    from lpx import _native

    config = files.config
    native = native_config(config)
    if available is None:
        available = available_bytes()
    threads = options.threads or default_threads()
    split = ("embedding" if config.tied_head else "head") if splits_head(config) else ""
    weights = sum(
        _native.PackedMatrix.packed_bytes(
            kind, rows, cols, quantize_bits(name, kind, options.quantization), split=name == split
        )
        for name, kind, (rows, cols) in files.matrix_shapes()
    )
    check_quantization(files, options.quantization)
    wanted_len = options.max_model_len or config.max_position
    work = native.work_bytes(max_rows=options.max_num_batched_tokens, max_model_len=wanted_len, threads=threads)
    kv_types = parse_kv_cache_dtype(options.kv_cache_dtype)
    block_bytes, block_size = native.kv_block_bytes(*kv_types), _native.KV_BLOCK_SIZE
    blocks_per_sequence = -(-wanted_len // block_size)

    if options.kv_cache_memory is not None:
        num_blocks = options.kv_cache_memory // block_bytes
        least = blocks_per_sequence if options.max_model_len else 1
        if num_blocks < least:
            raise KvCacheTooSmallError(
                f"a KV cache of {_mib(options.kv_cache_memory)} is too small: one sequence of {least * block_size} "
                f"tokens needs {_mib(least * block_bytes)}. Raise --kv-cache-memory or lower --max-model-len"
            )
    else:
        spare = max(0, available - weights - work)
        least = blocks_per_sequence
        if options.max_model_len is None:
            least = min(least, -(-_LEAST_DEFAULT_TOKENS // block_size))
        num_blocks = max(least, min(options.max_num_seqs * blocks_per_sequence, int(spare * _KV_SHARE) // block_bytes))
    num_blocks = min(num_blocks, 2**31 - 1)

    plan = MemoryPlan(
        weight_bytes=weights,
        kv_bytes=num_blocks * block_bytes,
        work_bytes=work,
        num_blocks=num_blocks,
        block_size=block_size,
        max_model_len=min(wanted_len, num_blocks * block_size),
        threads=threads,
        kv_types=kv_types,
    )
    if plan.total_bytes > available:
        raise MemoryLimitError(
            f"{files.name} needs {_mib(plan.total_bytes)}: weights {_mib(weights)}, KV cache {_mib(plan.kv_bytes)} "
            f"({num_blocks} blocks of {block_size} tokens), work buffers {_mib(work)} "
            f"for {threads} threads; only {_mib(available)} can be had. Lower --kv-cache-memory, --max-model-len, "
            "--max-num-batched-tokens or --threads, or take a smaller or more strongly quantized model"
        )
    return plan


def available_bytes(root: Path = Path("/")) -> int:
    """Memory that this process can take: the machine's, or what is left of its control group's limit."""
    machine = _machine_available(root)
    group = memory_available(root)
    return machine if group is None else min(machine, group)


def _machine_available(root: Path) -> int:
    with contextlib.suppress(OSError):
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    import psutil  # type: ignore[import-untyped]  # takes as long to import as all the rest of the plan

    return int(psutil.virtual_memory().available)


def quantize_bits(name: str, kind: str, quantization: str | None) -> int:
    """Bits that the matrix `name` of type `kind` is quantized to at load; 0 keeps the precision of the file.

    Head and embeddings get 8 bits: their errors go straight to the probabilities.
    """
    if quantization in (None, "none") or kind not in FLOAT_TYPES:
        return 0
    return 4 if quantization == "q4" and name not in ("head", "embedding") else 8


def check_quantization(files: ModelFiles, quantization: str | None) -> None:
    """Raise ConfigError for an unknown scheme, or when there is no float matrix to quantize."""
    if quantization not in (None, "none", "q8", "q4"):
        raise ConfigError(f"quantization {quantization!r} is not known; use none, q8 or q4")
    if quantization in (None, "none") or any(kind in FLOAT_TYPES for _, kind, _ in files.matrix_shapes()):
        return
    kinds = ", ".join(sorted({kind for _, kind, _ in files.matrix_shapes()}))
    raise ConfigError(
        f"quantization {quantization!r} cannot be honoured: the weights of {files.name} are already quantized "
        f"({kinds}). Leave it out, or load an unquantized model"
    )


def splits_head(config: ModelConfig) -> bool:
    """Whether the head is laid out so that greedy steps can find the likeliest token without reading all of it.

    That costs steps of several sequences a little, so it is for heads that are a large part of what a step reads. A cap
    of the logits may make different ones equal: then they are all needed.
    """
    return config.vocab_size * config.hidden_size >= LEAST_SPLIT_HEAD and config.logit_softcap == 0


def native_config(config: ModelConfig) -> _native.DecoderConfig:
    """`config` for the native core. Raises UnsupportedModelError for sizes that its kernels cannot do."""
    from lpx import _native

    try:
        return _native.DecoderConfig(
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            vocab_size=config.vocab_size,
            norm_eps=config.norm_eps,
            activation=config.activation,
            embedding_scale=config.embedding_scale,
            attention_scale=config.attention_scale,
            attention_softcap=config.attention_softcap,
            logit_softcap=config.logit_softcap,
            tied_head=config.tied_head,
            split_head=splits_head(config),
            inv_freqs=[list(rotary.inv_freq) for rotary in config.rotaries],
            attention_factors=[rotary.attention_factor for rotary in config.rotaries],
            windows=[layer.window for layer in config.layers],
            rotary_of_layer=[layer.rotary for layer in config.layers],
        )
    except ValueError as error:
        raise UnsupportedModelError(f"{config.name} ({config.architecture}): {error}") from error


def _mib(count: int) -> str:
    return f"{count / 2**20:,.1f} MiB"
