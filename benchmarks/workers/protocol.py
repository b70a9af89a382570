"""The line protocol between a benchmark's driver and its workers: one JSON object per line, a reply per command.

Standard library only: a worker runs in the interpreter of the engine that it measures. While a worker waits for a
command it blocks in `readline`, so it uses no CPU while the other side is measured.
"""

import json
import os
import sys
import traceback


def serve(handlers):
    """Answers commands from stdin until "quit" or end of file.

    `handlers[op](**arguments)` returns a dict. What the engine prints goes to stderr, so it cannot break the protocol.
    """
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        command = json.loads(line)
        op = command.pop("op")
        if op == "quit":
            break
        try:
            reply = handlers[op](**command)
        except Exception as error:
            traceback.print_exc()
            reply = {"error": f"{type(error).__name__}: {error}"}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()
