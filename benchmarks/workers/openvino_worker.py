"""OpenVINO GenAI behind the worker protocol, on the GGUF file itself.

Runs in the interpreter that has openvino-genai (`--openvino-python`).
"""

import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from protocol import serve


class OpenVino:
    def __init__(self):
        self.pipeline = None

    def load(self, model, threads, **_):
        try:
            import openvino
            import openvino_genai
        except ImportError as error:
            raise RuntimeError(f"{sys.executable} lacks openvino-genai: {error}") from None
        self.openvino, self.genai = openvino, openvino_genai
        started = time.perf_counter()
        try:
            self.pipeline = openvino_genai.LLMPipeline(model, "CPU", INFERENCE_NUM_THREADS=threads)
        except Exception as error:
            raise RuntimeError(f"OpenVINO GenAI {openvino_genai.__version__} cannot load {model}: {error}") from None
        capabilities = openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        return {
            "engine": f"OpenVINO GenAI {openvino_genai.__version__}",
            "isa": f"CPU plugin with {' '.join(capabilities)}",
            "threads": threads,
            "seconds": time.perf_counter() - started,
        }

    def generate(self, prompts, tokens):
        """Greedy, end-of-sequence ignored: `tokens` tokens of every prompt; all prompts are equally long."""
        ids = np.array(prompts, dtype=np.int64)
        inputs = self.genai.TokenizedInputs(self.openvino.Tensor(ids), self.openvino.Tensor(np.ones_like(ids)))
        config = self.genai.GenerationConfig(max_new_tokens=tokens, ignore_eos=True, do_sample=False)
        started = time.perf_counter()
        result = self.pipeline.generate(inputs, config)
        seconds = time.perf_counter() - started
        prefill = result.perf_metrics.get_ttft().mean / 1000
        return {"prefill_seconds": prefill, "decode_seconds": seconds - prefill, "token_ids": result.tokens}


if __name__ == "__main__":
    openvino_side = OpenVino()
    serve({"load": openvino_side.load, "generate": openvino_side.generate})
