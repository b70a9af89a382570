"""Quality: perplexity and divergence of distributions, sound weights, stable answers, a review over kinds of input.

Prints nothing. What other packages call:

- `compare_distributions(subject, reference, windows)` and `measure_perplexity(subject, windows)`; windows come from
  `make_windows(tokenizer, texts)`, or are those of the bundled texts;
- `compare_weights(subject, reference)`;
- `evaluation.evaluate(settings)`, all checks at once, and `gate.judge(evaluation, bounds)`.
"""

from __future__ import annotations

from lpx.quality.divergence import (
    Distance,
    Divergence,
    Perplexity,
    compare_distributions,
    compare_logits,
    measure_perplexity,
)
from lpx.quality.scored_model import ScoredModel
from lpx.quality.texts import Text, bundled_texts, read_texts
from lpx.quality.weights import TensorSlope, WeightsReport, compare_weights
from lpx.quality.windows import Window, make_windows, spread

__all__ = [
    "Distance",
    "Divergence",
    "Perplexity",
    "ScoredModel",
    "TensorSlope",
    "Text",
    "WeightsReport",
    "Window",
    "bundled_texts",
    "compare_distributions",
    "compare_logits",
    "compare_weights",
    "make_windows",
    "measure_perplexity",
    "read_texts",
    "spread",
]
