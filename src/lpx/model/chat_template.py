"""Chat messages to a prompt, by the template that the model ships.

The template's own markers become control tokens. The same characters in what users, tools or documents say stay plain
text: before rendering, each control token's spelling in the messages is replaced by one private-use character that
nothing else uses; the rendered text is cut at the control tokens it spells; then the characters are put back, and what
is between the control tokens is encoded as plain text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from lpx.errors import ChatTemplateError, InvalidRequestError
from lpx.model.special_tokens import MarkerFinder
from lpx.model.tokenizer import Segment, Tokenizer, repair_surrogates

if TYPE_CHECKING:
    from jinja2 import Template

_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function", "ipython", "model"})
_TEXT_PARTS = frozenset({"text", "input_text", "output_text"})
_MAX_DEPTH = 64
_MAX_SOURCE_CHARACTERS = 1_000_000
_PRIVATE_USE = range(0xF0000, 0x10FFFE)

# What a request may not set: arguments of ours and of the reference's `apply_chat_template`, and template globals.
_RESERVED = frozenset(
    {
        "chat_template",
        "template",
        "tokenize",
        "messages",
        "conversation",
        "tools",
        "documents",
        "add_generation_prompt",
        "continue_final_message",
        "padding",
        "truncation",
        "max_length",
        "return_tensors",
        "return_dict",
        "return_assistant_tokens_mask",
        "tokenizer_kwargs",
        "now",
        "bos_token",
        "eos_token",
        "unk_token",
        "pad_token",
        "raise_exception",
        "strftime_now",
        "range",
        "dict",
        "namespace",
        "cycler",
        "joiner",
        "loop",
        "self",
        "caller",
        "varargs",
        "kwargs",
    }
)
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")


class ChatTemplate:
    """A model's chat template, compiled once. Safe to use from several threads.

    `source` None stands for a model without a template: every use raises a `ChatTemplateError` that says so.
    Rendering is bounded in time and output, but can take milliseconds: keep it off an event loop.

    Raises:
        ChatTemplateError: the template cannot be parsed or uses what the sandbox does not know.
    """

    def __init__(self, source: str | None, tokenizer: Tokenizer) -> None:
        self.source = source
        self._tokenizer = tokenizer
        self._template = None if source is None else _compile(source)
        self._source_private = frozenset() if source is None else _private_characters(source)

    def encode(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        kwargs: Mapping[str, Any] | None = None,
        now: datetime | None = None,
    ) -> list[int]:
        """Return the prompt's ids, with exactly one BOS if the model wants one.

        `kwargs` sets plain flags of the template (`enable_thinking`). `now` is what `strftime_now` shows, by default
        the local time. With `continue_final_message` the last message, which must be the assistant's, is left open,
        and `add_generation_prompt` does not apply.

        Raises:
            ChatTemplateError: no template, or the template refused the messages (with its own words) or failed.
            InvalidRequestError: messages, tools or kwargs of a wrong form; `param` says which.
        """
        rendered, masks = self._render(messages, tools, add_generation_prompt, continue_final_message, kwargs, now)
        segments: list[Segment] = [
            s if isinstance(s, int) else masks.restore(s) for s in self._tokenizer.split_markers(rendered)
        ]
        return self._tokenizer.encode_segments(segments)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        kwargs: Mapping[str, Any] | None = None,
        now: datetime | None = None,
    ) -> str:
        """Return the prompt as text, to show. Encode with `encode`: text alone cannot tell markers from content."""
        rendered, masks = self._render(messages, tools, add_generation_prompt, continue_final_message, kwargs, now)
        return masks.restore(rendered)

    def _render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        continue_final_message: bool,
        kwargs: Mapping[str, Any] | None,
        now: datetime | None,
    ) -> tuple[str, _Masks]:
        if self._template is None:
            raise ChatTemplateError(
                "This model defines no chat template, so it cannot chat. Give one with --chat-template FILE "
                "(chat_template= in Python), or use plain completion.",
                param="messages",
            )
        plain_messages = _normalise_messages(messages)
        plain_tools = _normalise_tools(tools)
        flags = _check_flags(kwargs or {})
        if continue_final_message and plain_messages[-1]["role"] != "assistant":
            raise InvalidRequestError(
                "continue_final_message needs a last message of the assistant's.", param="continue_final_message"
            )

        values = (plain_messages, plain_tools, flags)
        masks = _Masks(self._tokenizer.markers, self._source_private.union(*map(_private_characters, _strings(values))))
        plain_messages, plain_tools, flags = (masks.apply(v) for v in values)
        # The mark's trailing space tells whether the template trims the content.
        mark = masks.unused()
        if continue_final_message:
            plain_messages[-1]["content"] += f"{mark} "
        rendered = self._run(
            {
                **self._tokenizer.special_texts,
                **flags,
                "messages": plain_messages,
                "tools": plain_tools,
                "documents": None,
                "add_generation_prompt": add_generation_prompt and not continue_final_message,
            },
            now or datetime.now(),
        )
        if continue_final_message:
            head, found, tail = rendered.rpartition(mark)
            if not found:
                raise ChatTemplateError(
                    "The chat template leaves out the last message, so it cannot be continued.",
                    param="continue_final_message",
                )
            rendered = head if tail.startswith(" ") else head.rstrip()
        return rendered, masks

    def _run(self, values: Mapping[str, Any], now: datetime) -> str:
        from jinja2 import TemplateError
        from jinja2.exceptions import SecurityError, UndefinedError

        from lpx.model.template_sandbox import BudgetError, TemplateSandbox

        assert self._template is not None
        environment = self._template.environment
        assert isinstance(environment, TemplateSandbox)
        try:
            return environment.render(self._template, values, now)
        except BudgetError as error:
            raise ChatTemplateError(f"The chat template was stopped: {error}.", param="messages") from None
        except (SecurityError, UndefinedError) as error:
            raise ChatTemplateError(f"The chat template failed: {error}", param="messages") from None
        except TemplateError as error:
            raise ChatTemplateError(
                f"The model's chat template refused the messages: {error}", param="messages"
            ) from None
        except RecursionError:
            raise ChatTemplateError(
                "The chat template was stopped: it recurses too deeply.", param="messages"
            ) from None
        except Exception as error:  # a template may raise whatever its expressions raise
            raise ChatTemplateError(
                f"The chat template failed: {type(error).__name__}: {error}", param="messages"
            ) from None


def _compile(source: str) -> Template:
    from jinja2 import TemplateError, TemplateSyntaxError

    from lpx.model.template_sandbox import TemplateSandbox

    if len(source) > _MAX_SOURCE_CHARACTERS:
        raise ChatTemplateError(
            f"The chat template has {len(source):,} characters; at most {_MAX_SOURCE_CHARACTERS:,} are read."
        )
    try:
        return TemplateSandbox().from_string(source)
    except TemplateSyntaxError as error:
        raise ChatTemplateError(f"The chat template cannot be used: line {error.lineno}: {error.message}") from None
    except (TemplateError, RecursionError, SyntaxError, ValueError, OverflowError, MemoryError) as error:
        raise ChatTemplateError(f"The chat template cannot be used: {type(error).__name__}: {error}") from None


class _Masks:
    """Stands private-use characters in for the control tokens' spellings in content, and puts them back."""

    def __init__(self, markers: MarkerFinder, taken: frozenset[str]) -> None:
        self._markers = markers
        self._free = (c for c in map(chr, _PRIVATE_USE) if c not in taken)
        self._by_text: dict[str, str] = {}
        self._texts: dict[int, str] = {}
        self._unused: str | None = None

    def unused(self) -> str:
        """Return a character that occurs nowhere."""
        if self._unused is None:
            self._unused = next(self._free, None)
        if self._unused is None:
            raise InvalidRequestError("The messages use up every private-use character.", param="messages")
        return self._unused

    def apply(self, value: Any) -> Any:
        """Return JSON-like data with every control token's spelling masked, keys included."""
        if isinstance(value, str):
            return self._mask(value)
        if isinstance(value, list):
            return [self.apply(v) for v in value]
        if isinstance(value, dict):
            return {self._mask(k): self.apply(v) for k, v in value.items()}
        return value

    def restore(self, text: str) -> str:
        return text.translate(self._texts) if self._texts else text

    def _mask(self, text: str) -> str:
        pieces = []
        done = 0
        for at, marker in self._markers.find(text):
            pieces += [text[done:at], self._character(marker.text)]
            done = at + len(marker.text)
        rest = text[done:]
        pieces.append(rest)
        if self._markers.ends_inside_marker(rest):
            # What the template writes next must not complete it.
            pieces.append(self._character(""))
        return "".join(pieces)

    def _character(self, text: str) -> str:
        character = self._by_text.get(text)
        if character is None:
            character = next(self._free, None)
            if character is None:
                raise InvalidRequestError("The messages use up every private-use character.", param="messages")
            self._by_text[text] = character
            self._texts[ord(character)] = text
        return character


