"""`GET /metrics`: figures of the engine, its answers and the process in Prometheus' text format.

Stems are vLLM's, under `lpx:`. Labels beside `model_name` are kinds of endings, reasons and phases, and small numbers:
nothing of a request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from fastapi.responses import Response

from lpx.engine.histogram import Histogram
from lpx.engine.outputs import EngineInfo, EngineStats
from lpx.server.latencies import Latencies
from lpx.server.service import Service, service_of

if TYPE_CHECKING:
    from prometheus_client import Metric
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

router = APIRouter()

# Stem, what it tells, and where it comes from. A counter gets "_total" behind its stem.
_GAUGES: tuple[tuple[str, str, Callable[[EngineStats], float]], ...] = (
    ("num_requests_running", "Sequences that are being computed.", lambda stats: stats.running),
    ("num_requests_waiting", "Sequences that wait to be computed.", lambda stats: stats.waiting),
    (
        "kv_cache_usage_perc",
        "Part of the KV blocks that running sequences hold; 1 is all. Cached blocks that nobody holds are free.",
        lambda stats: 1 - stats.free_blocks / stats.total_blocks,
    ),
)
_SIZES: tuple[tuple[str, str, Callable[[EngineInfo], float]], ...] = (
    ("num_threads", "Threads that compute.", lambda info: info.threads),
    ("weight_bytes", "Memory of the weights.", lambda info: info.weight_bytes),
    ("kv_cache_bytes", "Memory of the KV cache.", lambda info: info.kv_bytes),
)
_COUNTERS: tuple[tuple[str, str, Callable[[EngineStats], float]], ...] = (
    ("prompt_tokens", "Tokens of prompts, those found in the prefix cache included.", lambda s: s.prompt_tokens_total),
    ("generation_tokens", "Tokens of answers.", lambda stats: stats.generation_tokens_total),
    ("num_preemptions", "Times that a sequence gave its blocks up.", lambda stats: stats.preemptions_total),
    ("num_steps", "Steps of the engine.", lambda stats: stats.steps_total),
    ("prefix_cache_queries", "Prompt tokens that were looked up.", lambda stats: stats.prefix_cache_queries_total),
    ("prefix_cache_hits", "Prompt tokens that were found.", lambda stats: stats.prefix_cache_hits_total),
    ("spec_decode_num_drafts", "Drafts that were verified.", lambda stats: stats.drafts.steps),
    ("spec_decode_num_draft_tokens", "Tokens that were drafted.", lambda stats: stats.drafts.drafted),
    ("spec_decode_num_accepted_tokens", "Drafted tokens that were right.", lambda stats: stats.drafts.accepted),
)
_HISTOGRAMS: tuple[tuple[str, str, Callable[[Latencies], Histogram]], ...] = (
    ("time_to_first_token_seconds", "From arrival to first token.", lambda each: each.time_to_first_token),
    (
        "inter_token_latency_seconds",
        "Between tokens; those that come together share the time since the ones before.",
        lambda each: each.inter_token,
    ),
    (
        "request_time_per_output_token_seconds",
        "Decode time of a choice by its tokens behind the first.",
        lambda each: each.per_output_token,
    ),
    ("e2e_request_latency_seconds", "From arrival to the end.", lambda each: each.end_to_end),
    ("request_queue_time_seconds", "From arrival to the first step.", lambda each: each.queue),
    ("request_prefill_time_seconds", "From the first step to the first token.", lambda each: each.prefill),
    ("request_decode_time_seconds", "From the first token to the last.", lambda each: each.decode),
    ("request_inference_time_seconds", "From the first step to the last token.", lambda each: each.inference),
    ("request_prompt_tokens", "Tokens of prompts, by choice.", lambda each: each.prompt_tokens),
    ("request_generation_tokens", "Tokens of answers, by choice.", lambda each: each.generation_tokens),
)


@router.api_route("/metrics", methods=["GET", "HEAD"])
async def metrics(request: Request) -> Response:
    from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Figures(service_of(request)))
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


class _Figures:
    """A collector over one look at the service."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._stats = service.engine.stats()
        self._model = service.model_name

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        stats, info, latencies = self._stats, self._service.engine.info, self._service.latencies
        for stem, text, value in _GAUGES:
            yield self._gauge(stem, text, value(stats))
        for stem, text, size in _SIZES:
            yield self._gauge(stem, text, size(info))
        for stem, text, value in _COUNTERS:
            yield self._counter(stem, text, value(stats))
        yield self._counters(
            "request_success", "Sequences that ended, by how they did.", "finished_reason", stats.finished_total.items()
        )
        for stem, text, histogram in _HISTOGRAMS:
            yield self._histograms(stem, text, [((), histogram(latencies))])
        yield self._model_info()
        yield from self._steps()
        yield from self._speculation()
        yield from self._refusals()
        yield from self._process()

    def _model_info(self) -> Metric:
        from prometheus_client.metrics_core import InfoMetricFamily

        info = self._service.engine.info
        labels = {"model_name": self._model, "version": info.model_version or "", "quantization": info.quantization}
        return InfoMetricFamily("lpx:model", "The model that is served. Counters begin anew with another one.", labels)

    def _steps(self) -> Iterator[Metric]:
        from prometheus_client.metrics_core import InfoMetricFamily

        times, info = self._stats.step_times, self._service.engine.info
        yield self._counters(
            "step_phase_seconds",
            "Time inside the engine's steps, by what it went into.",
            "phase",
            times.phases().items(),
        )
        yield self._histograms(
            "step_time_seconds",
            "Steps of the engine, by whether they held rows of prompts.",
            [(("decode",), times.decode_seconds), (("prompt",), times.prompt_seconds)],
            "kind",
        )
        yield self._histograms("iteration_tokens_total", "Rows of a step.", [((), times.tokens)])
        yield InfoMetricFamily(
            "lpx:cache_config",
            "The KV cache.",
            {
                "model_name": self._model,
                "block_size": str(info.block_size),
                "num_blocks": str(info.num_blocks),
                "cache_dtype": info.kv_cache_dtype,
                "enable_prefix_caching": str(info.prefix_caching),
            },
        )

    def _speculation(self) -> Iterator[Metric]:
        """Which drafts were right, and why there was none: enough to see why speculation is on or off."""
        drafts = self._stats.drafts
        for kind, text, counts in (
            ("draft", "Drafted tokens by their place in the draft.", drafts.drafted_by_position),
            ("accepted", "Right tokens by their place in the draft.", drafts.accepted_by_position),
        ):
            stem = f"spec_decode_num_{kind}_tokens_per_pos"
            yield self._counters(stem, text, "position", ((str(at), count) for at, count in enumerate(counts)))
        yield self._counters(
            "spec_decode_num_declined",
            "Looks for a draft that ended without one, by sequence and reason.",
            "reason",
            self._stats.drafts_declined.items(),
        )
        yield self._gauges(
            "spec_decode_step_cost_seconds",
            "What a decode step is expected to take, by its number of rows.",
            "rows",
            ((str(rows), ms / 1e3) for rows, ms in self._stats.step_cost_ms.items()),
        )

    def _refusals(self) -> Iterator[Metric]:
        service = self._service
        yield self._counters(
            "requests_refused", "Requests that were turned away, by reason.", "reason", service.refusals.items()
        )
        dropped = 0 if service.text_log is None else service.text_log.dropped
        yield self._counter("request_log_dropped", "Requests that --log-requests-to could not write.", dropped)

    def _process(self) -> Iterator[Metric]:
        import psutil  # type: ignore[import-untyped]

        process = psutil.Process()
        with process.oneshot():
            cpu = process.cpu_times()
            yield self._gauge("process_resident_memory_bytes", "Memory of the process.", process.memory_info().rss)
            yield self._gauge("process_threads", "Threads of the process, idle ones included.", process.num_threads())
            yield self._gauge("process_open_fds", "Open files and connections.", process.num_fds())
            yield self._counter("process_cpu_seconds", "Processor time of the process.", cpu.user + cpu.system)

    # --- families, each with the model's name ---

    def _gauge(self, stem: str, text: str, value: float) -> Metric:
        from prometheus_client.metrics_core import GaugeMetricFamily

        return self._filled(GaugeMetricFamily, stem, text, [((), value)])

    def _gauges(self, stem: str, text: str, label: str, values: Iterable[tuple[str, float]]) -> Metric:
        from prometheus_client.metrics_core import GaugeMetricFamily

        return self._filled(GaugeMetricFamily, stem, text, (((name,), value) for name, value in values), label)

    def _counter(self, stem: str, text: str, value: float) -> Metric:
        from prometheus_client.metrics_core import CounterMetricFamily

        return self._filled(CounterMetricFamily, stem, text, [((), value)])

    def _counters(self, stem: str, text: str, label: str, values: Iterable[tuple[str, float]]) -> Metric:
        from prometheus_client.metrics_core import CounterMetricFamily

        return self._filled(CounterMetricFamily, stem, text, (((name,), value) for name, value in values), label)

    def _filled(
        self,
        kind: type[GaugeMetricFamily] | type[CounterMetricFamily],
        stem: str,
        text: str,
        values: Iterable[tuple[tuple[str, ...], float]],
        *labels: str,
    ) -> Metric:
        family = kind(f"lpx:{stem}", text, labels=["model_name", *labels])
        for names, value in values:
            family.add_metric([self._model, *names], value)
        return family

    def _histograms(
        self, stem: str, text: str, histograms: Iterable[tuple[tuple[str, ...], Histogram]], *labels: str
    ) -> Metric:
        from prometheus_client.metrics_core import HistogramMetricFamily

        family = HistogramMetricFamily(f"lpx:{stem}", text, labels=["model_name", *labels])
        for values, histogram in histograms:
            family.add_metric([self._model, *values], histogram.cumulative(), histogram.total)
        return family
