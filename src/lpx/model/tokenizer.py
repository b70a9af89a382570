"""Text to token ids and back.

Owns the rules that hold for every vocabulary: text from users never becomes a control token, at most one BOS, what
bytes a token stands for. Building the vocabulary is left to `tokenizer_gguf.py` and `tokenizer_json.py`; the merging
itself is done by the `tokenizers` library.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from lpx.errors import TokenizerError
from lpx.model.special_tokens import TURN_ENDS, WHITE_SPACE, Marker, MarkerFinder
from lpx.model.tokenizer_source import TokenizerSource

if TYPE_CHECKING:
    import tokenizers

Segment = int | str
"""A piece of a prompt: the id of a control token, or text that is only text."""

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SURROGATES = re.compile("[\ud800-\udfff]")
_SPACE_MARK = "▁"  # SentencePiece writes a space as this character


def _byte_level_alphabet() -> dict[int, str]:
    """GPT-2's alphabet: byte value -> character. Printable Latin-1 stands for itself, the rest from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [b for b in range(256) if b not in set(printable)]
    return {**{b: chr(b) for b in printable}, **{b: chr(0x100 + i) for i, b in enumerate(rest)}}


_BYTE_TO_CHARACTER = _byte_level_alphabet()
_CHARACTER_TO_BYTE = {ord(c): b for b, c in _BYTE_TO_CHARACTER.items()}


def repair_surrogates(text: str) -> str:
    """Join surrogate pairs into their character and replace lone surrogates, which no encoding has, by U+FFFD."""
    if _SURROGATES.search(text) is None:
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


class TokenizerFiles(Protocol):
    """What `load_tokenizer` needs of a `ModelFiles`."""

    @property
    def tokenizer_source(self) -> TokenizerSource: ...


@dataclass(slots=True)
class Vocabulary:
    """What the two builders hand over."""

    core: tokenizers.Tokenizer  # matches no control token in text
    inner_core: tokenizers.Tokenizer  # the same, for text that does not start the prompt
    texts: Sequence[str | None]  # by id; None: no such token
    encoding: Literal["byte-level", "sentencepiece"]
    markers: list[Marker]  # control tokens
    silent: frozenset[int] = frozenset()  # ids that stand for no text and are not markers: unused, unknown
    literal: frozenset[int] = frozenset()  # added tokens, whose text is meant as it is written
    byte_tokens: bool = False  # <0x41> stands for the byte 0x41
    bos_id: int | None = None
    eos_ids: frozenset[int] = field(default_factory=frozenset)
    add_bos: bool = False
    prefix_space: bool = False  # encode() puts a space in front of the text
    vocab_rows: int = 0
    special_texts: dict[str, str] = field(default_factory=dict)  # "bos_token" and so on -> spelling, for templates


def load_tokenizer(files: TokenizerFiles, *, pre_tokenizer: str | None = None) -> Tokenizer:
    """Build the tokenizer of a model.

    `pre_tokenizer` names the splitting rule of a GGUF file that names none, or a wrong one (`pre_tokenizers.py`).

    Raises:
        TokenizerError: the data is broken, ambiguous or of a kind that is not supported.
    """
    source = files.tokenizer_source
    if source.kind == "gguf":
        from lpx.model.tokenizer_gguf import build_from_gguf

        return Tokenizer(build_from_gguf(source, pre_tokenizer))
    if pre_tokenizer is not None:
        raise TokenizerError(
            f"--tokenizer-pre {pre_tokenizer!r} has no meaning for {source.path.name}, which describes its own "
            "pre-tokenizer; leave the option out."
        )
    from lpx.model.tokenizer_json import build_from_json

    return Tokenizer(build_from_json(source))


