"""Pictures of recorded runs: over time, over the batch size, and against the machine's limits.

`curves` says which runs belong together, `drawing` and `roofline_drawing` draw with matplotlib (extra `plot`) in the
colours of `theme` and the letters of `fonts`, `pictures` chooses what to draw, and `files` writes PNG, SVG and one HTML
page that needs nothing else.
"""