def _private_characters(text: str) -> frozenset[str]:
    if text.isascii():
        return frozenset()
    return frozenset(c for c in text if ord(c) in _PRIVATE_USE)


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _strings(item)


def _plain(value: object, where: str, depth: int = 0) -> Any:
    """Copy JSON-like data, so that a template sees nothing else; lone surrogates become U+FFFD."""
    if depth > _MAX_DEPTH:
        raise InvalidRequestError(f"{where} is nested more than {_MAX_DEPTH} levels deep.", param=where)
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return repair_surrogates(str(value))
    if isinstance(value, list | tuple):
        return [_plain(v, where, depth + 1) for v in value]
    if isinstance(value, Mapping):
        if not all(isinstance(k, str) for k in value):
            raise InvalidRequestError(f"{where} has a key that is not text.", param=where)
        return {repair_surrogates(k): _plain(v, where, depth + 1) for k, v in value.items()}
    raise InvalidRequestError(f"{where} holds a {type(value).__name__}; only JSON values are allowed.", param=where)


def _normalise_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    if isinstance(messages, str | bytes) or not isinstance(messages, Sequence):
        raise InvalidRequestError(
            f"messages must be a list of messages, not a {type(messages).__name__}.", param="messages"
        )
    if not messages:
        raise InvalidRequestError("messages is empty: give at least one message.", param="messages")
    return [_normalise_message(m, f"messages[{i}]") for i, m in enumerate(messages)]


