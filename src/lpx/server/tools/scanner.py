"""Reads one `{"name": …, "arguments": …}` object character by character, so that arguments can be streamed."""

from __future__ import annotations

import json
from enum import Enum, auto

_WHITE = " \t\r\n"
_ARGUMENT_KEYS = frozenset({"arguments", "parameters"})
_CALL_KEYS = _ARGUMENT_KEYS | {"name", "id", "type"}
_MOST_HEAD = 4096  # characters of keys and values that are looked at beside the arguments


class _At(Enum):
    START = auto()  # before the opening brace
    KEY_OR_END = auto()
    KEY = auto()
    COLON = auto()
    VALUE_START = auto()
    VALUE = auto()
    END = auto()


class ValueScanner:
    """Finds the end of one JSON value. It checks brackets and strings, not the grammar in between."""

    def __init__(self) -> None:
        self.ended = False
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._begun = False
        self._scalar = False

    def take(self, character: str) -> bool:
        """Whether `character` belongs to the value. A number or word ends before the first that does not."""
        if self.ended:
            return False
        if self._in_string:
            if self._escaped:
                self._escaped = False
            elif character == "\\":
                self._escaped = True
            elif character == '"':
                self._in_string = False
                self.ended = self._depth == 0
        elif self._scalar:
            if character in _WHITE or character in ",}]":
                self.ended = True
                return False
        elif character == '"':
            self._in_string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
            if self._depth < 0:
                self.ended = True
                return False
            self.ended = self._depth == 0
        elif not self._begun:
            self._scalar = True
        self._begun = True
        return True


def is_whole_value(text: str) -> bool:
    """Whether a JSON value that `text` begins with is at its end."""
    scanner = ValueScanner()
    for character in text:
        scanner.take(character)
    return scanner.ended


class CallScanner:
    """Takes the characters of one call object.

    Attributes:
        name: of the function, once it is known.
        arguments: new text of the arguments since `take_arguments`, which is empty until the name is known.
        ended: the object is complete. A call without arguments has the arguments `{}`.
        strange: it has a key that calls do not have.
        failed: this is no call. With a `name`, what came before stands.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self.ended = False
        self.failed = False
        self.strange = False
        self._at = _At.START
        self._value = ValueScanner()
        self._key = ""
        self._raw: list[str] = []  # of the key or value that is being read
        self._size = 0
        self._pending: list[str] = []  # arguments that nobody has taken
        self._has_arguments = False
        self._quoted = False  # the arguments are JSON text in a string

    def take_arguments(self) -> str:
        """The arguments' new text."""
        if self.name is None or not self._pending:
            return ""
        text = "".join(self._pending)
        self._pending.clear()
        return text

    def take(self, character: str) -> None:
        """Take the next character; no more after `ended` or `failed`."""
        at = self._at
        if at is _At.VALUE:
            self._take_in_value(character)
        elif at is _At.KEY:
            self._raw.append(character)
            if self._value.take(character) and self._value.ended:
                self._end_key()
            self._count()
        elif character in _WHITE:
            self._count()
        elif at is _At.START:
            self._at = _At.KEY_OR_END
            self.failed = character != "{"
        elif at is _At.KEY_OR_END:
            self._take_between(character)
        elif at is _At.COLON:
            self._at = _At.VALUE_START
            self.failed = character != ":"
        elif at is _At.VALUE_START:
            self._begin_value(character)
        else:
            self.failed = True

    def _take_between(self, character: str) -> None:
        if character == '"':
            self._at = _At.KEY
            self._value = ValueScanner()
            self._raw = [character]
            self._value.take(character)
        elif character == "}":
            self._end()
        elif character != ",":
            self.failed = True

    def _end_key(self) -> None:
        key = _text("".join(self._raw))
        self.failed = key is None
        self._key = key or ""
        self.strange |= self._key not in _CALL_KEYS
        self._at = _At.COLON

    def _begin_value(self, character: str) -> None:
        self._at = _At.VALUE
        self._value = ValueScanner()
        self._raw = []
        if self._key in _ARGUMENT_KEYS:
            self.failed = self._has_arguments
            self._has_arguments = True
            self._quoted = character == '"'
        self._take_in_value(character)

    def _take_in_value(self, character: str) -> None:
        is_arguments = self._key in _ARGUMENT_KEYS
        if self._value.take(character):
            if is_arguments and not self._quoted:
                self._pending.append(character)
            else:
                self._raw.append(character)
                if not is_arguments:
                    self._count()
            if self._value.ended:
                self._end_value()
        else:  # the character after a number or a word
            self._end_value()
            if not self.failed:
                self.take(character)

    def _end_value(self) -> None:
        self._at = _At.KEY_OR_END
        if self._key == "name":
            name = _text("".join(self._raw))
            self.failed = not name or self.name is not None
            if not self.failed:
                self.name = name
        elif self._key in _ARGUMENT_KEYS and self._quoted:
            text = _text("".join(self._raw))
            self.failed = text is None
            self._pending.append(text or "")

    def _end(self) -> None:
        self._at = _At.END
        if self.name is None:
            self.failed = True
            return
        if not self._has_arguments:
            self._pending.append("{}")
        self.ended = True

    def _count(self) -> None:
        self._size += 1
        self.failed |= self._size > _MOST_HEAD


def _text(raw: str) -> str | None:
    """The text of a JSON string; None for anything else."""
    try:
        value = json.loads(raw)
    except ValueError:
        return None
    return value if isinstance(value, str) else None
