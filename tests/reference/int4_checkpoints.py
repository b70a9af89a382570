"""Tiny AWQ and GPTQ checkpoints of random codes, and what their weights are: written column by column, row by row.

Formats: AutoGPTQ's and AutoAWQ's packing of eight 4-bit values into an int32. Nothing here comes from `lpx`.
"""

import json

import numpy as np
from safetensors.numpy import save_file

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def quantized_matrix(method, rows, columns, group, rng, *, symmetric, v2=False):
    """({part: array}, [rows, columns] weights) of random codes."""
    groups = columns // group
    codes = rng.integers(0, 16, (rows, columns))
    # GPTQ stores a zero less one, so it has none of 0.
    zeros = (
        np.full((rows, groups), 8) if symmetric else rng.integers(0 if method == "awq" or v2 else 1, 16, (rows, groups))
    )
    scales = (rng.uniform(0.5, 1.5, (rows, groups)) * 0.3 / np.sqrt(columns)).astype(np.float16)
    weights = np.empty((rows, columns), np.float32)
    for column in range(columns):
        at = column // group
        weights[:, column] = (codes[:, column] - zeros[:, at]).astype(np.float32) * scales[:, at].astype(np.float32)
    words = {"scales": np.ascontiguousarray(scales.T)}
    qzeros = np.zeros((groups, rows // 8), np.uint32)
    if method == "gptq":
        qweight = np.zeros((columns // 8, rows), np.uint32)
        for column in range(columns):
            qweight[column // 8] |= (codes[:, column] << 4 * (column % 8)).astype(np.uint32)
        for row in range(rows):
            qzeros[:, row // 8] |= (zeros[row] - (0 if v2 else 1) << 4 * (row % 8)).astype(np.uint32)
        words["g_idx"] = np.array([column // group for column in range(columns)], np.int32)
    else:
        qweight = np.zeros((columns, rows // 8), np.uint32)
        for row in range(rows):
            place = 4 * AWQ_ORDER.index(row % 8)
            qweight[:, row // 8] |= (codes[row] << place).astype(np.uint32)
            qzeros[:, row // 8] |= (zeros[row] << place).astype(np.uint32)
    return words | {"qweight": qweight.view(np.int32), "qzeros": qzeros.view(np.int32)}, weights


def as_checkpoint(folder, method, weights, group, *, symmetric=False, v2=False, seed=0):
    """Make an unquantized folder a checkpoint of random 4-bit matrices; returns all weights by their usual names."""
    rng = np.random.default_rng(seed)
    tensors, dequantized = {}, dict(weights)
    for name, weight in weights.items():
        stem = name.removesuffix(".weight")
        if stem.rpartition(".")[2] in PROJECTIONS and weight.ndim == 2:
            parts, dequantized[name] = quantized_matrix(method, *weight.shape, group, rng, symmetric=symmetric, v2=v2)
            tensors |= {f"{stem}.{part}": values for part, values in parts.items()}
        else:
            tensors[name] = weight.astype(np.float16)
            dequantized[name] = tensors[name].astype(np.float32)
    save_file(tensors, folder / "model.safetensors")
    section = {"quant_method": method, "bits": 4, "group_size": group}
    section |= (
        {"version": "gemm", "zero_point": not symmetric} if method == "awq" else {"sym": symmetric, "desc_act": False}
    )
    if v2:
        section["checkpoint_format"] = "gptq_v2"
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": section}))
    return dequantized
