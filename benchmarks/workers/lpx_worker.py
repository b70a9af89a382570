"""LPX behind the worker protocol, through its Python API."""

import sys
import time
from pathlib import Path

from lpx import LLM, SamplingParams, __version__
from lpx.engine import Engine
from lpx.options import EngineOptions

sys.path.insert(0, str(Path(__file__).parent))
from protocol import serve


class Lpx:
    def __init__(self):
        self.llm = self.engine = None

    def load(self, model, threads, context=4096, sequences=16, batch=512, long_context=0, isa=None):
        started = time.perf_counter()
        self.llm = LLM(
            model,
            threads=threads,
            max_model_len=max(context, long_context),
            max_num_seqs=sequences,
            max_num_batched_tokens=batch,
            isa=isa,
            speculative_config={"method": "off"},  # plain decoding is compared; speculation.py has the rest
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

    def load_default(self, model, threads, speculative_config):
        """The engine as it comes, but for its threads and how it drafts; in place of one loaded before."""
        if self.llm:
            self.llm.close()
        self.engine = Engine.load(EngineOptions(model, threads=threads, speculative_config=speculative_config))
        self.llm = LLM.from_engine(self.engine)
        info = self.llm.info
        return {
            "engine": f"LPX {__version__}",
            "isa": info.isa,
            "threads": info.threads,
            "speculation": info.speculation,
            "max_model_len": info.max_model_len,
        }

    def encode_chat(self, messages):
        return {"token_ids": self.llm.encode_chat(messages)}

    def answer(self, prompt, settings):
        """One answer up to its natural end; `settings` are sampling params."""
        (output,) = self.llm.generate([prompt], SamplingParams(**settings), use_tqdm=False)
        timings = output.timings
        return {
            "token_ids": output.outputs[0].token_ids,
            "decode_ms": timings.decode_ms,
            "ttft_ms": timings.ttft_ms,
            "drafted": timings.drafted_tokens,
            "accepted": timings.accepted_tokens,
            "mean_accepted_length": timings.mean_accepted_length,
            "speculation": timings.speculation,
        }

    def answer_together(self, prompts, settings):
        """An answer to every prompt, all at once; `settings` are sampling params, one a prompt.

        `decode_tokens` and `decode_seconds` begin when the last prompt is done, so that prompts do not count.
        """
        engine, outputs, started = self.engine, {}, set()
        for prompt, params in zip(prompts, settings, strict=True):
            outputs[engine.add_request(prompt, SamplingParams(**params))] = []
        before = began = drafted = accepted = 0
        while engine.has_work:
            for delta in engine.step():
                if delta.error is not None:
                    raise delta.error
                outputs[delta.request_id] += delta.token_ids
                started.add(delta.request_id)
                if delta.timings is not None:
                    drafted += delta.timings.drafted_tokens
                    accepted += delta.timings.accepted_tokens
            if not began and len(started) == len(outputs):
                began, before = time.perf_counter(), sum(map(len, outputs.values()))
        return {
            "token_ids": list(outputs.values()),
            "decode_tokens": sum(map(len, outputs.values())) - before,
            "decode_seconds": time.perf_counter() - began,
            "drafted": drafted,
            "accepted": accepted,
        }


if __name__ == "__main__":
    lpx = Lpx()
    serve(
        {
            "load": lpx.load,
            "encode": lpx.encode,
            "generate": lpx.generate,
            "load_default": lpx.load_default,
            "encode_chat": lpx.encode_chat,
            "answer": lpx.answer,
            "answer_together": lpx.answer_together,
        }
    )
