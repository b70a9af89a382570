"""`GET /metrics`: figures of the engine and of its answers in Prometheus' text format.

Stems are vLLM's, under `lpx:`. Labels beside `model_name` are kinds of endings and reasons, and small numbers: nothing
of a request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from fastapi.responses import Response

from lpx.engine.outputs import EngineStats
from lpx.server.service import Service, service_of

if TYPE_CHECKING:
    from prometheus_client import Metric

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
_COUNTERS: tuple[tuple[str, str, Callable[[EngineStats], float]], ...] = (
    ("prompt_tokens", "Tokens of prompts, those found in the prefix cache included.", lambda s: s.prompt_tokens_total),
    ("generation_tokens", "Tokens of answers.", lambda stats: stats.generation_tokens_total),
    ("num_preemptions", "Times that a sequence gave its blocks up.", lambda stats: stats.preemptions_total),
    ("prefix_cache_queries", "Prompt tokens that were looked up.", lambda stats: stats.prefix_cache_queries_total),
    ("prefix_cache_hits", "Prompt tokens that were found.", lambda stats: stats.prefix_cache_hits_total),
    ("spec_decode_num_drafts", "Drafts that were verified.", lambda stats: stats.drafts.steps),
    ("spec_decode_num_draft_tokens", "Tokens that were drafted.", lambda stats: stats.drafts.drafted),
    ("spec_decode_num_accepted_tokens", "Drafted tokens that were right.", lambda stats: stats.drafts.accepted),
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
        self._stats = service.engine.stats()
        self._latencies = service.latencies
        self._model = [service.model_name]

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        for stem, text, value in _GAUGES:
            gauge = GaugeMetricFamily(f"lpx:{stem}", text, labels=["model_name"])
            gauge.add_metric(self._model, value(self._stats))
            yield gauge
        for stem, text, value in _COUNTERS:
            counter = CounterMetricFamily(f"lpx:{stem}", text, labels=["model_name"])
            counter.add_metric(self._model, value(self._stats))
            yield counter
        ends = CounterMetricFamily(
            "lpx:request_success", "Sequences that ended, by how they did.", labels=["model_name", "finished_reason"]
        )
        for reason, count in self._stats.finished_total.items():
            ends.add_metric([*self._model, reason], count)
        yield ends
        yield from self._speculation()
        for stem, text, latency in (
            ("time_to_first_token_seconds", "From arrival to first token.", self._latencies.time_to_first_token),
            (
                "inter_token_latency_seconds",
                "Between tokens; those that come together share the time since the ones before.",
                self._latencies.inter_token,
            ),
            ("e2e_request_latency_seconds", "From arrival to the end.", self._latencies.end_to_end),
        ):
            histogram = HistogramMetricFamily(f"lpx:{stem}", text, labels=["model_name"])
            histogram.add_metric(self._model, latency.cumulative(), latency.total)
            yield histogram

    def _speculation(self) -> Iterator[Metric]:
        """Which drafts were right, and why there was none: enough to see why speculation is on or off."""
        from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

        drafts = self._stats.drafts
        for kind, counts in (("draft", drafts.drafted_by_position), ("accepted", drafts.accepted_by_position)):
            by_position = CounterMetricFamily(
                f"lpx:spec_decode_num_{kind}_tokens_per_pos",
                f"{'Drafted' if kind == 'draft' else 'Right'} tokens by their place in the draft.",
                labels=["model_name", "position"],
            )
            for position, count in enumerate(counts):
                by_position.add_metric([*self._model, str(position)], count)
            yield by_position
        declined = CounterMetricFamily(
            "lpx:spec_decode_num_declined",
            "Looks for a draft that ended without one, by sequence and reason.",
            labels=["model_name", "reason"],
        )
        for reason, count in self._stats.drafts_declined.items():
            declined.add_metric([*self._model, reason], count)
        yield declined
        cost = GaugeMetricFamily(
            "lpx:spec_decode_step_cost_seconds",
            "What a decode step is expected to take, by its number of rows.",
            labels=["model_name", "rows"],
        )
        for rows, ms in self._stats.step_cost_ms.items():
            cost.add_metric([*self._model, str(rows)], ms / 1e3)
        yield cost
