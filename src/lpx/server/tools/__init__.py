"""Tool calls, whatever protocol shows them: read from a model's text, enforced by a grammar, put into a prompt."""

from lpx.server.tools.calls import CallArguments, CallStart, Piece, ToolCall, collect_calls
from lpx.server.tools.formats import ToolCallParser, ToolFormat, format_of_template, make_parser

__all__ = [
    "CallArguments",
    "CallStart",
    "Piece",
    "ToolCall",
    "ToolCallParser",
    "ToolFormat",
    "collect_calls",
    "format_of_template",
    "make_parser",
]
