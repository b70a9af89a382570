"""Sides in alternation on the same prompts: how much faster, and whether they say the same."""
