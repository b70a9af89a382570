"""How model families write tool calls, and a parser for each.

- hermes (Hermes, Qwen, and the one that models without tools of their own are told):
  `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, one pair of tags a call.
- llama3: the answer is `{"name": …, "parameters": {…}}`, several of them separated by `;`, perhaps behind
  `<|python_tag|>`.
- mistral: `[TOOL_CALLS]` and a JSON list of calls. mistral_named: `[TOOL_CALLS]name[ARGS]{…}` for each call. One parser
  reads both.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, Protocol

from lpx.server.tools.calls import CallArguments, CallStart, MakeId, Piece, make_call_id
from lpx.server.tools.scanner import CallScanner, ValueScanner

ToolFormat = Literal["hermes", "llama3", "mistral", "mistral_named"]

_WHITE = " \t\r\n"
HERMES_BEGIN, HERMES_END = "<tool_call>", "</tool_call>"
PYTHON_TAG = "<|python_tag|>"
MISTRAL_BEGIN, MISTRAL_ARGUMENTS = "[TOOL_CALLS]", "[ARGS]"
_MOST_NAME = 256


class ToolCallParser(Protocol):
    """Takes an answer's text in any pieces. The joined text and calls do not depend on how it was cut."""

    def feed(self, text: str) -> list[Piece]:
        """What has become certain with `text`."""
        ...

    def finish(self) -> list[Piece]:
        """The rest, when no more text comes."""
        ...


def make_parser(
    tool_format: ToolFormat, tool_names: Collection[str] = (), make_id: MakeId = make_call_id
) -> ToolCallParser:
    """A parser for one answer. `tool_names` tells calls from other JSON where a format has no mark of its own."""
    if tool_format == "hermes":
        return HermesParser(make_id)
    if tool_format == "llama3":
        return Llama3Parser(make_id, tool_names)
    return MistralParser(make_id)


def shows_marks(tool_format: ToolFormat) -> bool:
    """Whether calls can only be told by marks that models have as control tokens, so that these must be in the text."""
    return tool_format != "hermes"


def format_of_template(source: str | None) -> ToolFormat | None:
    """The format that a chat template's own words show; None when the template knows nothing of tools."""
    if source is None or "tools" not in source:
        return None
    if MISTRAL_BEGIN in source:
        return "mistral_named" if MISTRAL_ARGUMENTS in source else "mistral"
    if HERMES_BEGIN in source:
        return "hermes"
    if PYTHON_TAG in source or '"parameters"' in source or "ipython" in source:
        return "llama3"
    return "hermes"


class _Parser:
    """What the parsers share: white space beside calls is dropped, calls are numbered, text is held while unsure.

    A subclass takes one character at a time in `_take`, and says in `_end` what the end of the text means.
    """

    def __init__(self, make_id: MakeId) -> None:
        self._make_id = make_id
        self._pieces: list[Piece] = []
        self._white = ""  # at the end of the text so far: dropped when a call follows
        self._calls = 0
        self._scanner = CallScanner()
        self._raw: list[str] = []  # what is text if this is no call
        self._started = False  # the call that is being read has been told

    def feed(self, text: str) -> list[Piece]:
        for character in text:
            self._take(character)
        return self._news()

    def finish(self) -> list[Piece]:
        self._end()
        if self._white and not self._calls:
            self._pieces.append(self._white)
        self._white = ""
        return self._news()

    def _take(self, character: str) -> None:
        raise NotImplementedError

    def _end(self) -> None:
        raise NotImplementedError

    def _news(self) -> list[Piece]:
        """The pieces since the last look, neighbours joined."""
        news: list[Piece] = []
        for piece in self._pieces:
            last = news[-1] if news else None
            if isinstance(piece, str) and isinstance(last, str):
                news[-1] = last + piece
            elif isinstance(piece, CallArguments) and isinstance(last, CallArguments) and last.index == piece.index:
                news[-1] = CallArguments(piece.index, last.text + piece.text)
            else:
                news.append(piece)
        self._pieces = []
        return news

    def _say(self, text: str) -> None:
        """Text for the reader; white space waits for what follows it."""
        text = self._white + text
        body = text.rstrip(_WHITE)
        self._white = text[len(body) :]
        if body:
            self._pieces.append(body)

    def _start(self, name: str) -> None:
        self._white = ""
        self._started = True
        self._pieces.append(CallStart(self._calls, self._make_id(), name))
        self._calls += 1

    def _argue(self, text: str) -> None:
        if text:
            self._pieces.append(CallArguments(self._calls - 1, text))

    def _begin_call(self, raw: str) -> None:
        self._scanner = CallScanner()
        self._raw = [raw]
        self._started = False

    def _scan(self, character: str, known: Collection[str] | None = None) -> Literal["on", "ended", "text", "broken"]:
        """Take a character of a call object: "text" is no call after all, "broken" one whose beginning was told."""
        scanner = self._scanner
        scanner.take(character)
        if not self._started:
            self._raw.append(character)
        if scanner.name is not None and not self._started and not scanner.failed:
            if known is not None and scanner.name not in known:
                return "text"
            self._start(scanner.name)
        if self._started:
            self._argue(scanner.take_arguments())
        if scanner.failed:
            return "broken" if self._started else "text"
        return "ended" if scanner.ended else "on"

    def _give_back(self) -> None:
        """What looked like a call is text."""
        self._say("".join(self._raw))
        self._raw = []


