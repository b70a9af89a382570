"""Rows of weights as GGML blocks: scales that keep the error small, and the bytes."""

from __future__ import annotations

from lpx.quantize.blocks.encoding import ENCODABLE, encode

__all__ = ["ENCODABLE", "encode"]
