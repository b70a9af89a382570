"""What may make the figures of a load say something else than they seem to."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from lpx.bench.load.kept_answers import KeptAnswers
from lpx.bench.load.prompt_sets import PromptSet
from lpx.bench.load.report import RecountedTokens, Result, unknown_for_goodput
from lpx.bench.load.settings import LoadSettings

_CACHED_SHARE = 0.05
_FLAT = 1.25  # of TTFT between short and long prompts
_LONGER = 2.0  # times as many tokens in long prompts as in short ones
_LONG_TOKENS = 256  # below, TTFT may be all overhead
_QUIET_CONCURRENCY = 4  # above, waiting for other requests hides what a prompt costs
_SHORT_ANSWER = 0.9  # of the tokens wanted; texts that are encoded again may miss some
_CACHE_SETS = ("prefix_repetition", "chat")  # whose subject is the cache


def load_warnings(
    settings: LoadSettings,
    prompts: PromptSet | None,
    results: Sequence[Result],
    *,
    sent: int = 0,
    sent_before: int = 0,
    peak_concurrency: int = 0,
    recounted: RecountedTokens | None = None,
    late_ticks: float = 0.0,
    ran_out: bool = False,
    kept: KeptAnswers | None = None,
) -> list[str]:
    """One sentence each. `late_ticks` is the share of moments at which this client itself was late.

    `prompts` is None where none were made, `kept` tells what of the answers is kept. `sent` are the requests of this
    load, `sent_before` those of the same set that loads just before it sent.
    """
    found = [
        *_about_cache(settings, prompts, results, peak_concurrency),
        *_about_earlier_answers(prompts, sent, sent_before),
        *_about_tokens(settings, results),
        *_about_ends(settings, results),
        *_about_goodput(settings, results),
        *_about_memory(prompts, kept),
    ]
    if recounted is not None and recounted.counted != recounted.recounted:
        found.append(
            f"the server counts {recounted.counted} tokens in {recounted.answers} answers, encoding their texts again "
            f"gives {recounted.recounted}; the figures use the server's"
        )
    if results and settings.paced:
        late = statistics.median(result.late_s for result in results)
        if late > 0.05 * statistics.median(result.timings.e2el_ms for result in results) / 1e3:
            found.append(
                f"half of the requests were sent {1e3 * late:.0f} ms or more after they were due, because "
                f"--max-concurrency were under way: the rate was not reached, and that wait is in no figure"
            )
    if ran_out and prompts is not None:
        found.append(f"all {prompts.requests} prompts were sent before --duration was over; raise --num-prompts")
    if late_ticks > 0.1:
        found.append(
            f"this client was late itself in {100 * late_ticks:.0f} % of all moments: times may be too long; give it a "
            "processor of its own, or lower the load"
        )
    return found


def _about_cache(
    settings: LoadSettings, prompts: PromptSet | None, results: Sequence[Result], peak_concurrency: int
) -> Iterator[str]:
    if settings.dataset_name in _CACHE_SETS:
        return
    if prompts is not None and prompts.repeats:
        yield "the same prompts are sent more than once: a prefix cache makes TTFT better than it is for new prompts"
    cached = sum(result.timings.cached_tokens or 0 for result in results)
    counted = sum(result.timings.prompt_tokens or 0 for result in results)
    if counted and cached > _CACHED_SHARE * counted and not settings.prefix_len:
        yield (
            f"{100 * cached / counted:.0f} % of the prompt tokens came from the server's prefix cache: TTFT is better "
            "than it is for new prompts"
        )
    if (peak_concurrency or settings.max_concurrency or 1) > _QUIET_CONCURRENCY:
        return
    points = sorted(
        (result.timings.prompt_tokens, result.timings.ttft_ms)
        for result in results
        if result.timings.prompt_tokens is not None and result.timings.ttft_ms is not None
    )
    quarter = len(points) // 4
    if quarter < 2:
        return
    short, long = points[:quarter], points[-quarter:]
    short_len, long_len = (statistics.fmean(length for length, _ in part) for part in (short, long))
    short_ttft, long_ttft = (statistics.median(ttft for _, ttft in part) for part in (short, long))
    if long_len >= max(_LONGER * short_len, _LONG_TOKENS) and long_ttft < _FLAT * short_ttft:
        yield (
            f"TTFT is flat: {short_ttft:.1f} ms for {short_len:.0f} tokens, {long_ttft:.1f} ms for {long_len:.0f}; "
            "the prompts may come from a prefix cache"
        )


def _about_earlier_answers(prompts: PromptSet | None, sent: int, sent_before: int) -> Iterator[str]:
    """A beginning of its own hides a prompt from a prefix cache, not from drafts made of answers to its like."""
    if prompts is None or prompts.different is None or sent + sent_before <= prompts.different:
        return
    times = (sent + sent_before) / prompts.different
    each = f"{times:.0f} times each" if times == int(times) else f"{times:.1f} times each on average"
    yield (
        f"{prompts.different} different prompts are asked {each}{', levels before counted' if sent_before else ''}: a "
        "server that drafts from its earlier answers, as LPX does, is faster than with new prompts; --dataset-name "
        "random asks each once"
    )


def _about_tokens(settings: LoadSettings, results: Sequence[Result]) -> Iterator[str]:
    if not results:
        return
    uncounted = sum(result.timings.output_tokens is None for result in results)
    if uncounted:
        yield (
            f"{uncounted} of {len(results)} answers came without a token count: no tokens/s, and no TPOT for these "
            "(pieces are not tokens)"
        )
    recounted = sum(result.timings.recounted for result in results)
    if recounted:
        yield (
            f"{recounted} of {len(results)} answers came without a token count: their texts were encoded again, which "
            "misses tokens without text"
        )
    whole = sum(not result.streamed for result in results)
    if whole and settings.stream:
        yield f"{whole} of {len(results)} answers did not come as a stream: they have no TTFT, TPOT and ITL"
    lumps = sum(
        result.streamed
        and not result.timings.itl_ms
        and result.timings.tpot_ms is None
        and (result.timings.output_tokens or 0) > 2
        for result in results
    )
    if lumps > len(results) / 2:
        yield (
            f"{lumps} of {len(results)} answers came in one piece: their TTFT is the time of the whole answer, "
            "and they have no TPOT"
        )
    empty = sum(result.streamed and result.timings.ttft_ms is None for result in results)
    if empty:
        yield f"{empty} of {len(results)} answers hold no text: they have no TTFT"
    off = [
        result
        for result in results
        if result.wanted_input is not None
        and result.timings.prompt_tokens is not None
        and settings.endpoint_type != "openai-chat"
        and result.timings.prompt_tokens != result.wanted_input
    ]
    if off:
        lengths = [result.timings.prompt_tokens for result in off if result.timings.prompt_tokens is not None]
        yield (
            f"{len(off)} of {len(results)} prompts are not as long as wanted: the server counts "
            f"{statistics.fmean(lengths):.0f} tokens on average where {off[0].wanted_input} were wanted"
        )


def _about_ends(settings: LoadSettings, results: Sequence[Result]) -> Iterator[str]:
    """Answers that are whole by the protocol, and yet seem to be broken off."""
    endless = sum(result.finish_reason is None for result in results)
    if endless:
        yield (
            f"{endless} of {len(results)} answers ended without a finish reason: the server may have broken them off, "
            "as some do when the next request comes"
        )
    if not settings.ignore_eos or "max_tokens" in settings.extra_body:
        return
    short = [
        (result.timings.output_tokens, result.wanted_output)
        for result in results
        if result.timings.output_tokens is not None
        and result.timings.output_tokens < _SHORT_ANSWER * result.wanted_output
    ]
    if short:
        got, wanted = (statistics.fmean(column) for column in zip(*short, strict=True))
        yield (
            f"{len(short)} of {len(results)} answers are shorter than --ignore-eos asks for: {got:.0f} tokens on "
            f"average where {wanted:.0f} were wanted; the server does not take it, or broke them off"
        )


def _about_goodput(settings: LoadSettings, results: Sequence[Result]) -> Iterator[str]:
    for name, count in unknown_for_goodput(results, settings.goodput).items():
        yield (
            f"{count} of {len(results)} answers have no known {name.upper()}: they count as not keeping "
            f"--goodput {name}:{settings.goodput[name]:g}"
        )


def _about_memory(prompts: PromptSet | None, kept: KeptAnswers | None) -> Iterator[str]:
    if prompts is not None and (late := prompts.supply.made_late):
        yield (
            f"{late} of {prompts.supply.count} prompts were made while the load was running, because more are not kept "
            "in memory: this client had more to do"
        )
    if kept is not None and kept.without_text:
        yield (
            f"the texts of {kept.without_text} answers are not kept: those before take "
            f"{kept.most_text_bytes >> 20} MiB of memory, which is the most"
        )
    if kept is not None and kept.without_gaps:
        yield (
            f"ITL leaves {kept.without_gaps} answers out: those before have {kept.most_gaps} gaps, which is the most "
            "that are kept"
        )
