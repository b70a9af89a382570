"""Quantize a GGUF file by llama.cpp: `SOURCE TARGET FTYPE [IMPORTANCE.npz]`, FTYPE such as Q4_K_M.

Runs in the interpreter that has llama-cpp-python (`--peer-python`). The importance holds one float32 array a tensor,
under the tensor's name.
"""

import ctypes
import sys

import llama_cpp.llama_cpp as llama
import numpy as np


def main(source, target, ftype, importance=None):
    quiet = llama.llama_log_callback(lambda level, text, data: None)
    llama.llama_log_set(quiet, ctypes.c_void_p(0))
    llama.llama_backend_init()
    params = llama.llama_model_quantize_default_params()
    params.ftype = getattr(llama, f"LLAMA_FTYPE_MOSTLY_{ftype}")
    params.nthread = 2
    if importance:
        loaded = np.load(importance)
        arrays = {name: np.ascontiguousarray(loaded[name], dtype=np.float32) for name in loaded.files}
        entries = (llama.llama_model_imatrix_data * (len(arrays) + 1))()  # the last one, all zeros, ends the list
        for entry, (name, values) in zip(entries, arrays.items(), strict=False):
            entry.name = name.encode()
            entry.data = values.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
            entry.size = len(values)
        params.imatrix = ctypes.cast(entries, ctypes.POINTER(llama.llama_model_imatrix_data))
    if llama.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(params)) != 0:
        sys.exit(f"llama.cpp cannot quantize {source} to {ftype}")


main(*sys.argv[1:])
