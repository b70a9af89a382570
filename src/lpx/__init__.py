"""LPX: fast decoding of small language models on the hardware people have.

```python
from lpx import LLM, SamplingParams

with LLM("smollm2-135m") as llm:
    print(llm.generate("The capital of France is", SamplingParams(max_tokens=8))[0].outputs[0].text)
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lpx.engine.llm import LLM
    from lpx.engine.sampling_params import SamplingParams
    from lpx.engine.structured.params import StructuredOutputsParams

    __version__: str

__all__ = ["LLM", "SamplingParams", "StructuredOutputsParams", "__version__"]


def __getattr__(name: str) -> Any:
    # Loaded on first use: `import lpx` costs next to nothing.
    if name == "LLM":
        from lpx.engine.llm import LLM

        return LLM
    if name == "SamplingParams":
        from lpx.engine.sampling_params import SamplingParams

        return SamplingParams
    if name == "StructuredOutputsParams":
        from lpx.engine.structured.params import StructuredOutputsParams

        return StructuredOutputsParams
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("lpx")
        except PackageNotFoundError:  # run from a checkout
            return "0+checkout"
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
