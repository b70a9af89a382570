"""`lpx models`: what is in the model folder, how to get more, and which version is used. A file for each command."""

from __future__ import annotations

import typer

from lpx.cli.models import bring, convert, listing, prune, pull, remove, show, switch, verify

app = typer.Typer(help="Fetch models, list them, choose their versions, and remove them.", no_args_is_help=True)
app.command("pull")(pull.pull)
app.command("list")(listing.list_)
app.command("show")(show.show)
app.command("path")(listing.path)
app.command("verify")(verify.verify)
app.command("use")(switch.use)
app.command("rollback")(switch.rollback)
app.command("rm")(remove.remove)
app.command("cp")(bring.copy)
app.command("import")(bring.import_)
app.command("convert")(convert.convert)
app.command("prune")(prune.prune)