def _normalise_message(message: object, where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise InvalidRequestError(f"{where} must be an object, not a {type(message).__name__}.", param=where)
    plain: dict[str, Any] = {k: v for k, v in _plain(message, where).items() if v is not None or k == "content"}
    role = plain.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise InvalidRequestError(
            f"{where}.role is {role!r}; known roles: {', '.join(sorted(_ROLES))}.", param=f"{where}.role"
        )
    if "tool_calls" in plain:
        plain["tool_calls"] = _normalise_tool_calls(plain["tool_calls"], f"{where}.tool_calls")
        if not plain["tool_calls"]:
            del plain["tool_calls"]
    content = plain.get("content")
    if content is None:
        if role != "assistant" or not plain.get("tool_calls"):
            raise InvalidRequestError(f"{where}.content is missing.", param=f"{where}.content")
        plain["content"] = ""
    elif isinstance(content, list):
        plain["content"] = "\n".join(_part_text(p, f"{where}.content[{i}]") for i, p in enumerate(content))
    elif not isinstance(content, str):
        raise InvalidRequestError(
            f"{where}.content must be text or a list of text parts, not a {type(content).__name__}.",
            param=f"{where}.content",
        )
    return plain


def _part_text(part: object, where: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(part, dict) or kind not in _TEXT_PARTS:
        raise InvalidRequestError(
            f"{where} has type {kind!r}; this model takes text only (parts of type 'text').", param=where
        )
    text = part.get("text")
    if not isinstance(text, str):
        raise InvalidRequestError(f"{where}.text must be text.", param=f"{where}.text")
    return text


def _normalise_tool_calls(calls: object, where: str) -> list[Any]:
    if not isinstance(calls, list):
        raise InvalidRequestError(f"{where} must be a list.", param=where)
    for index, call in enumerate(calls):
        at = f"{where}[{index}]"
        if not isinstance(call, dict):
            raise InvalidRequestError(f"{at} must be an object.", param=at)
        function = call.get("function", call)
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise InvalidRequestError(f"{at}.function must have a name.", param=f"{at}.function")
        if isinstance(function.get("arguments"), str):
            function["arguments"] = _parse_arguments(function["arguments"], f"{at}.function.arguments")
    return calls


def _parse_arguments(text: str, where: str) -> dict[str, Any]:
    """Templates want the object; OpenAI's clients send it as JSON text."""
    if not text.strip():
        return {}
    try:
        arguments = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"{where} is not valid JSON: {error}", param=where) from None
    if not isinstance(arguments, dict):
        raise InvalidRequestError(f"{where} must hold a JSON object.", param=where)
    plain = _plain(arguments, where)
    assert isinstance(plain, dict)
    return plain


def _normalise_tools(tools: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]] | None:
    if tools is None:
        return None
    plain = _plain(tools, "tools")
    if not isinstance(plain, list) or not all(isinstance(t, dict) for t in plain):
        raise InvalidRequestError("tools must be a list of objects.", param="tools")
    return plain or None


def _check_flags(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    param = "chat_template_kwargs"
    for name, value in kwargs.items():
        if not isinstance(name, str) or _NAME.fullmatch(name) is None or name in _RESERVED:
            raise InvalidRequestError(
                f"{param} may not set {name!r}; it takes plain flags of the template.", param=param
            )
        if not (value is None or isinstance(value, bool | int | float | str)):
            raise InvalidRequestError(
                f"{param}.{name} must be a plain value, not a {type(value).__name__}.", param=param
            )
    plain = _plain(kwargs, param)
    assert isinstance(plain, dict)
    return plain
