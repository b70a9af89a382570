"""The result file that `vllm bench serve --save-result` writes, so that what people have for reading it goes on.

Members are named and measured as there (times in milliseconds, lists of single times in seconds); `lpx` holds the
whole report.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from statistics import pstdev
from typing import Any

from lpx.bench.load.report import LoadReport
from lpx.bench.load.settings import LoadSettings

_LONGEST_MODEL = 48  # characters, of at most 4 bytes each: names of files have 255
_LATENCIES = ("ttft", "tpot", "itl", "e2el")


def vllm_result(report: LoadReport, detailed: bool) -> dict[str, Any]:
    """The members of the file, with one entry a request where `detailed`."""
    settings, figures, results = report.settings, report.figures, report.results
    values: dict[str, Any] = {
        **settings.metadata,  # first: a name of ours is no place for anything else
        "date": report.started.strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": settings.endpoint_type,
        "backend": settings.endpoint_type,
        "label": None,
        "model_id": report.subject.model,
        "tokenizer_id": settings.tokenizer or report.subject.model,
        "num_prompts": len(results) + len(report.failures),
        "request_rate": settings.request_rate if settings.request_rate is not None else "inf",
        "burstiness": settings.burstiness,
        "max_concurrency": settings.max_concurrency,
        "duration": report.seconds,
        "completed": len(results),
        "failed": len(report.failures),
        "total_input_tokens": int(figures.get("input_tokens", 0)),
        "total_output_tokens": int(figures.get("output_tokens", 0)),
        "request_throughput": figures.get("requests_per_second", 0.0),
        "request_goodput": figures.get("goodput_requests_per_second"),
        "output_throughput": figures.get("output_tokens_per_second"),
        "total_token_throughput": figures.get("total_tokens_per_second"),
        "max_concurrent_requests": report.peak_concurrency,
    }
    for name in _LATENCIES:
        if samples := report.samples(name):
            values[f"std_{name}_ms"] = pstdev(samples)
        for figure in ("mean", "median", *(f"p{percent:g}" for percent in settings.percentiles)):
            values[f"{figure}_{name}_ms"] = figures.get(f"{name}_ms_{figure}")
    if detailed:
        values |= {
            "input_lens": [result.timings.prompt_tokens for result in results],
            "output_lens": [result.timings.output_tokens for result in results],
            "ttfts": [None if result.timings.ttft_ms is None else result.timings.ttft_ms / 1e3 for result in results],
            "itls": [[gap / 1e3 for gap in result.timings.itl_ms] for result in results],
            "generated_texts": [result.text for result in results],
            "errors": [f"{failure.kind}: {failure.detail}" for failure in report.failures],
        }
    values["lpx"] = report.as_json(detailed)
    return values


def named_paths(settings: Sequence[LoadSettings], folder: Path, filename: str) -> list[Path]:
    """Where the result of each level goes: the given name, with the concurrency in it where there are several."""
    if len(settings) == 1:
        return [folder / filename]
    given, paths = folder / filename, list[Path]()
    for each in settings:
        path = given.with_name(f"{given.stem}-{_streams(each)}{given.suffix or '.json'}")
        paths.append(path if path not in paths else path.with_stem(f"{path.stem}-{len(paths) + 1}"))
    return paths


def default_path(report: LoadReport, folder: Path) -> Path:
    """A file that is not there yet, by vLLM's pattern."""
    settings = report.settings
    rate = "inf" if settings.request_rate is None else f"{settings.request_rate:g}"
    model = re.sub(r"[^\w.+-]+", "-", report.subject.model).strip("-")[:_LONGEST_MODEL] or "model"
    moment = report.started.strftime("%Y%m%d-%H%M%S")
    stem = f"{settings.endpoint_type}-{rate}qps-{_streams(settings)}-{model}-{moment}"
    names = (f"{stem}{f'-{number}' if number > 1 else ''}.json" for number in count(1))
    return next(path for path in map(folder.joinpath, names) if not path.exists())


def _streams(settings: LoadSettings) -> str:
    return "unbounded" if settings.max_concurrency is None else f"concurrency{settings.max_concurrency}"
