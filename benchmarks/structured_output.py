"""What a JSON schema costs one stream: decode speed with it as a share of the speed without.

    python benchmarks/structured_output.py smollm2-135m --rounds 7

Both kinds of requests alternate, so that whatever else the machine does meets both. The share is the median of rounds.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

from lpx import LLM, SamplingParams

PROMPT = "A person as a JSON object, with a name, an age, some tags and a long description:\n"
SCHEMAS: dict[str, dict[str, Any]] = {
    "long text": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 40},
            "description": {"type": "string", "minLength": 900},
        },
        "required": ["name", "description"],
    },
    "records": {
        "type": "array",
        "minItems": 12,
        "items": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 20},
                "age": {"type": "integer", "minimum": 0, "maximum": 130},
                "kind": {"enum": ["person", "place", "thing"]},
                "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 3},
            },
            "required": ["name", "age", "kind", "tags"],
        },
    },
}


def decode_speed(llm: LLM, schema: dict[str, Any] | None, seed: int, tokens: int, speculative: str) -> float:
    params: dict[str, Any] = {"temperature": 0.7, "seed": seed, "max_tokens": tokens, "speculative": speculative}
    params |= {"ignore_eos": True} if schema is None else {"structured_outputs": {"json": schema}}
    (output,) = llm.generate(PROMPT, SamplingParams(**params), use_tqdm=False)
    assert output.timings is not None
    return output.timings.decode_tokens_per_second


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=None)
    options = parser.parse_args()
    with LLM(options.model, max_model_len=1024, threads=options.threads) as llm:
        print(f"{'schema':12} {'drafts':7} {'free':>7} {'schema':>7}  share")
        for name, schema in SCHEMAS.items():
            for speculative in ("off", "auto"):
                free, formed = [], []
                for seed in range(options.rounds + 1):
                    free.append(decode_speed(llm, None, seed, options.tokens, speculative))
                    formed.append(decode_speed(llm, schema, seed, options.tokens, speculative))
                shares = [b / a for a, b in zip(free[1:], formed[1:], strict=True)]
                middle = [statistics.median(values) for values in (free[1:], formed[1:], shares)]
                print(
                    f"{name:12} {speculative:7} {middle[0]:7.0f} {middle[1]:7.0f}  {100 * middle[2]:.0f} %", flush=True
                )


if __name__ == "__main__":
    main()
