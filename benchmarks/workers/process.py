"""The driver's end of a worker: start it, ask it, know what it and the rest of the machine used of the CPU."""

import json
import platform
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

FOLDER = Path(__file__).parent


class WorkerError(RuntimeError):
    """A worker failed or ended; the message says which and why."""


@dataclass(frozen=True)
class Usage:
    """What happened while a command ran."""

    seconds: float
    cpu_seconds: float  # of the worker
    other_share: float  # CPU of everybody else, as a share of the machine; beyond about 0.1 a timing means little


class Worker:
    """A worker process that answers one command at a time; a context manager."""

    def __init__(self, name, python, script):
        self.name = name
        self._process = subprocess.Popen(
            [str(python), str(FOLDER / script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for the driver, which then closes its workers
        )
        self._watch = psutil.Process(self._process.pid)

    def ask(self, op, **arguments):
        return self.measure(op, **arguments)[0]

    def measure(self, op, **arguments):
        """(reply, Usage) of one command; raises WorkerError."""
        busy, own, started = machine_busy_seconds(), self._own_seconds(), time.perf_counter()
        try:
            self._process.stdin.write(json.dumps({"op": op, **arguments}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        seconds = time.perf_counter() - started
        if not line:
            raise WorkerError(f"the {self.name} worker ended with exit code {self._process.wait()}")
        own, busy = self._own_seconds() - own, machine_busy_seconds() - busy
        reply = json.loads(line)
        if "error" in reply:
            raise WorkerError(f"{self.name}: {reply['error']}")
        return reply, Usage(seconds, own, max(0.0, busy - own) / (seconds * psutil.cpu_count()))

    def memory(self):
        """Peak resident bytes so far (VmHWM)."""
        for line in Path(f"/proc/{self._process.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        raise WorkerError("no VmHWM in /proc: memory can be measured on Linux only")

    def close(self):
        if self._process.poll() is None:
            self._process.stdin.close()
            self._process.wait()
        self._process.stdout.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _own_seconds(self):
        times = self._watch.cpu_times()
        return times.user + times.system


def least_disturbed(measurements, quiet):
    """Of (reply, CPU share of others) the one with the smallest share; the first that is quiet enough ends the search.

    `measurements` is asked for one after another, so what is not needed is not measured.
    """
    best = None
    for reply, share in measurements:
        if best is None or share < best[1]:
            best = (reply, share)
        if share <= quiet:
            break
    return best


def processor_name():
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def machine_busy_seconds():
    times = psutil.cpu_times()
    return times.user + times.nice + times.system + times.irq + times.softirq + times.steal
