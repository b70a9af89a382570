"""A tiny byte-level BPE vocabulary: 256 bytes, a few special tokens, merges for common English pairs."""

import json

_MERGES = (
    "t h", "th e", "Ġ t", "Ġt he", "a n", "an d", "i n", "in g", "o u", "e r", "r e", "o n", "Ġ a", "Ġ s", "o r", "e n",
    "a t", "e s", "Ġ w", "i t", "i s", "Ġ c", "Ġ b", "Ġ f", "l l", "o f", "Ġ o", "Ġo f", "e d", "l o", "h e", "he llo",
)  # fmt: skip
SPECIAL = ("<|begin|>", "<|end|>", "<|turn|>", "<|pad|>")
BOS, EOS, TURN, PAD = 256, 257, 258, 259


def byte_letters():
    """The letter that stands for each byte in byte-level BPE (GPT-2's published table)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters, extra = {}, 0
    for byte in range(256):
        if byte in printable:
            letters[byte] = chr(byte)
        else:
            letters[byte] = chr(256 + extra)
            extra += 1
    return letters


def vocabulary(size):
    """(tokens by id, merges): bytes at 0..255, specials after them, merged pairs, then unused fillers up to `size`."""
    letters = byte_letters()
    tokens = [letters[byte] for byte in range(256)] + list(SPECIAL)
    known, merges = set(tokens), []
    for merge in _MERGES:
        left, right = merge.split()
        if left in known and right in known and left + right not in known and len(tokens) < size:
            merges.append(merge)
            tokens.append(left + right)
            known.add(left + right)
    tokens += [f"<unused{i}>" for i in range(size - len(tokens))]
    if len(tokens) != size:
        raise ValueError(f"a tiny vocabulary has at least {256 + len(SPECIAL)} entries, not {size}")
    return tokens, merges


def tokenizer_json(size):
    """The text of a `tokenizer.json` with this vocabulary."""
    tokens, merges = vocabulary(size)
    special = [
        {
            "id": i,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for i, token in enumerate(tokens)
        if token in SPECIAL or token.startswith("<unused")
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return json.dumps(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": special,
            "normalizer": None,
            "pre_tokenizer": byte_level,
            "post_processor": None,
            "decoder": byte_level,
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                "vocab": {token: i for i, token in enumerate(tokens)},
                "merges": [merge.split() for merge in merges],
            },
        },
        ensure_ascii=False,
    )


CHAT_TEMPLATE = (
    "{% for m in messages %}<|turn|>{{ m['role'] }}\n{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
)
