"""Whether quantized weights still have the size of those they were made from: a check of scales, tensor by tensor.

With w the reference's weights of a tensor and q what the quantized file gives for them, two least-squares slopes bound
the factor g by which q is off, whatever the rounding: forward <w, q> / <w, w> (right when rounding errors do not depend
on w) and backward <q, q> / <w, q> (right when they do not depend on q, as for scales that are fitted). By Cauchy and
Schwarz forward <= backward; they lie apart by the square of the relative error, 0.006 for 4 bits. A sound tensor has 1
between them, or nearly. Scales off by 3 % move both by 3 %.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lpx.errors import ConfigError
from lpx.options import EngineOptions
from lpx.runtime.memory import FLOAT_TYPES, quantize_bits

if TYPE_CHECKING:
    from lpx.model.config import WeightTensor
    from lpx.quality.divergence import Progress

SLOPE_TOLERANCE = 0.005
# A relative error beyond this is damage: so many times 2**-bits (blocks of GGML's types stay below 3, whatever is in
# them), and for float types, whose bits are no such measure, a flat one.
_MOST_ERROR = 5.0
_MOST_FLOAT_ERROR = 0.01
_CHUNK = 1 << 20  # values that are decoded at once


@dataclass(frozen=True, slots=True)
class TensorSlope:
    """One tensor against the reference's."""

    name: str  # canonical, see lpx.model.config.WeightTensor
    type: str  # as stored, or "q8", "q4" when quantized at load
    bits: float  # a weight
    forward: float
    backward: float
    relative_error: float  # |q - w| / |w|

    @property
    def off_by(self) -> float:
        """Least relative deviation of the scales that explains both slopes; 0 when 1 is between them."""
        if self.forward > 1:
            return self.forward - 1
        return min(0.0, self.backward - 1)

    @property
    def finding(self) -> str | None:
        """What is wrong with it, or None."""
        if not np.isfinite(self.forward) or not np.isfinite(self.backward):
            return "it holds values that are not finite, or only zeros: the file is damaged, make it again"
        if abs(self.off_by) > SLOPE_TOLERANCE:
            return (
                f"{self.off_by:+.1%} off in size (slopes {self.forward:.4f}, {self.backward:.4f}): "
                "its scales are wrong, quantize it again"
            )
        if self.relative_error > (_MOST_FLOAT_ERROR if self.type in FLOAT_TYPES else _MOST_ERROR * 2.0**-self.bits):
            return (
                f"its relative error is {self.relative_error:.1%}, too much for {self.bits:.1f} bits a weight: "
                "the tensor is damaged or from another model"
            )
        return None


@dataclass(frozen=True, slots=True)
class WeightsReport:
    """All tensors that both have, in the reference's order."""

    tensors: tuple[TensorSlope, ...]

    @property
    def faulty(self) -> list[TensorSlope]:
        return [tensor for tensor in self.tensors if tensor.finding is not None]


def compare_weights(
    subject: EngineOptions, reference: EngineOptions, progress: Progress | None = None
) -> WeightsReport:
    """Slopes of every tensor of `subject` against `reference`, quantization at load included.

    Both files are read once, tensor by tensor; no model is loaded. Raises ConfigError when the tensors are not the
    same, and what opening the files raises.
    """
    from lpx.model.files import open_model, resolve_model
    from lpx.model.models_dir import models_dir

    paths = [resolve_model(options.model, models_dir(options.models_dir)) for options in (subject, reference)]
    with open_model(paths[0]) as one, open_model(paths[1]) as other:
        ours = {weight.name: weight for weight in one.weights()}
        theirs = list(other.weights())
        shapes = {weight.name: weight.shape for weight in theirs}
        if (mine := {name: weight.shape for name, weight in ours.items()}) != shapes:
            differing = sorted(name for name in {*mine, *shapes} if mine.get(name) != shapes.get(name))
            raise ConfigError(
                f"{paths[0].name} and {paths[1].name} do not hold the same tensors: {differing[0]} is "
                f"{mine.get(differing[0], 'absent')} and {shapes.get(differing[0], 'absent')}. Take a reference of the "
                "same model"
            )
        slopes = []
        for number, weight in enumerate(theirs, start=1):
            slopes.append(_slope(ours[weight.name], subject.quantization, weight, reference.quantization))
            if progress is not None:
                progress("comparing weights", number, len(theirs))
        return WeightsReport(tuple(slopes))


def _slope(
    subject: WeightTensor, quantization: str | None, reference: WeightTensor, reference_quantization: str | None
) -> TensorSlope:
    ww = wq = qq = 0.0
    kind, bits = _stored_as(subject, quantization)
    for q, w in zip(_rows(subject, quantization), _rows(reference, reference_quantization), strict=True):
        ww += float(np.vdot(w, w))
        wq += float(np.vdot(w, q))
        qq += float(np.vdot(q, q))
    if ww == qq == 0:  # a bias that is not used
        return TensorSlope(subject.name, kind, bits, 1.0, 1.0, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        forward, backward = float(np.divide(wq, ww)), float(np.divide(qq, wq))
        error = float(np.sqrt(max(0.0, ww - 2 * wq + qq) / np.float64(ww)))
    return TensorSlope(subject.name, kind, bits, forward, backward, error)


def _stored_as(weight: WeightTensor, quantization: str | None) -> tuple[str, float]:
    """The type in which the tensor runs, and its bits a weight."""
    if len(weight.shape) == 2 and (bits := quantize_bits(weight.name, weight.type, quantization)):
        return f"q{bits}", float(bits)
    return weight.type, 8 * weight.data.nbytes / float(np.prod(weight.shape))


def _rows(weight: WeightTensor, quantization: str | None) -> Iterator[NDArray[np.float64]]:
    """The tensor's values in the order of the decoder, some rows at a time."""
    from lpx import _native

    if len(weight.shape) == 1:
        yield weight.data.view(np.float32).astype(np.float64)
        return
    rows, cols = weight.shape
    step = max(1, _CHUNK // cols)
    bits = quantize_bits(weight.name, weight.type, quantization)
    if bits:
        packed = _native.PackedMatrix.quantize(bits, weight.type, rows, cols, weight.data, weight.row_map)
        for start in range(0, rows, step):
            wanted = np.arange(start, min(rows, start + step), dtype=np.int32)
            yield packed.decode(wanted).astype(np.float64)
        return
    data = weight.data.reshape(rows, -1)
    for start in range(0, rows, step):
        part = slice(start, min(rows, start + step))
        taken = data[part] if weight.row_map is None else data[weight.row_map[part]]
        yield _native.decode_rows(weight.type, cols, np.ascontiguousarray(taken).reshape(-1)).astype(np.float64)
