"""Quantize: a model in float weights to a GGUF file with fewer bits, with as little change of its answers as possible."""
