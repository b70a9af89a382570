"""LPX behind the worker protocol, through its public Python API."""

import sys
import time
from pathlib import Path

from lpx import LLM, SamplingParams, __version__

sys.path.insert(0, str(Path(__file__).parent))
from protocol import serve


class Lpx:
    def __init__(self):
        self.llm = None

    def load(self, model, threads, context=4096, sequences=16, batch=512, long_context=0, isa=None):
        started = time.perf_counter()
        self.llm = LLM(
            model,
            threads=threads,
            max_model_len=max(context, long_context),
            max_num_seqs=sequences,
            max_num_batched_tokens=batch,
            isa=isa,
        )
        info = self.llm.info
        return {
            "engine": f"LPX {__version__}",
            "isa": info.isa,
            "threads": info.threads,
            "weight_bytes": info.weight_bytes,
            "kv_bytes": info.kv_bytes,
            "kv_block_bytes": info.kv_bytes // info.num_blocks,
            "kv_block_tokens": info.block_size,
            "bytes_per_token": info.bytes_per_token,
            "seconds": time.perf_counter() - started,
        }

    def encode(self, text):
        return {"token_ids": self.llm.encode(text)}

    def generate(self, prompts, tokens):
        """Greedy, end-of-sequence ignored: `tokens` tokens of every prompt, all together."""
        params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
        outputs = self.llm.generate(prompts, params, use_tqdm=False)
        return {
            # All prompts fit one step, so that every stream gets its first token in the same one.
            "prefill_seconds": max(o.timings.ttft_ms for o in outputs) / 1000,
            "decode_seconds": max(o.timings.decode_ms for o in outputs) / 1000,
            "token_ids": [o.outputs[0].token_ids for o in outputs],
        }


if __name__ == "__main__":
    lpx = Lpx()
    serve({"load": lpx.load, "encode": lpx.encode, "generate": lpx.generate})