class Tokenizer:
    """Text to ids and back for one model. Safe to use from several threads.

    Attributes:
        vocab_size: rows that the model scores; ids beyond the token list stand for no text.
        bos_id: the token that starts a prompt, if the model has one.
        eos_ids: every id that ends a generation, as the tokenizer's data names them.
        add_bos: whether a prompt starts with BOS.
        special_texts: what chat templates know as `bos_token`, `eos_token`, ...: name -> spelling.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        v = vocabulary
        self._core = v.core
        self._inner_core = v.inner_core
        self._texts = v.texts
        self._encoding = v.encoding
        self._literal = v.literal
        self._silent = v.silent
        self._byte_tokens = v.byte_tokens
        self._markers = {m.id: m for m in v.markers}
        self._finder = MarkerFinder(v.markers)
        self._prefix_space = v.prefix_space
        self._bytes: dict[int, bytes] = {}  # of the tokens met so far
        self.vocab_size = max(len(v.texts), v.vocab_rows)
        self.special_texts = dict(v.special_texts)
        self.bos_id = v.bos_id
        self.add_bos = v.add_bos and v.bos_id is not None
        self.eos_ids = v.eos_ids | {m.id for m in v.markers if m.text in TURN_ENDS}
        if 0 < v.vocab_rows < len(v.texts):
            raise TokenizerError(
                f"The tokenizer has {len(v.texts)} tokens, but the model only {v.vocab_rows} embedding rows."
            )
        for name, token_id in (("BOS", v.bos_id), *(("EOS", i) for i in sorted(v.eos_ids))):
            if token_id is not None and not 0 <= token_id < self.vocab_size:
                raise TokenizerError(f"{name} token id {token_id} is outside the vocabulary of {self.vocab_size}.")

    def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        """Encode text from a user. Characters that spell a control token are plain text.

        With `add_special`, BOS comes first if the model wants one; a text that itself starts with BOS's spelling then
        means that BOS, so that there is exactly one. Lone surrogates become U+FFFD.
        """
        text = repair_surrogates(text)
        if not (add_special and self.add_bos and self.bos_id is not None):
            return self._encode_plain(text, first=True)
        bos = self._markers.get(self.bos_id)
        if bos is not None and bos.text and text.startswith(bos.text):
            return self._encode_segments([self.bos_id, text[len(bos.text) :]])
        return [self.bos_id, *self._encode_plain(text, first=True)]

    def encode_segments(self, segments: Iterable[Segment], *, add_special: bool = True) -> list[int]:
        """Encode a prompt whose control tokens are already told apart from its text (see `split_markers`).

        White space beside a marker is dropped where the marker's own flags say so. With `add_special` and a model that
        wants BOS, the ids start with exactly one, whether the segments start with none, one or two.
        """
        ids = self._encode_segments([s if isinstance(s, int) else repair_surrogates(s) for s in segments])
        if add_special and self.add_bos and self.bos_id is not None:
            if ids[:1] != [self.bos_id]:
                ids.insert(0, self.bos_id)
            while ids[1:2] == [self.bos_id]:
                del ids[1]
        return ids

    def encode_continuation(self, text: str) -> list[int]:
        """Encode text that stands behind other text: no BOS, and no space in front."""
        return self._encode_plain(repair_surrogates(text), first=False)

    def split_markers(self, text: str) -> list[Segment]:
        """Cut trusted text, such as a template's output, at the control tokens that it spells."""
        segments: list[Segment] = []
        done = 0
        for at, marker in self._finder.find(text):
            if at > done:
                segments.append(text[done:at])
            segments.append(marker.id)
            done = at + len(marker.text)
        if done < len(text):
            segments.append(text[done:])
        return segments

    @property
    def markers(self) -> MarkerFinder:
        """The control tokens, to look for in text."""
        return self._finder

    def decode(self, ids: Iterable[int], *, skip_special: bool = True, from_start: bool = False) -> str:
        """Decode ids to exactly the text of their bytes; bytes that are not UTF-8 become U+FFFD.

        With `from_start`, the ids are a whole text as `encode` makes it, and the space that `encode` put in front is
        dropped. Generated ids continue a text, so their first space is theirs.
        """
        data = b"".join(self.token_bytes(i, skip_special=skip_special) for i in ids)
        if from_start and self._prefix_space and data.startswith(b" "):
            data = data[1:]
        return data.decode("utf-8", "replace")

    def token_bytes(self, token_id: int, *, skip_special: bool = False) -> bytes:
        """Return the bytes that a token adds to the text.

        A control token gives its spelling, or nothing with `skip_special`. Unused and unknown ids give nothing.
        """
        if skip_special and token_id in self._markers:
            return b""
        known = self._bytes.get(token_id)
        if known is not None:
            return known
        if 0 <= token_id < len(self._texts):
            known = self._bytes[token_id] = self._make_bytes(token_id)
            return known
        if 0 <= token_id < self.vocab_size:
            return b""
        raise IndexError(f"token id {token_id} is outside the vocabulary of {self.vocab_size}")

    def vocabulary_bytes(self) -> list[bytes]:
        """`token_bytes` of every id, without keeping them."""
        made = [self._make_bytes(i) for i in range(len(self._texts))]
        return made + [b""] * (self.vocab_size - len(made))

    def token_text(self, token_id: int) -> str:
        """Return one token as text to show; incomplete characters show as U+FFFD, control tokens as their spelling."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def is_control(self, token_id: int) -> bool:
        """Tell whether a token is structure (turn marker, BOS, padding), not text."""
        return token_id in self._markers

    def _encode_segments(self, segments: Sequence[Segment]) -> list[int]:
        ids: list[int] = []
        for index, segment in enumerate(segments):
            if isinstance(segment, int):
                ids.append(segment)
                continue
            before = self._marker_at(segments, index - 1)
            after = self._marker_at(segments, index + 1)
            if before is not None and before.rstrip:
                segment = segment.lstrip(WHITE_SPACE)
            if after is not None and after.lstrip:
                segment = segment.rstrip(WHITE_SPACE)
            ids.extend(self._encode_plain(segment, first=not ids))
        return ids

    def _marker_at(self, segments: Sequence[Segment], index: int) -> Marker | None:
        if not 0 <= index < len(segments):
            return None
        segment = segments[index]
        return self._markers.get(segment) if isinstance(segment, int) else None

    def _encode_plain(self, text: str, *, first: bool) -> list[int]:
        if not text:
            return []
        core = self._core if first else self._inner_core
        # As a batch, because only that lets go of the GIL: a long text must not stop the engine and the event loop.
        ids: list[int] = core.encode_batch_fast([text], add_special_tokens=False)[0].ids
        if self._markers.keys().isdisjoint(ids):
            return ids
        # A vocabulary may list a control token among its words too. Cut inside each spelling, so that none is whole.
        whole: list[int] = []
        done = 0
        for at, marker in self._finder.find(text):
            whole += self._encode_plain(text[done : at + 1], first=first and done == 0) if len(marker.text) > 1 else []
            done = at + 1
        if done == 0:
            raise TokenizerError(f"The vocabulary spells plain text with control tokens: {sorted(set(ids))[:8]}.")
        return whole + self._encode_plain(text[done:], first=False)

    def _make_bytes(self, token_id: int) -> bytes:
        text = self._texts[token_id]
        if text is None or token_id in self._silent:
            return b""
        if token_id in self._markers:
            return text.encode("utf-8", "replace")
        if self._encoding == "sentencepiece":
            byte = _BYTE_TOKEN.fullmatch(text) if self._byte_tokens else None
            if byte is not None:
                return bytes([int(byte[1], 16)])
            return text.replace(_SPACE_MARK, " ").encode("utf-8", "replace")
        if token_id in self._literal:
            return text.encode("utf-8", "replace")
        try:
            return bytes([_CHARACTER_TO_BYTE[ord(c)] for c in text])
        except KeyError:  # not in the byte alphabet: written as it is
            return text.encode("utf-8", "replace")