class _Mark:
    """Recognizes one string, character by character."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.seen = ""

    def take(self, character: str) -> Literal["no", "maybe", "yes"]:
        """Whether what was seen, with `character`, is or can become the mark. "no" forgets all but `seen`."""
        wanted = self.seen + character
        if self.text.startswith(wanted):
            self.seen = "" if wanted == self.text else wanted
            return "yes" if wanted == self.text else "maybe"
        return "no"

    def give_back(self) -> str:
        seen, self.seen = self.seen, ""
        return seen


class HermesParser(_Parser):
    """`<tool_call>` object `</tool_call>`; anything else between the tags is text, tags included."""

    def __init__(self, make_id: MakeId = make_call_id) -> None:
        super().__init__(make_id)
        self._state: Literal["text", "call", "closing", "swallowing"] = "text"
        self._begin = _Mark(HERMES_BEGIN)
        self._close = _Mark(HERMES_END)

    def _take(self, character: str) -> None:
        if self._state == "text":
            found = self._begin.take(character)
            if found == "no":
                seen = self._begin.give_back()
                self._say(seen)
                if seen:
                    self._take(character)  # "<" may begin the tag anew
                else:
                    self._say(character)
            elif found == "yes":
                self._begin_call(HERMES_BEGIN)
                self._state = "call"
        elif self._state == "call":
            result = self._scan(character)
            if result == "ended":
                self._state = "closing"
            elif result == "broken":
                self._state = "swallowing"
            elif result == "text":
                self._state = "text"
                last = self._raw.pop()
                self._give_back()
                self._take(last)
        else:
            self._take_behind(character)

    def _take_behind(self, character: str) -> None:
        """Behind a call: to the closing tag; text without one begins where it begins."""
        found = self._close.take(character)
        if found == "yes":
            self._state = "text"
        elif found == "no":
            seen = self._close.give_back()
            if self._state == "swallowing":
                if seen:
                    self._take_behind(character)
            elif seen or character not in _WHITE:
                self._state = "text"
                for each in seen + character:
                    self._take(each)

    def _end(self) -> None:
        if self._state == "text":
            self._say(self._begin.give_back())
        elif self._state == "call" and not self._started:
            self._give_back()
        elif self._state == "closing":
            self._close.give_back()


class Llama3Parser(_Parser):
    """Calls are the whole answer, or what stands behind `<|python_tag|>`."""

    def __init__(self, make_id: MakeId = make_call_id, tool_names: Collection[str] = ()) -> None:
        super().__init__(make_id)
        self._names = frozenset(tool_names)
        self._state: Literal["begin", "text", "behind tag", "call", "between", "swallowing"] = "begin"
        self._tag = _Mark(PYTHON_TAG)

    def _take(self, character: str) -> None:
        state = self._state
        if state == "call":
            self._take_call(character)
        elif state in ("begin", "behind tag", "between"):
            self._take_before_call(character)
        elif state == "text":
            self._take_text(character)

    def _take_before_call(self, character: str) -> None:
        if character == "{":
            self._begin_call("")
            self._state = "call"
            self._take_call(character)
        elif self._state == "between" and character in ";,":
            return
        elif character in _WHITE:
            self._say(character)
        else:
            self._state = "text"
            self._take_text(character)

    def _take_call(self, character: str) -> None:
        result = self._scan(character, self._names)
        if result == "ended":
            self._state = "between"
        elif result == "broken":
            self._state = "swallowing"
        elif result == "text":
            self._state = "text"
            self._give_back()

    def _take_text(self, character: str) -> None:
        found = self._tag.take(character)
        if found == "yes":
            self._state = "behind tag"
        elif found == "no":
            seen = self._tag.give_back()
            self._say(seen)
            if seen:
                self._take_text(character)
            else:
                self._say(character)

    def _end(self) -> None:
        self._say(self._tag.give_back())
        if self._state == "call" and not self._started:
            self._give_back()


class MistralParser(_Parser):
    """`[TOOL_CALLS]` before a list of calls, or before the name of one and its arguments."""

    def __init__(self, make_id: MakeId = make_call_id) -> None:
        super().__init__(make_id)
        self._state: Literal["text", "marked", "list", "call", "name", "arguments", "swallowing"] = "text"
        self._mark = _Mark(MISTRAL_BEGIN)
        self._name: list[str] = []
        self._value = ValueScanner()

    def _take(self, character: str) -> None:
        state = self._state
        if state == "text":
            found = self._mark.take(character)
            if found == "yes":
                self._state = "marked"
                self._begin_call(MISTRAL_BEGIN)
            elif found == "no":
                seen = self._mark.give_back()
                self._say(seen)
                if seen:
                    self._take(character)
                else:
                    self._say(character)
        elif state == "marked":
            self._take_behind_mark(character)
        elif state == "list":
            self._take_in_list(character)
        elif state == "call":
            self._take_call(character)
        elif state == "name":
            self._take_name(character)
        elif state == "arguments":
            self._take_arguments(character)

    def _take_behind_mark(self, character: str) -> None:
        if character in _WHITE:
            self._raw.append(character)
        elif character == "[":
            self._raw.append(character)
            self._state = "list"
        elif character == "{":
            self._state = "call"
            self._take_call(character)
        else:
            self._name = []
            self._state = "name"
            self._take_name(character)

    def _take_in_list(self, character: str) -> None:
        if character == "{":
            if self._started:
                self._begin_call("")
            self._state = "call"
            self._take_call(character)
        elif character == "]":
            self._state = "text"
        elif character in _WHITE or character == ",":
            self._raw.append(character)
        else:
            self._become_text(character)

    def _take_call(self, character: str) -> None:
        result = self._scan(character)
        if result == "ended":
            self._state = "list"
        elif result == "broken":
            self._state = "swallowing"
        elif result == "text":
            self._state = "text"
            self._give_back()

    def _take_name(self, character: str) -> None:
        self._raw.append(character)
        self._name.append(character)
        written = "".join(self._name)
        if character == "{":
            name = written[:-1].partition("[")[0].strip()
            if not name:
                self._become_text("")
                return
            self._start(name)
            self._value = ValueScanner()
            self._state = "arguments"
            self._take_arguments(character)
        elif len(written) > _MOST_NAME or character in "\n\r":
            self._become_text("")

    def _take_arguments(self, character: str) -> None:
        if self._value.take(character):
            self._argue(character)
        if self._value.ended:
            self._state = "text"

    def _become_text(self, character: str) -> None:
        self._state = "text"
        if not self._started:
            self._give_back()
        for each in character:
            self._take(each)

    def _end(self) -> None:
        self._say(self._mark.give_back())
        if self._state in ("marked", "list", "call", "name") and not self._started:
            self._give_back()
