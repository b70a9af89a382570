"""`transformers` `generate()` behind the worker protocol: the naive baseline, on the dequantized weights of the file.

Runs in the interpreter that has torch, transformers, accelerate and gguf (`--transformers-python`).
"""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from protocol import serve


class Transformers:
    def __init__(self):
        self.model = None

    def load(self, model, threads, dtype="float32", **_):
        try:
            import torch
            import transformers
        except ImportError as error:
            raise RuntimeError(f"{sys.executable} lacks torch or transformers: {error}") from None
        self.torch, self.transformers = torch, transformers
        torch.set_num_threads(threads)
        started = time.perf_counter()
        file = Path(model)
        try:
            loaded = transformers.AutoModelForCausalLM.from_pretrained(str(file.parent), gguf_file=file.name)
        except Exception as error:
            raise RuntimeError(f"transformers {transformers.__version__} cannot load {model}: {error}") from None
        self.model = loaded.to(getattr(torch, dtype)).eval()
        return {
            "engine": f"transformers {transformers.__version__}, torch {torch.__version__}, {dtype}",
            "isa": torch.backends.cpu.get_cpu_capability(),
            "threads": threads,
            "seconds": time.perf_counter() - started,
        }

    def generate(self, prompts, tokens):
        """Greedy, end-of-sequence ignored: `tokens` tokens of every prompt; all prompts are equally long."""
        ids = self.torch.tensor(prompts)
        stamps = []  # one after each token

        class Clock(self.transformers.StoppingCriteria):
            def __call__(self, input_ids, scores, **_):
                stamps.append(time.perf_counter())
                return input_ids.new_zeros(len(input_ids), dtype=bool)

        started = time.perf_counter()
        with self.torch.inference_mode():
            out = self.model.generate(
                ids,
                attention_mask=self.torch.ones_like(ids),
                min_new_tokens=tokens,
                max_new_tokens=tokens,
                do_sample=False,
                stopping_criteria=self.transformers.StoppingCriteriaList([Clock()]),
            )
        return {
            "prefill_seconds": stamps[0] - started,
            "decode_seconds": stamps[-1] - stamps[0],
            "token_ids": out[:, ids.shape[1] :].tolist(),
        }


if __name__ == "__main__":
    naive = Transformers()
    serve({"load": naive.load, "generate": naive.generate})
