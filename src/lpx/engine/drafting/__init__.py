"""Speculative decoding: tokens that are likely to come are drafted and verified together in one step.

A drafted token is accepted when it is the token that sampling gives anyway, so drafts change the speed and nothing
else. `speculation.py` decides how many to draft; each other file is one way to draft, or what the decision rests on.
"""
