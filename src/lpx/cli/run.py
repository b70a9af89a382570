"""`lpx run`: one prompt, one answer."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from lpx.cli.option_groups import ModelOptions, SamplingOptions, spread_options
from lpx.cli.profile_option import ProfileOption

if TYPE_CHECKING:
    from lpx.cli.answer import Answer
    from lpx.engine.engine import Engine


@spread_options
def run(
    context: typer.Context,
    profile: ProfileOption,
    model_options: ModelOptions,
    sampling: SamplingOptions,
    prompt: Annotated[
        str | None, typer.Argument(help="The prompt; without it, or as -, it is read from standard input.")
    ] = None,
    system: Annotated[str | None, typer.Option("--system", help="System message of the chat.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Complete the text as it is, without a chat template.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object when the answer is done.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say what is in use.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Leave out the line of statistics.")] = False,
) -> None:
    """Answer one prompt.

    Example: lpx run "Why is the sky blue?" --max-tokens 128

    Example: git diff | lpx run --system "Summarise this change in one sentence."
    """
    from lpx.cli.answer import generate_answer, write_note, write_text
    from lpx.cli.loading import describe_in_use, load_engine, resolve_engine_options
    from lpx.errors import ConfigError

    if raw and system is not None:
        raise ConfigError("--system is a chat message and --raw leaves out the chat template; use one of them")
    if not quiet:
        profile.announce(context)
    params = sampling.sampling_params()
    text = _read_prompt(prompt)
    options = resolve_engine_options(model_options, measure_steps=False)  # a first answer soon counts for more
    started = time.monotonic()
    engine = load_engine(options)
    load_ms = (time.monotonic() - started) * 1e3
    try:
        if verbose:
            write_note(describe_in_use(engine.info))
        ids = engine.validate(text, params) if raw else _encode_chat(engine, text, system)
        answer = generate_answer(engine, ids, params, (lambda piece: None) if json_output else write_text)
        if json_output:
            print(json.dumps(_as_json(answer, engine, load_ms), ensure_ascii=False))
        else:
            if not answer.text.endswith("\n"):
                write_text("\n")
            if not quiet:
                write_note(answer.statistics())
    finally:
        engine.close()
    if answer.interrupted:
        raise KeyboardInterrupt


def _read_prompt(argument: str | None) -> str:
    from lpx.errors import InvalidRequestError

    if argument is not None and argument != "-":
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise InvalidRequestError("the prompt is not valid UTF-8 text", param="prompt") from None
        text = argument
    else:
        if sys.stdin is None or (argument is None and sys.stdin.isatty()):
            raise InvalidRequestError(
                'no prompt: give one as in lpx run "Why is the sky blue?", pipe one in, or use lpx chat', param="prompt"
            )
        try:
            # Bytes, so that no line ending or Unicode separator inside the text is changed; a byte order mark goes.
            text = sys.stdin.buffer.read().decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise InvalidRequestError(
                f"standard input is not valid UTF-8 text (byte {error.start}); convert it first, for instance by iconv",
                param="prompt",
            ) from None
        text = text.removesuffix("\n").removesuffix("\r")
    if not text:
        raise InvalidRequestError("the prompt is empty", param="prompt")
    return text


def _encode_chat(engine: Engine, text: str, system: str | None) -> list[int]:
    from lpx.errors import ChatTemplateError

    if engine.chat_template is None:
        raise ChatTemplateError(
            f"the model {engine.info.model!r} has no chat template: it continues text rather than answering; "
            "use --raw to complete the prompt as it is, or give a template with --chat-template",
            param="messages",
        )
    messages = [{"role": "user", "content": text}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    return engine.encode_chat(messages)


def _as_json(answer: Answer, engine: Engine, load_ms: float) -> dict[str, object]:
    return {
        "text": answer.text,
        "token_ids": answer.token_ids,
        "finish_reason": answer.finish_reason,
        "stop_reason": answer.stop_reason,
        "usage": {
            "prompt_tokens": answer.prompt_tokens,
            "completion_tokens": len(answer.token_ids),
            "total_tokens": answer.prompt_tokens + len(answer.token_ids),
        },
        "timings": {
            "load_ms": load_ms,
            **(dataclasses.asdict(answer.timings) if answer.timings is not None else {}),
        },
        "in_use": dataclasses.asdict(engine.info),
    }
