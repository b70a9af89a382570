"""Compares `numpy_model` with the published implementations in `transformers`: same tiny weights, prompts past windows.

The published code runs in float64, but for norms, softmax and rotary angles, where it insists on float32.

    python -m tests.reference.check_against_transformers     # from the repository root; needs torch and transformers
"""

import os
import sys
import tempfile
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import torch
import transformers

from .model_files import write_hf_folder
from .numpy_model import ReferenceModel
from .tiny_models import ARCHITECTURES, make_tiny, random_prompt

_ROPES = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
    "yarn, attention_factor": {
        "rope_type": "yarn",
        "factor": 64.0,
        "original_max_position_embeddings": 8,
        "attention_factor": 1.0,
    },
    "yarn, mscale": {
        "rope_type": "yarn",
        "factor": 40.0,
        "original_max_position_embeddings": 16,
        "mscale": 0.707,
        "mscale_all_dim": 1.0,
    },
}


def cases():
    for arch in ARCHITECTURES:
        yield arch, make_tiny(arch, 3)
    for name, rope in _ROPES.items():
        yield f"llama, {name}", make_tiny("llama", 3, rope_scaling=rope)
    yield "llama, biases", make_tiny("llama", 3, attention_bias=True)
    yield (
        "qwen2, window from layer 1",
        make_tiny("qwen2", 3, use_sliding_window=True, sliding_window=9, max_window_layers=1),
    )
    yield "gemma2, scale not head_dim", make_tiny("gemma2", 3, query_pre_attn_scalar=33)
    yield (
        "gemma3, linear factor 8 on global layers",
        make_tiny("gemma3", 3, rope_scaling={"rope_type": "linear", "factor": 8.0}),
    )
    yield "phi3, window", make_tiny("phi3", 3, sliding_window=11)
    yield "phi3, partial rotary", make_tiny("phi3", 3, partial_rotary_factor=0.5)


def main():
    torch.set_num_threads(1)
    worst = 0.0
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, (config, weights)) in enumerate(cases()):
            path = write_hf_folder(Path(folder) / str(number), config, weights)
            model = transformers.AutoModelForCausalLM.from_pretrained(
                path, dtype=torch.float64, attn_implementation="eager"
            )
            errors = []
            for length in (50, 200):
                prompt = random_prompt(config, length, number)
                with torch.no_grad():
                    theirs = model(torch.tensor([prompt])).logits[0].double().numpy()
                ours = ReferenceModel(config, weights).logits(prompt)
                errors.append(np.abs(ours - theirs).max() / np.abs(theirs).max())
            worst = max(worst, *errors)
            print(f"{name:42} largest difference / largest logit, 50 and 200 tokens: {errors[0]:.1e} {errors[1]:.1e}")
    print(f"transformers {transformers.__version__}, torch {torch.__version__}: worst {worst:.1e}")
    return int(worst > 1e-5)  # the published code computes norms, softmax and rotary angles in float32


if __name__ == "__main__":
    sys.exit(main())
