"""What is tried, in which order, and which values: by the gain that is to be expected.

Options that only change how much memory is taken, or what is refused, are no variables: they have no speed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from lpx.bench.tune.goal import Goal

Exactness = Literal["exact", "rounding", "lossy"]


@dataclass(frozen=True, slots=True)
class Situation:
    """What the choice of values depends on."""

    goal: Goal
    in_use: Mapping[str, Any]  # of the best options so far: threads, isa, max_num_seqs, max_num_batched_tokens
    logical_cpus: int  # that this process may use
    isas: tuple[str, ...]  # that this processor has, the best first


@dataclass(frozen=True, slots=True)
class Variable:
    """One option. `values` are those worth trying beside the one in use, the most promising first."""

    option: str  # of EngineOptions
    exactness: Exactness
    values: Callable[[Situation], list[Any]]


def _threads(situation: Situation) -> list[Any]:
    used, logical = situation.in_use["threads"], situation.logical_cpus
    return _others(used, [logical, used - 1, used // 2] if used > 3 else [logical, used - 1], least=1)


def _speculation(situation: Situation) -> list[Any]:
    return [{"method": method} for method in ("suffix", "off", "ngram")]


def _isas(situation: Situation) -> list[Any]:
    # Wider vectors may clock lower. What is far from the best set is not worth the time.
    return [isa for isa in situation.isas[:3] if isa not in (situation.in_use["isa"], "portable")]


def _batched_tokens(situation: Situation) -> list[Any]:
    used, sequences = situation.in_use["max_num_batched_tokens"], situation.in_use["max_num_seqs"]
    return _others(used, [2 * used, used // 2], least=sequences)


def _sequences(situation: Situation) -> list[Any]:
    used, concurrency = situation.in_use["max_num_seqs"], situation.goal.concurrency
    # Fewer at once only help when tokens must not come too slowly; without a limit more are always faster.
    if situation.goal.slo.itl_ms is None:
        return [concurrency] if concurrency > used else []
    fitting = min(used, concurrency)
    return _others(used, [fitting // 2, fitting // 4], least=1)


def _itl_target(situation: Situation) -> list[Any]:
    limit = situation.goal.slo.itl_ms
    return [64.0, 128.0] if limit is None else [limit, limit / 2]


def _kv_types(situation: Situation) -> list[Any]:
    return [kind for kind in ("q8",) if kind != situation.in_use["kv_cache_dtype"]]


LATENCY: tuple[Variable, ...] = (
    Variable("threads", "exact", _threads),
    Variable("speculative_config", "exact", _speculation),
    Variable("isa", "rounding", _isas),
    Variable("kv_cache_dtype", "lossy", _kv_types),
    Variable("max_num_batched_tokens", "exact", _batched_tokens),
)
THROUGHPUT: tuple[Variable, ...] = (
    Variable("threads", "exact", _threads),
    Variable("max_num_seqs", "exact", _sequences),
    Variable("itl_target_ms", "exact", _itl_target),
    Variable("max_num_batched_tokens", "exact", _batched_tokens),
    Variable("isa", "rounding", _isas),
    Variable("kv_cache_dtype", "lossy", _kv_types),
    Variable("speculative_config", "exact", _speculation),
)


def variables(goal: Goal) -> tuple[Variable, ...]:
    return LATENCY if goal.target == "latency" else THROUGHPUT


def _others(used: int, wanted: list[int], least: int) -> list[Any]:
    return [value for value in dict.fromkeys(wanted) if value != used and value >= least]
