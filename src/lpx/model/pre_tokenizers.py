"""How byte-level BPE vocabularies cut text into words before merging, by the names that GGUF files use.

The same vocabulary with another split gives other ids, more tokens and worse answers without any error, so a name that
is not in this table is refused (see `split_rule`), never replaced by a guess.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lpx.errors import TokenizerError

if TYPE_CHECKING:
    from tokenizers.pre_tokenizers import PreTokenizer

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SplitRule:
    """One way to split: the patterns are applied one after the other, each inside the pieces of the one before."""

    patterns: tuple[str, ...]
    nfc: bool = False  # the family's tokenizer composes accents (Unicode NFC) first
    ignore_merges: bool = False  # a word that is in the vocabulary is taken whole
    adds_bos: bool = False  # whether a file without `add_bos_token` wants BOS


_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_TAIL}"
_QWEN2 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_TAIL}"
_QWEN35 = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_TAIL}"
)
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    rf"|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_TAIL}"
)
_GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_TAIL}"
)
_DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_TAIL}"
)
_PUNCTUATION = r"[\p{P}\$\+<=>\^~\|]+"

_RULE_NAMES: tuple[tuple[tuple[str, ...], SplitRule], ...] = (
    (("default",), SplitRule((_PUNCTUATION, _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"))),
    (("gpt-2", "gpt2", "phi-2", "mpt", "jais", "roberta-bpe", "gigachat", "exaone4", "trillion"), SplitRule((_GPT2,))),
    (("olmo",), SplitRule((_GPT2,), nfc=True)),
    (
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"),
        SplitRule((r"\p{N}", _GPT2)),
    ),
    (
        ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"),
        SplitRule((_LLAMA3,), ignore_merges=True, adds_bos=True),
    ),
    (("smaug-bpe", "dbrx", "glm4", "chatglm-bpe"), SplitRule((_LLAMA3,))),
    (("qwen2", "deepseek-r1-qwen"), SplitRule((_QWEN2,), nfc=True)),
    (("stablelm2", "hunyuan", "megrez"), SplitRule((_QWEN2,))),
    (("qwen35",), SplitRule((_QWEN35,), nfc=True)),
    (("tekken",), SplitRule((_TEKKEN,), ignore_merges=True, adds_bos=True)),
    (("gpt-4o", "llama4"), SplitRule((_GPT4O,))),
    (("deepseek-coder",), SplitRule((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}"))),
    (("deepseek-v3",), SplitRule((r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", _DEEPSEEK3))),
    (("falcon",), SplitRule((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]"))),
)
_RULES: dict[str, SplitRule] = {name: rule for names, rule in _RULE_NAMES for name in names}

# What converters write when they do not recognise the tokenizer: a real rule, but often not the model's own.
_DOUBTFUL = "default"


def known_names() -> list[str]:
    """Every pre-tokenizer name that `split_rule` knows, sorted."""
    return sorted(_RULES)


def split_rule(named_by_file: str | None, override: str | None = None) -> SplitRule:
    """Return the rule for the name in the file, or for `override` when the user gave one.

    Raises:
        TokenizerError: no name at all, or one that is not known; the message names the option that overrides it.
    """
    name = override if override is not None else named_by_file
    way_out = f"Name one with --tokenizer-pre (pre_tokenizer= in Python); known: {', '.join(known_names())}."
    if name is None:
        raise TokenizerError(f"The model file does not name its pre-tokenizer (tokenizer.ggml.pre). {way_out}")
    rule = _RULES.get(name)
    if rule is None:
        raise TokenizerError(f"Unknown pre-tokenizer {name!r} (tokenizer.ggml.pre). {way_out}")
    if name == _DOUBTFUL and override is None:
        _log.warning(
            "The model file names the pre-tokenizer %r, which converters write for tokenizers they do not know; "
            "if answers are poor, name the right one with --tokenizer-pre.",
            name,
        )
    return rule


def build_byte_level(rule: SplitRule) -> PreTokenizer:
    """Return the `tokenizers` pre-tokenizer: the splits of `rule`, then bytes as printable characters."""
    from tokenizers import Regex, pre_tokenizers

    steps: list[PreTokenizer] = [pre_tokenizers.Split(Regex(p), behavior="isolated") for p in rule.patterns]
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    return pre_tokenizers.Sequence(steps)
