"""Measuring: what the machine can do at most, and how near the engine comes. Prints nothing."""
