"""Many requests from a file of lines: read, sent to a target, written down so that no kill loses more than what runs.

`BatchRun` drives a `Target`: a server over HTTP, or the engine in this process, which is asked through the server's own
routes (`lpx.server.in_process`), so that parameters and errors are the same. `BatchStore` keeps the files and batches
of the HTTP API.
"""
