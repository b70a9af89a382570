"""Load a GGUF file in llama.cpp and print what it answers to a prompt, greedily: `MODEL PROMPT`.

Runs in the interpreter that has llama-cpp-python (`--peer-python`).
"""

import sys

from llama_cpp import Llama

model = Llama(sys.argv[1], n_ctx=256, n_threads=2, verbose=False)
print(model.create_completion(sys.argv[2], max_tokens=12, temperature=0)["choices"][0]["text"].strip())
