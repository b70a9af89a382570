"""`lpx models prune`: room on the disk."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated

import typer

from lpx.cli.models.options import Json, ModelsDir


def prune(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Only this model.")] = None,
    keep: Annotated[int, typer.Option("--keep", min=0, help="Versions before the current one to keep.")] = 1,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go, and remove nothing.")] = False,
    models_dir: ModelsDir = None,
    json_output: Json = False,
) -> None:
    """Remove what unfinished pulls have left, and versions older than the one that a rollback goes to.

    Example: lpx models prune --dry-run
    """
    from lpx import store
    from lpx.cli.models.rows import size
    from lpx.plain_text import plain_text
    from lpx.store.versions import prune as prune_versions

    pruned = prune_versions(store.models_dir(models_dir), name, keep=keep, dry_run=dry_run)
    total = sum(each.bytes for each in pruned)
    if json_output:
        rows = [dataclasses.asdict(each) for each in pruned]
        print(json.dumps({"dry_run": dry_run, "bytes": total, "removed": rows}, ensure_ascii=False))
        return
    for each in pruned:
        print(plain_text(f"{'would remove' if dry_run else 'removed'} {each.what} ({size(each.bytes)})"))
    print(f"{size(total)} {'would be' if dry_run else 'are'} free again" if pruned else "there is nothing to remove")
