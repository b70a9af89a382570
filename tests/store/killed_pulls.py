"""Pulls that are killed, or find the disk full, at many moments: each in a fork, judged from outside.

    python -m tests.store.killed_pulls MODE REFERENCE FOLDER SEED COUNT

MODE is `kill` (SIGKILL at a byte of the download, or before a change of the disk) or `full` (no file may grow beyond
some size, which to a writer is what a full disk is). Moments are counted in bytes and operations and drawn from SEED,
never timed. After each, whatever the store lists must be sound, and a pull that nothing disturbs must bring the whole
model. Prints one JSON line a moment, and ends with code 1 at the first that breaks a rule.
"""

from __future__ import annotations

import json
import os
import pathlib
import random
import resource
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

# What pulls import on the way, here once, before the forks.
import httpx  # noqa: F401
from huggingface_hub import HfApi, get_token, hf_hub_url  # noqa: F401
from huggingface_hub.errors import HfHubHTTPError  # noqa: F401
from huggingface_hub.utils import build_hf_headers  # noqa: F401

from lpx.errors import DownloadError
from lpx.model.files import resolve_model
from lpx.model.gguf import GgufFile  # noqa: F401
from lpx.store.fetch import fetch
from lpx.store.folder import list_models
from lpx.store.http import Patience
from lpx.store.verify import verify

IMPATIENT = Patience(tries=2, pause_s=0.0)
CHANGES = ((os, "fsync"), (pathlib.Path, "replace"), (pathlib.Path, "rename"), (pathlib.Path, "unlink"))


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def in_fork(work: Callable[..., None], *arguments: object) -> int:
    """The exit status of a process that does `work`: negative for a signal, 3 for a refusal."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work(*arguments)
            code = 0
        except DownloadError:
            code = 3
        finally:
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def pull(reference: str, folder: Path) -> None:
    fetch(reference, folder, patience=IMPATIENT, insecure=True)


def killed_at_byte(reference: str, folder: Path, moment: int) -> None:
    def progress(phase: str, done: int, total: int) -> None:
        if phase == "downloading" and done >= moment:
            kill()

    fetch(reference, folder, progress, patience=IMPATIENT, insecure=True)


def killed_at_change(reference: str, folder: Path, moment: int) -> None:
    left = moment

    def counted(original: Callable[..., object]) -> Callable[..., object]:
        def change(*arguments: object, **options: object) -> object:
            nonlocal left
            left -= 1
            if left < 0:
                kill()
            return original(*arguments, **options)

        return change

    for owner, name in CHANGES:
        setattr(owner, name, counted(getattr(owner, name)))
    pull(reference, folder)


def full_at(reference: str, folder: Path, moment: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (moment, resource.RLIM_INFINITY))
    pull(reference, folder)


def check_sound(folder: Path) -> int:
    """Whatever is listed is whole, and what a name means can be found; returns how many models there are."""
    models = list_models(folder)
    for model in models:
        verdict = verify(model)
        assert verdict.sound, verdict
        assert resolve_model(model.name, folder) == model.path
    return len(models)


def main(mode: str, reference: str, folder: Path, seed: int, count: int) -> None:
    draw = random.Random(seed)
    whole = folder / "whole"
    assert in_fork(pull, reference, whole) == 0
    (model,) = list_models(whole)
    size = model.file_bytes
    for number in range(count):
        store = folder / f"store-{number}"
        if mode == "full":
            moment = draw.randrange(size)
            status = in_fork(full_at, reference, store, moment)
            assert status == 3, status
            what = "file size"
        elif number % 2:
            moment = draw.randrange(30)
            status = in_fork(killed_at_change, reference, store, moment)
            assert status in (0, -signal.SIGKILL), status
            what = "change"
        else:
            moment = draw.randrange(size)
            status = in_fork(killed_at_byte, reference, store, moment)
            assert status == -signal.SIGKILL, status
            what = "byte"
        shown = check_sound(store)
        assert in_fork(pull, reference, store) == 0
        assert check_sound(store) == 1
        left = sorted(entry.name for entry in store.iterdir() if not entry.name.endswith(".lock"))
        assert left == [model.name], left
        row = {"mode": mode, "what": what, "moment": moment, "status": status, "shown_after": shown}
        print(json.dumps(row), flush=True)
        shutil.rmtree(store)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
