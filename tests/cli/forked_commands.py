"""Many command lines in one start of Python: each runs in a fork of a process that has LPX imported.

`python -m tests.cli.forked_commands` reads a JSON list of argument lists from standard input and prints one JSON line
for each: its exit code (negative: the signal that ended it), and what it wrote.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pkgutil
import resource
import signal
import sys
import tempfile
import traceback
from typing import IO, NoReturn

LIMIT_S = 60  # of one command; a good one takes milliseconds
MOST_CPU_S = 20
MOST_MEMORY_BYTES = 4 << 30
LONGEST_OUTPUT = 1 << 20


def main() -> None:
    import_all()
    gc.collect()
    gc.freeze()  # so that forks share it

    cases = json.load(sys.stdin)
    for arguments in cases:
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            code = run(arguments, out, err)
            texts = []
            for file in (out, err):
                file.seek(0)
                texts.append(file.read(LONGEST_OUTPUT).decode("utf-8", "replace"))
        print(json.dumps([code, *texts]), flush=True)


def import_all() -> None:
    """Every module of LPX, and what they import: once here instead of in every fork."""
    import lpx

    for module in pkgutil.walk_packages(lpx.__path__, "lpx."):
        if not module.name.endswith(("__main__", "_worker")):
            importlib.import_module(module.name)


def run(arguments: list[str], out: IO[bytes], err: IO[bytes]) -> int:
    pid = os.fork()
    if pid == 0:
        become_command(arguments, out, err)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def become_command(arguments: list[str], out: IO[bytes], err: IO[bytes]) -> NoReturn:
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY_BYTES, MOST_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_CPU_S, MOST_CPU_S))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.alarm(LIMIT_S)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(out.fileno(), 1)
    os.dup2(err.fileno(), 2)
    sys.stdin = open(0, encoding="utf-8", errors="surrogateescape")  # noqa: SIM115
    sys.argv = ["lpx", *arguments]
    code = 1
    try:
        from lpx.cli import main as run_lpx

        run_lpx()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


if __name__ == "__main__":
    main()
