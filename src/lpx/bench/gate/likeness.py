"""Whether two runs may be compared at all, and in what else they differ."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lpx.bench.measurement import Subject
from lpx.doctor.environment import Environment
from lpx.errors import ConfigError

FACETS = ("machine", "device", "model", "engine")

_GIB = 1 << 30


class UnlikeError(ConfigError):
    """The runs are of different machines, models or engines."""

    help_code = "LPX-E091"


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is not as it was."""

    facet: str | None  # one of FACETS, which must be alike; None: what a gate is there to judge
    what: str
    before: object
    after: object

    def __str__(self) -> str:
        return f"{self.what}: {_shown(self.before)} → {_shown(self.after)}"


def parse_facets(texts: Iterable[str]) -> frozenset[str]:
    """`machine,model` and the like. Raises ConfigError for other words."""
    facets = [facet.strip() for text in texts for facet in text.split(",") if facet.strip()]
    for facet in facets:
        if facet not in FACETS:
            raise ConfigError(f"--allow-different {facet!r} is not known; there are {', '.join(FACETS)}")
    return frozenset(facets)


def machine_differences(before: Environment, after: Environment) -> list[Difference]:
    found = [
        *(
            ("machine", what, getattr(before, name), getattr(after, name))
            for what, name in (
                ("processor", "cpu_model"),
                ("processors", "logical_cpus"),
                ("usable processors", "usable_cpus"),
                ("quota of processors", "cpu_quota"),
                ("cards", "gpus"),
            )
        ),
        ("machine", "memory", _memory(before), _memory(after)),
        *(
            (None, what, getattr(before, name), getattr(after, name))
            for what, name in (
                ("kernel", "kernel"),
                ("driver", "nvidia_driver"),
                ("CUDA", "cuda"),
                ("Python", "python"),
            )
        ),
    ]
    return [Difference(*each) for each in found if each[2] != each[3]]


def subject_differences(before: Subject, after: Subject) -> list[Difference]:
    """A hash decides about the model where both sides have one, else its name."""
    if before.model_sha256 and after.model_sha256:
        alike = before.model_sha256 == after.model_sha256
        model = [alike or f"{each.model} ({_digest(each.model_sha256)})" for each in (before, after)]
    else:
        model = [before.model, after.model]
    found = [
        ("model", "model", model[0], model[1]),
        ("model", "quantization", before.quantization, after.quantization),
        ("engine", "engine", before.engine, after.engine),
        ("device", "device", before.device, after.device),
        (None, "version of the engine", before.engine_version, after.engine_version),
        (None, "KV cache", before.kv_cache_dtype, after.kv_cache_dtype),
        (None, "kernel set", before.isa, after.isa),
        (None, "threads", before.threads, after.threads),
    ]
    return [Difference(*each) for each in found if each[2] != each[3] and None not in each[2:]]


def refuse_unlike(differences: Iterable[Difference], allowed: frozenset[str]) -> None:
    """Raises UnlikeError when something differs that must be alike and is not `allowed`."""
    wrong = [each for each in differences if each.facet is not None and each.facet not in allowed]
    if wrong:
        facets = ",".join(dict.fromkeys(each.facet for each in wrong if each.facet))
        raise UnlikeError(
            f"this is not what the baseline was measured on ({'; '.join(map(str, wrong))}): a difference in speed "
            f"would say nothing. Make a baseline here, or compare all the same with --allow-different {facets}"
        )


def _memory(environment: Environment) -> str | None:
    size = environment.memory_bytes
    return None if size is None else f"{size / _GIB:.0f} GiB"


def _digest(text: str | None) -> str:
    return (text or "")[:12]


def _shown(value: object) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    return str(value)
