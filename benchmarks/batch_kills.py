"""Kill `lpx batch run` again and again, with a server that fails at random, and see that nothing is lost or doubled.

    python benchmarks/batch_kills.py [--lines 5000] [--kills 30] [--order input|completion] [--in-process MODEL]

A run with `--resume` is killed with SIGKILL at random moments, some of them while it puts its results in order; the
last one ends by itself. Then every line must have exactly one result, in order when that was asked for, and the results
must be those of one undisturbed run on a sound server (without what differs from run to run: ids, times, attempts).
The server answers with a function of the request; now and then it answers 500, 429 with Retry-After, resets the
connection, or answers half. With `--in-process` the engine of a real model answers instead.
"""

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

SOUND, FLAKY = 0.0, 0.12


class AnswerServer(ThreadingHTTPServer):
    """An OpenAI-compatible server whose answers are known, and which fails as often as it is told."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, failing=SOUND, seed=0):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.failing = failing
        self.chance = random.Random(seed)
        self.answered = 0
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request, client_address):
        pass  # clients are killed here


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16

    def log_message(self, *arguments):
        pass

    def do_GET(self):
        self._answer(200, {"object": "list", "data": [{"id": "answers", "object": "model"}]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        chance = self.server.chance
        failing = chance.random() < self.server.failing
        kind = chance.choice(("500", "429", "reset", "half")) if failing else ""
        if kind == "500":
            return self._answer(500, {"error": {"message": "by chance", "type": "server_error"}})
        if kind == "429":
            return self._answer(429, {"error": {"message": "too many"}}, {"retry-after": "0"})
        if kind == "reset":
            self.close_connection = True
            return None
        text = json.dumps(body, sort_keys=True, ensure_ascii=False)
        if "不行" in text:
            return self._answer(400, {"error": {"message": "never", "type": "invalid_request_error", "code": "never"}})
        answer = {
            "id": f"cmpl-{chance.randrange(1 << 60)}",
            "object": "text_completion",
            "model": body.get("model"),
            "choices": [
                {"index": 0, "text": "答 " + hashlib.sha256(text.encode()).hexdigest(), "finish_reason": "stop"}
            ],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
        }
        self.server.answered += 1
        return self._answer(200, answer, cut=kind == "half")

    def _answer(self, status, value, headers=None, cut=False):
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        for name, text in (headers or {}).items():
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(data[: len(data) // 2] if cut else data)
        self.wfile.flush()
        self.close_connection = self.close_connection or cut


def write_input(path, lines, seed):
    chance = random.Random(seed)
    with path.open("w", encoding="utf-8", newline="") as file:
        for index in range(lines):
            text = f"第 {index} 行\u2028" + "".join(chance.choices('abc 你好\n"\\', k=chance.randrange(60)))
            line = {"custom_id": f"行 {index}", "method": "POST", "url": "/v1/completions"}
            line["body"] = {"prompt": text, "max_tokens": 8, "temperature": 0}
            kind = chance.random()
            if kind < 0.02:
                line["body"]["prompt"] = "不行 " + text
                line["body"]["temperature"] = -1  # an engine refuses that, too
            elif kind < 0.03:
                line = {"prompt": text, "max_tokens": 8, "temperature": 0}
            file.write(("{broken" if 0.03 <= kind < 0.04 else json.dumps(line, ensure_ascii=False)) + "\n")
            if kind > 0.98:
                file.write("  \r\n")


class Runs:
    """Starts the command on one input."""

    def __init__(self, folder, target, order, inflight):
        self.folder = folder
        self.arguments = [
            *("-i", str(folder / "in.jsonl"), "--order", order, "--max-inflight", str(inflight), "--retries", "20"),
            *target,
        ]
        self.environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

    def start(self, output, *more):
        command = [sys.executable, "-m", "lpx", "batch", "run", "-o", str(output), *self.arguments, *more]
        log = (self.folder / "stderr.txt").open("ab")
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log, env=self.environment)


def kill_again_and_again(runs, output, kills, chance, pause_s):
    """How many runs were killed, and the exit code of the one that was not."""
    killed = 0
    while True:
        process = runs.start(output, "--resume")
        before = output.stat().st_size if output.exists() else 0
        if killed >= kills:
            return killed, process.wait()
        # From the moment when results come: before that a kill would only hit the start of the interpreter.
        while process.poll() is None and (output.stat().st_size if output.exists() else 0) <= before:
            time.sleep(0.01)
        time.sleep(chance.random() * pause_s)
        if process.poll() is not None:
            return killed, process.returncode
        process.send_signal(signal.SIGKILL)
        process.wait()
        killed += 1


def comparable(line):
    """What must not differ from run to run."""
    value = json.loads(line)
    response = value["response"]
    body = {key: item for key, item in (response["body"] or {}).items() if key not in ("id", "created", "timings")}
    body.pop("usage", None)  # tells how much of a prompt was cached
    traced = {key: value["lpx"][key] for key in ("index", "line", "offset", "input_sha256")}
    return json.dumps([value["custom_id"], response["status_code"], body, value["error"], traced], sort_keys=True)


def read_results(path):
    data = path.read_bytes()
    assert data.endswith(b"\n"), "the output ends inside a line"
    return data.split(b"\n")[:-1]


def check(lines, disturbed, undisturbed, order):
    """Raises AssertionError with what is wrong."""
    results, wanted = read_results(disturbed), read_results(undisturbed)
    indexes = [json.loads(line)["lpx"]["index"] for line in results]
    assert sorted(indexes) == list(range(lines)), "lines are missing or there twice"
    if order == "input":
        assert indexes == list(range(lines)), "the results are not in order"
    assert sorted(map(comparable, results)) == sorted(map(comparable, wanted)), "the results differ"


def measure(folder, lines, kills, seed, order, model=None, inflight=16, pause_s=1.0):
    """Write, run, kill, compare; what was seen, as a dict."""
    write_input(folder / "in.jsonl", lines, seed)
    sound, flaky = AnswerServer(SOUND, seed), AnswerServer(FLAKY, seed)
    in_process = None if model is None else ["--model", model, "--max-model-len", "512"]
    undisturbed, disturbed = folder / "undisturbed.jsonl", folder / "disturbed.jsonl"
    begin = time.monotonic()
    Runs(folder, in_process or ["--url", sound.url], "input", inflight).start(undisturbed).wait()
    if not undisturbed.exists():
        raise SystemExit((folder / "stderr.txt").read_text())
    once_s = time.monotonic() - begin
    runs = Runs(folder, in_process or ["--url", flaky.url], order, inflight)
    killed, code = kill_again_and_again(runs, disturbed, kills, random.Random(seed), pause_s)
    check(lines, disturbed, undisturbed, order)
    asked = None if model else flaky.answered
    for server in (sound, flaky):
        server.shutdown()
        server.server_close()
    return {"lines": lines, "killed": killed, "exit_code": code, "order": order, "answers": asked, "once_s": once_s}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lines", type=int, default=5000)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--order", choices=("input", "completion"), default="input")
    parser.add_argument(
        "--pause", type=float, default=1.0, help="longest time from the first result to a kill, seconds"
    )
    parser.add_argument("--in-process", metavar="MODEL")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        seen = measure(
            Path(folder),
            options.lines,
            options.kills,
            options.seed,
            options.order,
            options.in_process,
            pause_s=options.pause,
        )
    again = "" if seen["answers"] is None else f", {seen['answers']} answers of the server"
    print(f"{seen['lines']} lines, killed {seen['killed']} times{again}: every line once, as undisturbed")


if __name__ == "__main__":
    main()
