"""`lpx bench compare`: servers and configurations in alternation on the same prompts."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lpx.cli.bench.recording import LedgerOptions, record
from lpx.cli.option_groups import spread_options
from lpx.cli.status_line import StatusLine
from lpx.cli.tables import count_of, plain_text, print_table, print_wrapped

if TYPE_CHECKING:
    from lpx.bench.compare.comparison import CompareReport
    from lpx.bench.statistics import Interval

_COLUMNS = {
    "decode, tokens/s": ("decode_tokens_per_second", "decode_tokens_per_second"),
    "first token, ms": ("ttft_ms", "ttft_ms_median"),
    "answer, ms": ("e2el_ms", "e2el_ms_median"),
}
_MOST_DIFFERENCES = 5


@spread_options
def compare(
    sides: Annotated[
        list[str],
        typer.Argument(
            help="Two or more: a server's address, LPX with options (lpx:model=…,threads=1), or a profile (lpx.toml).",
            metavar="A B …",
        ),
    ],
    rounds: Annotated[int, typer.Option("--rounds", help="How often all prompts are asked.")] = 5,
    max_tokens: Annotated[int, typer.Option("--max-tokens", "-n", help="Longest answer in tokens.")] = 64,
    prompts: Annotated[
        Path | None,
        typer.Option("--prompts", help="Prompts, one a line. Default: eight in Chinese and English.", metavar="FILE"),
    ] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Ask as a user of a chat, through the chat template.")] = False,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Go on to the longest answer, where servers understand that.")
    ] = False,
    api_key: Annotated[
        str | None,
        typer.Option("--api-key", help="Of the servers. Default: LPX_API_KEY or OPENAI_API_KEY.", metavar="KEY"),
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON, texts included.")] = False,
    *,
    ledger_options: LedgerOptions,
) -> None:
    """Compare servers and configurations of LPX: in alternation, on the same prompts, at temperature 0.

    Ratios have intervals of 95 %. Answers that differ are shown with the first place where they do.

    Example: lpx bench compare lpx:threads=1 lpx:threads=2

    With a server: lpx bench compare http://127.0.0.1:8000 lpx:model=model.gguf
    """
    from lpx.bench.compare.comparison import CompareSettings, compare_sides, read_prompts
    from lpx.bench.sides.spec import parse_sides

    settings = CompareSettings(
        rounds=rounds,
        max_tokens=max_tokens,
        chat=chat,
        ignore_eos=ignore_eos,
        prompts=() if prompts is None else read_prompts(prompts),
    )
    parsed = parse_sides(sides)
    with StatusLine() as status:
        status.show("loading")
        report = compare_sides(
            parsed, settings, api_key=api_key, progress=lambda done, total: status.show(f"answer {done} of {total}")
        )
    run_ids = [record(ledger_options, measurement) for measurement in report.measurements()]
    if json_output:
        print(json.dumps(_values(report, run_ids), ensure_ascii=False, indent=2))
        return
    _print_report(sides, report)
    kept = [str(run_id) for run_id in run_ids if run_id is not None]
    if kept:
        print(f"\nruns {', '.join(kept)}: lpx bench show {kept[0]}")


def _print_report(specs: list[str], report: CompareReport) -> None:
    for side, spec in zip(report.sides, specs, strict=True):
        subject = side.subject
        parts = (spec, subject.model, subject.engine, subject.engine_version, subject.isa, subject.kv_cache_dtype)
        print_wrapped(f"{side.name}: " + " · ".join(filter(None, parts)))
    answers = len(report.sides[0].replies)
    print(f"{count_of(answers, 'answer')} of each side, medians\n")
    rows = []
    for side in report.sides:
        rows.append((side.name, *(_figure(side.figures.get(figure)) for _, figure in _COLUMNS.values())))
        if side.ratios:
            ratios = (side.ratios.get(name) for name, _ in _COLUMNS.values())
            rows.append((f"  {side.name} / {report.sides[0].name}", *map(_ratio, ratios)))
    print_table(("", *_COLUMNS), rows, right=tuple(_COLUMNS), cut=("",))
    for side in report.sides[1:]:
        texts = side.texts
        assert texts is not None
        print()
        print_wrapped(
            f"{report.sides[0].name} and {side.name}: {texts.same} of {texts.answers} answers are the same text"
        )
        for difference in texts.differences[:_MOST_DIFFERENCES]:
            print_wrapped(
                f"  prompt {difference.prompt}, character {difference.at}: after {_quoted(difference.before)}", " " * 6
            )
            print_wrapped(f"    {report.sides[0].name} has {_quoted(difference.first)}", " " * 6)
            print_wrapped(f"    {side.name} has {_quoted(difference.other)}", " " * 6)
        if len(texts.differences) > _MOST_DIFFERENCES:
            print(f"  and {count_of(len(texts.differences) - _MOST_DIFFERENCES, 'more prompt')}; --json has all")


def _figure(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.1f}"


def _ratio(ratio: Interval | None) -> str:
    if ratio is None:
        return ""
    if ratio.high == float("inf"):
        return f"{ratio.estimate:.2f} x"
    return f"{ratio.estimate:.2f} x ({ratio.low:.2f}–{ratio.high:.2f})"


def _quoted(text: str) -> str:
    return plain_text(json.dumps(text, ensure_ascii=False)) if text else "its end"


def _values(report: CompareReport, run_ids: list[int | None]) -> dict[str, object]:
    return {
        "started": report.started.isoformat(),
        "seconds": report.seconds,
        "settings": asdict(report.settings),
        "sides": [
            {
                "name": side.name,
                "run_id": run_id,
                "subject": asdict(side.subject),
                "figures": dict(side.figures),
                "ratios": {name: _interval(ratio) for name, ratio in side.ratios.items()},
                "texts": None if side.texts is None else asdict(side.texts),
                "replies": [asdict(reply) for reply in side.replies],
            }
            for side, run_id in zip(report.sides, run_ids, strict=True)
        ],
    }


def _interval(ratio: Interval) -> dict[str, float | None]:
    bounded = ratio.high != float("inf")
    return {
        "estimate": ratio.estimate,
        "low": ratio.low if bounded else None,
        "high": ratio.high if bounded else None,
        "confidence": ratio.confidence,
    }
