"""Options that several commands share, declared once as a dataclass and spread into each command's signature."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from lpx.errors import ConfigError
from lpx.sizes import parse_size

if TYPE_CHECKING:
    from lpx.engine.sampling_params import SamplingParams
    from lpx.options import EngineOptions


def size_parameter(text: str | int) -> int:
    """`parse_size` as the parser of an option."""
    try:
        return parse_size(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _engine(*names: str, help: str, env: str, **more: Any) -> Any:
    return typer.Option(*names, help=help, envvar=env, rich_help_panel="Model and machine", **more)


def _sampling(*names: str, help: str, **more: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel="Sampling", **more)


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Which model, and how much of the machine it gets."""

    model: Annotated[
        str | None,
        _engine(
            "--model",
            "--model-path",
            "-m",
            help="A .gguf file, a folder with one, a Hugging Face folder, or a name in the model folder. "
            "Default: smollm2-135m, pulled when it is absent.",
            env="LPX_MODEL",
            show_default=False,
        ),
    ] = None
    models_dir: Annotated[
        Path | None,
        _engine("--models-dir", help="The model folder. Default: the user's cache.", env="LPX_MODELS_DIR"),
    ] = None
    threads: Annotated[
        int | None,
        _engine("--threads", help="Threads. Default: the physical cores this process may use.", env="LPX_THREADS"),
    ] = None
    isa: Annotated[
        str | None,
        _engine("--isa", help="Kernel set. Default: the best this processor has.", env="LPX_ISA", metavar="NAME"),
    ] = None
    dtype: Annotated[str, _engine("--dtype", help="Type of unquantized weights.", env="LPX_DTYPE")] = "auto"
    quantization: Annotated[
        str | None,
        _engine(
            "--quantization",
            help="Quantize safetensors weights at load: none, q8 or q4.",
            env="LPX_QUANTIZATION",
            metavar="KIND",
        ),
    ] = None
    kv_cache_memory: Annotated[
        int | None,
        _engine(
            "--kv-cache-memory",
            help="Memory for the KV cache, such as 512M or 2G.",
            env="LPX_KV_CACHE_MEMORY",
            parser=size_parameter,
            metavar="SIZE",
        ),
    ] = None
    kv_cache_dtype: Annotated[
        str,
        _engine(
            "--kv-cache-dtype",
            help="Type of keys and values: f16, bf16, q8, q4, or two as K,V. q8 halves the cache; q4 costs quality.",
            env="LPX_KV_CACHE_DTYPE",
            metavar="KIND",
        ),
    ] = "auto"
    itl_target_ms: Annotated[
        float | None,
        _engine(
            "--itl-target-ms",
            help="Longest step of running streams while prompts are computed. Default: three decode steps, or 32 ms.",
            env="LPX_ITL_TARGET_MS",
            metavar="MS",
        ),
    ] = None
    enable_prefix_caching: Annotated[
        bool,
        _engine(
            "--enable-prefix-caching/--no-enable-prefix-caching",
            help="Keep computed prompts, and share them with requests that begin in the same way.",
            env="LPX_ENABLE_PREFIX_CACHING",
        ),
    ] = True
    max_model_len: Annotated[
        int | None,
        _engine(
            "--max-model-len",
            help="Longest context in tokens, prompt and answer together. Default: what model and memory allow.",
            env="LPX_MAX_MODEL_LEN",
        ),
    ] = None
    max_num_seqs: Annotated[
        int, _engine("--max-num-seqs", help="Sequences that run at once.", env="LPX_MAX_NUM_SEQS")
    ] = 64
    max_num_batched_tokens: Annotated[
        int,
        _engine("--max-num-batched-tokens", help="Tokens computed in one step.", env="LPX_MAX_NUM_BATCHED_TOKENS"),
    ] = 512
    chat_template: Annotated[
        str | None,
        _engine(
            "--chat-template",
            help="A Jinja chat template, as a file or as text. Default: the model's own.",
            env="LPX_CHAT_TEMPLATE",
        ),
    ] = None
    tokenizer_pre: Annotated[
        str | None,
        _engine(
            "--tokenizer-pre",
            help="Pre-tokenizer to use when the file names one that LPX does not know.",
            env="LPX_TOKENIZER_PRE",
            metavar="NAME",
        ),
    ] = None

    speculative_config: Annotated[
        str,
        _engine(
            "--speculative-config",
            help="How to draft tokens, as JSON. Methods: auto (as many as pay), suffix, ngram, draft_model, off. "
            'Example: \'{"method": "suffix", "num_speculative_tokens": 8}\'.',
            env="LPX_SPECULATIVE_CONFIG",
            metavar="JSON",
        ),
    ] = '{"method": "auto"}'

    def __post_init__(self) -> None:
        if self.model is not None and not self.model.strip():  # a variable of a script that was never set
            raise ConfigError(f"--model {self.model!r} is empty; name a model, or leave the option out for the default")

    def engine_options(self, model: str, models_dir: Path, **more: Any) -> EngineOptions:
        """The engine's options with `model` as resolved by the caller; ConfigError when they do not go together."""
        from lpx.options import EngineOptions

        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return EngineOptions(**{**values, "model": model, "models_dir": models_dir, **more})


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """How the answer is sampled and when it ends.

    Small models fall into endless repetition when they are greedy, so the default samples a little, and has an end.
    """

    temperature: Annotated[float, _sampling("--temperature", "--temp", help="0 is greedy.")] = 0.7
    top_p: Annotated[float, _sampling("--top-p", help="Nucleus; 1 is off.")] = 0.95
    top_k: Annotated[int, _sampling("--top-k", help="Likeliest tokens kept; 0 is off.")] = 0
    min_p: Annotated[float, _sampling("--min-p", help="Least probability relative to the likeliest; 0 is off.")] = 0.0
    seed: Annotated[int | None, _sampling("--seed", help="The same seed gives the same text.")] = None
    max_tokens: Annotated[int, _sampling("--max-tokens", "-n", help="Longest answer in tokens.")] = 1024
    min_tokens: Annotated[int, _sampling("--min-tokens", help="Shortest answer in tokens.")] = 0
    stop: Annotated[list[str] | None, _sampling("--stop", help="End before this text; may be given several times.")] = (
        None
    )
    repetition_penalty: Annotated[float, _sampling("--repetition-penalty", help="Above 1 discourages repeats.")] = 1.0
    presence_penalty: Annotated[float, _sampling("--presence-penalty", help="From -2 to 2.")] = 0.0
    frequency_penalty: Annotated[float, _sampling("--frequency-penalty", help="From -2 to 2.")] = 0.0
    ignore_eos: Annotated[bool, _sampling("--ignore-eos", help="Go on past the end-of-text token.")] = False

    def sampling_params(self) -> SamplingParams:
        """Checked parameters; InvalidRequestError names the wrong one."""
        from lpx.engine.sampling_params import SamplingParams

        return SamplingParams(**{field.name: getattr(self, field.name) for field in dataclasses.fields(self)})


def spread_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give `command` one command-line option per field of each of its parameters that is an option dataclass.

    typer reads a function's signature, so the wrapper shows the fields in place of the dataclass and builds it again
    when called.
    """
    hints = get_type_hints(command, include_extras=True)
    shown: list[inspect.Parameter] = []
    groups: dict[str, Any] = {}
    for name, parameter in inspect.signature(command).parameters.items():
        if not dataclasses.is_dataclass(hints[name]):
            shown.append(parameter.replace(annotation=hints[name]))
            continue
        group = hints[name]
        groups[name] = group
        kinds = get_type_hints(group, include_extras=True)
        shown += [
            inspect.Parameter(
                field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=kinds[field.name]
            )
            for field in dataclasses.fields(group)
        ]

    @functools.wraps(command)
    def wrapper(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in dataclasses.fields(group)})
        command(**values)

    shown = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in shown]
    wrapper.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    del wrapper.__wrapped__
    return wrapper
