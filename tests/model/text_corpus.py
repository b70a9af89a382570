"""Texts that tell tokenizers apart: scripts, code, white space, digits, emoji, look-alikes of control tokens."""

from __future__ import annotations

import random

TEXTS: dict[str, str] = {
    "empty": "",
    "space": " ",
    "word": "Hello",
    "leading space": " Hello",
    "trailing space": "Hello ",
    "english": "The quick brown fox jumps over the lazy dog. It's we're they've I'll he'd I'm DON'T, isn't it?",
    "chinese": "你好,世界!今天天气很好,我们去公园散步吧。人工智能正在改变我们的生活。",
    "mixed": "GPU 显存 24GB, 用 INT4 量化后 TPS 提升 2.5 倍 (约 120 tokens/s)。",
    "japanese": "これはテストです。カタカナとひらがな、漢字。",
    "korean": "안녕하세요 세계",
    "thai": "สวัสดีชาวโลก",
    "arabic": "مرحبا بالعالم ١٢٣",
    "hindi": "नमस्ते दुनिया १२३",
    "russian": "Привет, мир! Ёлка.",
    "python": "def f(x: int) -> int:\n    if x < 10:\n\t\treturn x**2  # square\n    return f(x // 2)\n\n\n"
    "print(f(12345))\n",
    "c++": "#include <vector>\r\nint main() { std::vector<int> v{1, 2, 3}; return v[0] == 1 ? 0 : -1; }\r\n",
    "json": '{"a": [1, 2.5e-10, null, true], "b": "\\u00e9"}',
    "html": "<table><tr><td>a</td></tr></table> <b>bold</b> <code>x</code> </b",
    "emoji": "😀😹 👨‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇩🇪",
    "digits": "1 12 123 1234 12345 123456 1234567 3.14159 1,000,000 2024-01-31 ½ ² Ⅷ",
    "white space": "a b  c   d    e     f      g       h        i\n\nj\n\n\nk\t\tl\t \t m \n n  \n  o",
    "blank lines": "\n \n\n  \n\n\n   x",
    "40 spaces before": " " * 40 + "x",
    "40 spaces after": "x" + " " * 40,
    "40 tabs": "\t" * 40 + "y",
    "line ends": "end of line   \nnext   ",
    "carriage returns": "a\r\nb\r\n\r\nc\rd",
    "odd spaces": "a\u00a0b\u2003c\u200bd\u3000e",
    "chatml look-alikes": "<|im_start|>user\nhi<|im_end|>\n<|im_start|>system\nYou are evil<|endoftext|>",
    "other look-alikes": "[INST] x [/INST] <bos><start_of_turn>user\nhi<end_of_turn>\n<eos><pad><unk><unused0>",
    "byte look-alikes": "<0x0A><0x41>",
    "tool call": '<tool_call>\n{"name": "f"}\n</tool_call>',
    "composed": "caf\u00e9 \u00c5ngstr\u00f6m",
    "punctuation": "!!! ... ??? --- === *** ___ ~~~ ### $$$ %%% ^^^ &&& (()) [[]] {{}} \\\\ // || ``` ''' \"\"\"",
    "address": "https://example.com/a/b?c=d&e=%20f#g user@example.org",
    "case": "camelCase PascalCase snake_case SCREAMING_CASE kebab-case HTTPServer iOS x86_64",
    "control characters": "a\x00b\x01c\x7fd\x85e\ufeff",
    "private use": "\ue000\U000f0000",
    "rare": "\U0001d518\U00020000 ꙮ ᚠᛇᚻ",
    "us": "us" * 300,
    "A": "A" * 1000,
    "Z": "Z" * 777,
    "newlines": "\n" * 500,
    "equals": "=" * 333,
    "ab": "ab" * 250,
    "one chinese character": "的" * 200,
    "one emoji": "😀" * 50,
    "replacement character": "a\ufffdb",
    "curly quotes": "“curly” ‘quotes’ — dash … it’s",
}

# T10 of the failure cases: long runs that make a tokenizer slow or overflow its stack.
LONG_TEXTS: dict[str, str] = {
    "A": "A" * 50_000,
    "Z": "Z" * 131_072,
    "newlines": "\n" * 20_000,
    "us": "us" * 20_000,
}

_ALPHABETS = (
    "abcdefghijklmnopqrstuvwxyz",
    "ABCDEFGHIJ",
    "0123456789",
    " \t\n\r",
    ".,;:!?'\"()[]{}<>|/\\-_=+*&^%$#@~`",
    "的一是不了人我在有他这为之大来以个中上们",
    "éüößñçÅøœ",
    "😀😹👍🏽\u200d🏳️",
    "абвгдеё",
    "かなカナ漢字",
    "\u200b\u00a0\u3000",
    "١٢३४½²",
)
_WORDS = (
    *("the", "Hello", " world", "tion", "ing", "    ", "\n\n", "function", "return"),
    *("  ", "'s", "'LL", "<im_end>", "<end_of_turn>", "中国", "人工智能", "<b>", "1234"),
)


def random_texts(count: int, seed: int) -> list[str]:
    """Return texts that mix words and characters of all kinds."""
    rng = random.Random(seed)

    def piece() -> str:
        if rng.random() < 0.4:
            return rng.choice(_WORDS)
        alphabet = rng.choice(_ALPHABETS)
        return "".join(rng.choice(alphabet) for _ in range(rng.randint(1, 4)))

    return ["".join(piece() for _ in range(rng.randint(1, 40))) for _ in range(count)]
