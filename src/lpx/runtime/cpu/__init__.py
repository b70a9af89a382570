"""Execution on the processor: binds the native core."""
