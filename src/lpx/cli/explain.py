"""`lpx explain`: the page behind an error code, or what a message of a driver, Docker or CUDA means."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from lpx.doctor.explain import Page


def explain(
    code: Annotated[
        str | None, typer.Argument(help="A code such as LPX-E040, or a message; - reads one from standard input.")
    ] = None,
) -> None:
    """Show the page of an error code, or tell what a message means. Without an argument, list all codes.

    Example: lpx explain LPX-E040

    Example: docker run --gpus all ubuntu nvidia-smi 2>&1 | lpx explain -
    """
    from lpx.doctor.explain import all_pages, find_page, parse_code

    if code is None:
        for page in all_pages():
            print(f"{page.code}  {page.title}")
        return
    known = parse_code(code)
    if known is not None:
        _show(find_page(known))
        return
    _explain_message(sys.stdin.buffer.read().decode("utf-8", "replace") if code == "-" and sys.stdin else code)


def _explain_message(message: str) -> None:
    from lpx.doctor.explain import codes_in, find_page
    from lpx.doctor.messages import recognise
    from lpx.errors import ConfigError

    meanings, codes = recognise(message), codes_in(message)
    if not meanings and not codes:
        raise ConfigError("this message is none that LPX knows; lpx doctor looks at the machine itself")
    for meaning in meanings:
        print(f"means  {meaning.cause}\ndo     {meaning.do}\nmore   lpx explain {meaning.page}\n")
    for code in codes:
        _show(find_page(code))


def _show(page: Page) -> None:
    if not sys.stdout.isatty():
        print(page.text.rstrip())
        return
    from rich.console import Console
    from rich.markdown import Markdown

    Console().print(Markdown(page.text))
