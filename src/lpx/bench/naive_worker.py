"""`transformers` in a process of its own, which is asked as `lpx.bench.sides.engine_worker` is.

Needs nothing of LPX, so that `--python` may be an interpreter that has only torch and transformers: then the text of
this file is what it runs.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from time import perf_counter
from typing import Any

_GGUF_HELP = "of a GGUF file transformers reads some architectures only, and needs the packages gguf and accelerate"


class NaiveCommands:
    """Plain `generate()`, greedy, as one finds it in introductions."""

    def load(self, model: str, threads: int, dtype: str) -> dict[str, Any]:
        """Load a Hugging Face folder as it is, or a GGUF file dequantized."""
        import torch  # type: ignore[import-not-found, unused-ignore]
        import transformers  # type: ignore[import-not-found, unused-ignore]

        torch.set_num_threads(threads)
        transformers.utils.logging.set_verbosity_error()
        path = Path(model)
        of_gguf = {"gguf_file": path.name} if path.is_file() else {}
        folder = str(path.parent if path.is_file() else path)
        started = perf_counter()
        try:
            loaded = transformers.AutoModelForCausalLM.from_pretrained(
                folder, **of_gguf, dtype=getattr(torch, dtype), local_files_only=True
            )
        except Exception as error:
            more = f"; {_GGUF_HELP}" if of_gguf else ""
            raise RuntimeError(
                f"transformers {transformers.__version__} cannot load {path.name}: {error}{more}"
            ) from None
        self._torch, self._transformers = torch, transformers
        self._model = loaded.eval()
        return {
            "version": f"{transformers.__version__}, torch {torch.__version__}",
            "isa": torch.backends.cpu.get_cpu_capability().lower(),
            "vocab_size": int(loaded.config.get_text_config().vocab_size),
            "seconds": perf_counter() - started,
        }

    def generate(self, prompts: list[list[int]], tokens: int) -> dict[str, Any]:
        """So many tokens of every prompt (all equally long) in one batch; seconds to the first, and from there on."""
        torch = self._torch
        stamps: list[float] = []  # after each token

        class Clock(self._transformers.StoppingCriteria):  # type: ignore[misc, name-defined]
            def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
                stamps.append(perf_counter())
                return input_ids.new_zeros(len(input_ids), dtype=torch.bool)

        ids = torch.tensor(prompts)
        started = perf_counter()
        with torch.inference_mode():
            self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                min_new_tokens=tokens,
                max_new_tokens=tokens,
                do_sample=False,
                pad_token_id=0,
                stopping_criteria=self._transformers.StoppingCriteriaList([Clock()]),
            )
        return {
            "prefill_seconds": stamps[0] - started,
            "decode_seconds": stamps[-1] - stamps[0],
            "steps": len(stamps) - 1,
        }


def main() -> None:
    # What else writes to stdout goes to stderr: it must not get between the replies.
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    commands = NaiveCommands()
    for line in sys.stdin.buffer:
        command = json.loads(line)
        try:
            reply = getattr(commands, command.pop("op"))(**command)
        except ImportError as error:
            reply = {"error": str(error), "missing": error.name or "torch"}
        except Exception as error:
            traceback.print_exc()
            reply = {"error": str(error) or type(error).__name__}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()
