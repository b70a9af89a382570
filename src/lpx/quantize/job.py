"""One quantization from beginning to end: plan, importance, the file, and whether it is good enough."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lpx.errors import ConfigError, DiskSpaceError, ModelFileError
from lpx.options import EngineOptions
from lpx.quantize.importance import Importance, calibration_texts, measure_importance
from lpx.quantize.plan import FILE_TYPES, PlannedTensor, plan_given, plan_types
from lpx.quantize.source import Source, open_source
from lpx.runtime.cpu.topology import default_threads
from lpx.store.space import disk_error

if TYPE_CHECKING:
    from lpx.quality.divergence import Progress
    from lpx.quality.evaluation import EvalSettings, Evaluation
    from lpx.quality.gate import Bound, Verdict
    from lpx.quality.texts import Text

_PIECE = 1 << 20  # weights of one task
_SPARE_BYTES = 64 << 20  # of disk, beside the file itself


@dataclass(frozen=True, slots=True)
class QuantizeSettings:
    """What is made of what."""

    source: Path
    target: Path
    scheme: str = "mixed"
    calibration: Path | None = None  # a text; None: the bundled ones
    calibrate: bool = True  # without, all columns count alike
    search: bool = True  # without, weights are rounded to nearest
    bounds: tuple[str, ...] = ()  # as `lpx.quality.gate` spells them
    check: bool = True  # compare with the source even without bounds
    windows: int | None = None  # of the comparison; None: all of the bundled texts
    threads: int | None = None  # None: the physical cores
    allow_requantize: bool = False
    types: Mapping[str, str] | None = None  # GGML type by GGUF name of the tensor, instead of the scheme's


@dataclass(frozen=True, slots=True)
class QuantizeReport:
    """What was made."""

    path: Path  # the target, or where a rejected file lies
    plan: tuple[PlannedTensor, ...]
    source_bytes: int
    nbytes: int  # of the file
    importance: Importance | None
    evaluation: Evaluation | None
    verdicts: tuple[Verdict, ...]
    exit_code: int  # 0: made; 1: a bound failed; 2: a bound could not be judged
    seconds: float

    @property
    def bits(self) -> float:
        """A weight, vectors included."""
        return 8 * sum(item.nbytes for item in self.plan) / sum(prod(item.tensor.shape) for item in self.plan)


def quantize(
    settings: QuantizeSettings,
    *,
    planned: Callable[[Sequence[PlannedTensor]], None] | None = None,
    progress: Progress | None = None,
) -> QuantizeReport:
    """Make the file. `planned` is told the types before the work begins.

    The target appears whole, and only when no bound failed: else the file is kept as `<target>.rejected`. Raises
    ConfigError for what cannot be honoured, DiskSpaceError and DownloadError for what the disk refuses, ModelFileError
    for weights that cannot be encoded, and what opening the source raises; nothing is left behind then.
    """
    begun = perf_counter()
    bounds = _bounds(settings)
    target = settings.target
    _check_target(target)
    threads = settings.threads or default_threads()
    texts = calibration_texts(settings.calibration) if settings.calibrate and settings.search else []
    with open_source(settings.source, allow_requantize=settings.allow_requantize) as source:
        config = source.files.config
        if settings.types is not None:
            plan = plan_given(source.tensors, settings.types)
        else:
            plan = plan_types(source.tensors, settings.scheme, config.num_layers, tied_head=config.tied_head)
        _check_space(target, sum(item.nbytes for item in plan))
        if planned is not None:
            planned(plan)
        importance = _importance(source, texts, plan, threads, progress)
        scratch = target.with_name(f".{target.name}.{os.getpid()}.new.gguf")
        try:
            _write(scratch, source, settings, plan, importance, threads, progress)
            _check_config(source, scratch)
            evaluation, verdicts = _judge(settings, bounds, scratch, config.max_position, progress)
            code = _exit_code(verdicts)
            path = _publish(scratch, target, rejected=code != 0)
        except OSError as error:
            raise disk_error(error)(f"{target} cannot be written: {error.strerror or error}") from error
        finally:
            with contextlib.suppress(OSError):
                scratch.unlink()
        return QuantizeReport(
            path=path,
            plan=tuple(plan),
            source_bytes=source.files.file_bytes,
            nbytes=path.stat().st_size,
            importance=importance,
            evaluation=evaluation,
            verdicts=tuple(verdicts),
            exit_code=code,
            seconds=perf_counter() - begun,
        )


def _check_target(target: Path) -> None:
    if target.exists() or target.is_symlink():
        raise ConfigError(f"{target} is there already: give another name, or move it away first")
    if target.suffix.lower() != ".gguf":
        raise ConfigError(f"{target} must end in .gguf: that is the format of the result")
    if not target.absolute().parent.is_dir():
        raise ConfigError(f"there is no folder {target.absolute().parent}; make it first")


def _check_space(target: Path, needed: int) -> None:
    free = shutil.disk_usage(target.absolute().parent).free
    if free < needed + _SPARE_BYTES:
        raise DiskSpaceError(
            f"the file will have {needed / 1e6:.0f} MB, and {target.absolute().parent} has {free / 1e6:.0f} MB left: "
            "make room, or choose another folder"
        )


def _importance(
    source: Source, texts: Sequence[Text], plan: Sequence[PlannedTensor], threads: int, progress: Progress | None
) -> Importance | None:
    from lpx.model.tokenizer import load_tokenizer

    if not texts or all(item.type in ("F32", "F16", "BF16") for item in plan):
        return None
    tokenizer = load_tokenizer(source.files)
    return measure_importance(
        source.files,
        tokenizer,
        texts,
        threads=threads,
        progress=None if progress is None else lambda done, total: progress("calibrating, layers", done, total),
    )


def _write(
    path: Path,
    source: Source,
    settings: QuantizeSettings,
    plan: Sequence[PlannedTensor],
    importance: Importance | None,
    threads: int,
    progress: Progress | None,
) -> None:
    from lpx.model.gguf_writer import GgufTensor, write_gguf
    from lpx.model.tensor_types import TYPES

    total = sum(prod(item.tensor.shape) for item in plan)
    done = 0

    def count(weights: int) -> None:
        nonlocal done
        done += weights
        if progress is not None:
            progress("quantizing, million weights", done // 1_000_000, max(1, total // 1_000_000))

    with ThreadPoolExecutor(threads) as pool:
        tensors = [
            GgufTensor(
                item.tensor.name,
                TYPES[item.type],
                item.tensor.shape,
                _Encoding(item, importance, settings.search, pool, threads, count).pieces,
            )
            for item in plan
        ]
        write_gguf(path, source.metadata | _own_metadata(settings, plan, importance), tensors)


def _check_config(source: Source, made: Path) -> None:
    """Raise UnsupportedModelError where the folder's model could not be told in GGUF."""
    from lpx.model.files import open_model
    from lpx.model.gguf_conversion import check_same

    if source.files.format == "safetensors":
        with open_model(made) as written:
            check_same(source.files.config, written.config)


