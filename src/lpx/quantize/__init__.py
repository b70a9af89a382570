"""Quantize: a model in float weights to a GGUF file with fewer bits, and answers as near as can be."""
