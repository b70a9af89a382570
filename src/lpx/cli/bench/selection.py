"""Options that say which runs of the ledger a command is about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lpx.cli.bench.recording import LedgerFile, open_ledger

if TYPE_CHECKING:
    from lpx.bench.ledger import Ledger, RunFilter


_MOST = 2**31 - 1  # within SQLite's integers


def _which(*names: str, help: str, **more: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel="Which runs", **more)


@dataclass(frozen=True, kw_only=True)
class RunSelection:
    model: Annotated[str | None, _which("--model", "-m", help="A part of the model's name.")] = None
    kind: Annotated[str | None, _which("--kind", help="What was run: latency, serve, decode, …", metavar="NAME")] = None
    engine: Annotated[str | None, _which("--engine", help="lpx, llama.cpp, vllm, …")] = None
    device: Annotated[str | None, _which("--device", help="A part of the device's name: cpu, or a card.")] = None
    quantization: Annotated[str | None, _which("--quantization", help="A part of it, such as Q4_K.")] = None
    batch_size: Annotated[int | None, _which("--batch-size", help="Sequences at once.", min=1, max=_MOST)] = None
    tag: Annotated[str | None, _which("--tag", help="Runs with this tag.")] = None
    since: Annotated[
        str | None, _which("--since", help="Begun then or later: 7d, 12h, 30m ago, or 2026-01-31.", metavar="WHEN")
    ] = None
    until: Annotated[str | None, _which("--until", help="Begun before then.", metavar="WHEN")] = None
    last: Annotated[int | None, _which("--last", "-n", help="Only the newest N.", metavar="N", min=1, max=_MOST)] = None
    ledger: LedgerFile = None

    def open(self) -> Ledger:
        return open_ledger(self.ledger)

    def filter(self) -> RunFilter:
        """Raises ConfigError for points in time that are none, and for a kind that no command measures."""
        from datetime import datetime

        from lpx.bench.ledger import RunFilter
        from lpx.bench.ledger.moments import parse_moment
        from lpx.bench.measurement import KINDS
        from lpx.errors import ConfigError

        if self.kind is not None and self.kind not in KINDS:
            raise ConfigError(f"--kind {self.kind!r} is not known; use one of {', '.join(KINDS)}")
        now = datetime.now().astimezone()
        return RunFilter(
            model=self.model,
            kind=self.kind,
            engine=self.engine,
            device=self.device,
            quantization=self.quantization,
            batch_size=self.batch_size,
            tag=self.tag,
            since=parse_moment(self.since, now) if self.since else None,
            until=parse_moment(self.until, now) if self.until else None,
            last=self.last,
        )
