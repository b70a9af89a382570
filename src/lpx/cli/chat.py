"""`lpx chat`: a conversation in the terminal."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lpx.cli.option_groups import ModelOptions, SamplingOptions, spread_options
from lpx.cli.profile_option import ProfileOption

if TYPE_CHECKING:
    from lpx.cli.answer import Answer
    from lpx.engine.engine import Engine
    from lpx.engine.sampling_params import SamplingParams

_HELP = """\
/reset   forget the conversation
/stats   what is in use, and the figures of the last answer
/help    this list
/exit    leave (so does Ctrl-D)
Ctrl-C stops an answer. A line that begins with a space is sent as it is, a slash included."""


@spread_options
def chat(
    context: typer.Context,
    profile: ProfileOption,
    model_options: ModelOptions,
    sampling: SamplingOptions,
    system: Annotated[str | None, typer.Option("--system", help="System message of the chat.")] = None,
) -> None:
    """Talk with a model. /help shows what can be typed besides messages.

    Example: lpx chat --system "Answer in Chinese."
    """
    from lpx.cli.answer import write_note
    from lpx.cli.loading import describe_in_use, load_engine, resolve_engine_options
    from lpx.errors import ChatTemplateError

    profile.announce(context)
    params = sampling.sampling_params()
    engine = load_engine(resolve_engine_options(model_options, measure_steps=False))
    try:
        if engine.chat_template is None:
            raise ChatTemplateError(
                f"the model {engine.info.model!r} has no chat template, so it cannot chat; "
                "use lpx run --raw, or give a template with --chat-template",
                param="messages",
            )
        write_note(describe_in_use(engine.info))
        if sys.stdin.isatty():
            write_note("/help lists the commands, /exit leaves")
            _enable_line_editing()
        _Conversation(engine, params, system).run()
    finally:
        engine.close()


class _Conversation:
    """The messages so far, and the loop that adds to them."""

    def __init__(self, engine: Engine, params: SamplingParams, system: str | None) -> None:
        self._engine = engine
        self._params = params
        self._opening: list[dict[str, Any]] = [] if system is None else [{"role": "system", "content": system}]
        self._messages = list(self._opening)
        self._last: Answer | None = None

    def run(self) -> None:
        from lpx.cli.answer import write_note

        while True:
            try:
                line = _read_line()
                if line is None or line in ("/exit", "/quit"):
                    return
                if line.startswith("/"):
                    self._obey(line)
                elif line.strip():
                    self._answer(line)
            except KeyboardInterrupt:  # at the prompt, or before an answer began
                write_note("\n/exit or Ctrl-D leaves")

    def _obey(self, command: str) -> None:
        from lpx.cli.answer import write_note
        from lpx.cli.loading import describe_in_use

        if command == "/reset":
            self._messages = list(self._opening)
            self._last = None
            write_note("the conversation is forgotten")
        elif command == "/stats":
            write_note(describe_in_use(self._engine.info))
            if self._last is not None:
                used = self._last.prompt_tokens + len(self._last.token_ids)
                write_note(f"last answer: {self._last.statistics()}")
                write_note(f"context: {used} of {self._engine.info.max_model_len} tokens")
        elif command == "/help":
            write_note(_HELP)
        else:
            write_note(f"there is no command {command.split()[0]}; /help lists them")

    def _answer(self, text: str) -> None:
        from lpx.cli.answer import generate_answer, write_note, write_text
        from lpx.errors import ContextLengthError, LpxError, error_line

        messages = [*self._messages, {"role": "user", "content": text}]
        try:
            answer = generate_answer(self._engine, self._engine.encode_chat(messages), self._params, write_text)
        except ContextLengthError as error:
            write_note(error_line(f"{error}; /reset forgets the conversation so far", error.help_code))
            return
        except LpxError as error:
            write_note(error_line(error, error.help_code))
            return
        if not answer.text.endswith("\n"):
            write_text("\n")
        write_note(answer.statistics())
        self._last = answer
        self._messages = [*messages, {"role": "assistant", "content": answer.text}]


def _enable_line_editing() -> None:
    """Arrow keys and a history of this session; nothing that is typed is kept on disk."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401


def _read_line() -> str | None:
    """The next line, or None at the end of the input."""
    from lpx.cli.answer import write_note

    if sys.stdin.isatty():
        try:
            line = input("> ")
        except EOFError:
            print()
            return None
    else:
        data = sys.stdin.buffer.readline()
        if not data:
            return None
        line = data.decode("utf-8", errors="surrogateescape").removesuffix("\n").removesuffix("\r")
    try:
        line.encode()
    except UnicodeEncodeError:
        write_note("error: that line is not valid UTF-8 text")
        return ""
    return line
