"""Whether a server answers. Called by smoke-test.sh, which sets LPX_URL and LPX_API_KEY; needs Python alone."""

import argparse
import http.client
import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request

PROMPTS = {"English": "The capital of France is", "Chinese": "中国的首都是"}
SECONDS_FOR_AN_ANSWER = 120
UNANSWERED = (OSError, http.client.HTTPException, ValueError)  # the last of addresses and keys that are none


class SmokeError(Exception):
    """The server does not do what it should; the message is the line to print."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Ask the server for one answer in English and one in Chinese.")
    parser.add_argument("--wait", type=float, default=120, metavar="SECONDS", help="for the server to be ready")
    wait = parser.parse_args().wait
    if not 0 <= wait < 1e6:
        parser.error(f"--wait takes a number of seconds, not {wait}")
    url = os.environ.get("LPX_URL", "http://127.0.0.1:8080").rstrip("/")
    try:
        wait_until_ready(url, wait)
        counts = [f"{count} tokens in {language}" for language, count in ask_all(url).items()]
    except SmokeError as error:
        print(f"smoke test failed: {error}", file=sys.stderr)
        return 1
    print(f"smoke test passed: {' and '.join(counts)} from {url}{served_model(url)}")
    return 0


def wait_until_ready(url: str, seconds: float) -> None:
    """Raises SmokeError with what the server said last."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            status, said = fetch(f"{url}/health/ready", timeout=5)
            if status == 200:
                return
            state = f"answers {status}: {said[:200]}"
        except UNANSWERED as error:
            state = f"cannot be reached ({getattr(error, 'reason', error)})"
        if time.monotonic() >= deadline:
            raise SmokeError(f"{url} is not ready after {seconds:g} s: it {state}")
        time.sleep(0.2)


def ask_all(url: str) -> dict[str, int]:
    """Tokens of the answer in each language; raises SmokeError where there are none."""
    counts = {}
    for language, prompt in PROMPTS.items():
        body = {"prompt": prompt, "max_tokens": 8, "min_tokens": 1, "temperature": 0}
        try:
            status, said = fetch(f"{url}/v1/completions", body, timeout=SECONDS_FOR_AN_ANSWER)
        except UNANSWERED as error:
            raise SmokeError(f"no answer in {language}: {getattr(error, 'reason', error)}") from None
        if status != 200:
            raise SmokeError(f"no answer in {language}: {url} answers {status}: {said[:200]}")
        counts[language] = count_tokens(said, language)
    return counts


def served_model(url: str) -> str:
    """Name and version of the model as far as the server tells them, ready to be shown."""
    try:
        status, said = fetch(f"{url}/v1/models", timeout=5)
        model = json.loads(said)["data"][0] if status == 200 else {}
        return f" ({model['id']}, version {model['version']})" if model.get("version") else f" ({model['id']})"
    except (*UNANSWERED, KeyError, IndexError, TypeError, AttributeError):
        return ""


def count_tokens(said: str, language: str) -> int:
    try:
        count = json.loads(said)["usage"]["completion_tokens"]
    except (ValueError, KeyError, TypeError):
        raise SmokeError(f"no answer in {language}: what came is no completion: {said[:200]}") from None
    if not isinstance(count, int) or count < 1:
        raise SmokeError(f"no answer in {language}: it has no tokens")
    return count


def fetch(url: str, body: object = None, *, timeout: float) -> tuple[int, str]:
    """Status and text; raises one of UNANSWERED where nobody answers."""
    request = urllib.request.Request(url, None if body is None else json.dumps(body).encode())
    request.add_header("Content-Type", "application/json")
    if keys := os.environ.get("LPX_API_KEY", "").split():
        request.add_header("Authorization", f"Bearer {keys[0]}")
    # No proxy: the server is meant that the address names.
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if url.startswith("https://127.0.0.1:"):  # certificates name hosts, so this machine's own cannot be checked so
        handlers.append(urllib.request.HTTPSHandler(context=ssl._create_unverified_context()))
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=timeout) as response:
            return response.status, response.read().decode("utf-8", "replace")
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode("utf-8", "replace")


if __name__ == "__main__":
    sys.exit(main())