def _own_metadata(
    settings: QuantizeSettings, plan: Sequence[PlannedTensor], importance: Importance | None
) -> dict[str, Any]:
    """Keys as llama.cpp's quantizer writes them."""
    from lpx import __version__
    from lpx.model.gguf_writer import Typed

    values: dict[str, Any] = {
        "general.file_type": FILE_TYPES.get(settings.scheme, 0),
        "general.quantization_version": 2,
        "general.quantized_by": f"lpx {__version__}",
    }
    if importance is not None:
        where = "bundled with lpx" if settings.calibration is None else settings.calibration.name
        entries = sum(importance.of(item.tensor.input_name or "") is not None for item in plan)
        values |= {
            "quantize.imatrix.file": where,
            "quantize.imatrix.dataset": ", ".join(importance.texts),
            "quantize.imatrix.entries_count": Typed("INT32", entries),
            "quantize.imatrix.chunks_count": Typed("INT32", importance.windows),
        }
    return values


@dataclass(frozen=True, slots=True)
class _Encoding:
    """One tensor in its new type, some rows at a time, a few tasks ahead of the disk."""

    item: PlannedTensor
    importance: Importance | None
    search: bool
    pool: ThreadPoolExecutor
    threads: int
    count: Callable[[int], None]

    def pieces(self) -> Iterator[NDArray[np.uint8]]:
        tensor = self.item.tensor
        rows, columns = prod(tensor.shape[:-1]), tensor.shape[-1]
        step = max(1, _PIECE // columns)
        waiting: deque[tuple[int, Future[NDArray[np.uint8]]]] = deque()
        try:
            for start in range(0, rows, step):
                stop = min(rows, start + step)
                waiting.append((stop - start, self.pool.submit(self._encode, start, stop)))
                if len(waiting) > self.threads:
                    yield self._next(waiting, columns)
            while waiting:
                yield self._next(waiting, columns)
        finally:
            for _, task in waiting:
                task.cancel()

    def _next(self, waiting: deque[tuple[int, Future[NDArray[np.uint8]]]], columns: int) -> NDArray[np.uint8]:
        rows, task = waiting.popleft()
        encoded = task.result()
        self.count(rows * columns)
        return encoded

    def _encode(self, start: int, stop: int) -> NDArray[np.uint8]:
        from lpx.quantize.blocks import encode

        tensor = self.item.tensor
        name = tensor.input_name
        importance = self.importance.of(name) if self.importance is not None and name is not None else None
        try:
            return encode(self.item.type, tensor.rows(start, stop), importance, search=self.search)
        except ValueError as error:
            raise ModelFileError(f"the tensor {tensor.name} of the source holds {error}") from error


def _bounds(settings: QuantizeSettings) -> list[Bound]:
    from lpx.quality.gate import check_bounds, parse_bounds
    from lpx.quality.windows import DEFAULT_WINDOW

    if settings.windows is not None and settings.windows < 1:
        raise ConfigError(f"the number of windows must be at least 1, not {settings.windows}")
    bounds = parse_bounds(settings.bounds)
    check_bounds(bounds, _evaluation(settings, bounds, settings.target, DEFAULT_WINDOW))
    return bounds


def _evaluation(settings: QuantizeSettings, bounds: Sequence[Bound], made: Path, window: int) -> EvalSettings:
    from lpx.quality.evaluation import EvalSettings

    checks = dict.fromkeys(("distributions", "weights", *(bound.check for bound in bounds)))
    # The result as it will run, against the source with nothing quantized at load.
    return EvalSettings(
        subject=EngineOptions(model=str(made), threads=settings.threads, measure_steps=False),
        reference=EngineOptions(
            model=str(settings.source), quantization="none", threads=settings.threads, measure_steps=False
        ),
        checks=tuple(checks),
        window=window,
        windows=settings.windows,
    )


def _judge(
    settings: QuantizeSettings, bounds: Sequence[Bound], made: Path, max_position: int, progress: Progress | None
) -> tuple[Evaluation | None, list[Verdict]]:
    from lpx.quality.evaluation import evaluate
    from lpx.quality.gate import judge
    from lpx.quality.windows import DEFAULT_WINDOW

    if not bounds and not settings.check:
        return None, []
    found = evaluate(_evaluation(settings, bounds, made, min(DEFAULT_WINDOW, max_position)), progress)
    return found, judge(found, bounds)


def _exit_code(verdicts: Sequence[Verdict]) -> int:
    from lpx.quality.gate import exit_code

    return exit_code(verdicts)


def _publish(scratch: Path, target: Path, *, rejected: bool) -> Path:
    """Give the file its name, unless another has taken it meanwhile."""
    if rejected:
        path = target.with_name(f"{target.name}.rejected")
        scratch.replace(path)
        return path
    try:
        os.link(scratch, target)
    except FileExistsError:
        raise ConfigError(f"{target} has appeared meanwhile and was not replaced: give another name") from None
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.EXDEV):
            raise
        scratch.replace(target)  # a file system without links
    return target
