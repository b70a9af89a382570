"""The prompts of a load.

Prompts that LPX makes have a beginning that no other request of this run or an earlier one has, so that no server
finds them in its prefix cache; only where the cache is the subject (`prefix_repetition`, `chat`) do they share one.
"""

from __future__ import annotations

import dataclasses
import json
import math
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from lpx.bench.load.prompt import Job, Message, Prompt
from lpx.bench.load.prompt_files import beside_the_loop, read_jsonl, read_sharegpt
from lpx.bench.load.prompt_supply import PromptSupply
from lpx.bench.load.settings import FILE_DATASETS, LoadSettings
from lpx.bench.load.token_counter import TokenCounter
from lpx.bench.load.words import WORDS, Sized, draw_words, sized_text

FIXED_OUTPUT_LENS = (32, 64, 128)
FIXED_REQUESTS = 48  # each of the 16 prompts with each length
_INPUT_LENS = {"random": 128, "prefix_repetition": 64, "long": 2048}
_OUTPUT_LENS = {"random": 64, "prefix_repetition": 64, "long": 64, "chat": 64, "custom": 128, "sharegpt": 128}
_PREFIX_LEN = 256
_DURATION_PROMPTS = 1000  # at most, of a load that lasts a given time
_LONG_DURATION_PROMPTS = 200
_FILE_PROMPTS = 1000
_WARMUP_TOKENS, _MOST_WARMUP_INPUT = 16, 2048
MOST_WARMUPS_AT_ONCE = 16

_LONG_PARTS = (
    "The {0} of the {1} was older than anyone in the {2} could remember, and the {3} beside it had been rebuilt twice.",
    "几年以前，{0}和{1}之间还没有路，人们要绕过{2}才能到达{3}。",
    "Every {0} the {1} is counted again, because last year a whole {2} went missing between the {3} and the store.",
    "关于{0}的记录写得很清楚，可是没有人说得出{1}为什么会和{2}放在一起，更不用说{3}了。",
    "When the {0} rang, she put down the {1}, closed the {2}, and asked whether the {3} had been paid for.",
    "他们先检查了{0}，然后把{1}搬到{2}旁边，最后才想起{3}还在外面。",
)
_ZH_WORDS = "木桥 粮仓 旧城 水塔 邮局 车站 药房 果园 码头 学校 磨坊 铁匠铺 图书馆 山谷 渡口 菜市 钟楼 茶馆".split()  # noqa: SIM905
_LONG_TASK = "\n\nSummarise the text above in three sentences. 请再用一句中文总结。"

_CHAT_TURNS = (
    (
        "I want to grow vegetables on a small balcony that gets sun only in the morning. What should I start with?",
        "How large do the pots have to be, and how often do I water them?",
        "Some leaves have turned yellow. What could be the reason?",
        "Please put all of your advice into a short checklist.",
    ),
    (
        "我想在周末从零开始学做馒头，需要准备哪些材料？",
        "面团一直发不起来，可能是什么原因？",
        "如果家里没有蒸锅，有什么替代办法？",
        "请把整个过程整理成五个步骤。",
    ),
    (
        "My Python script reads a large CSV file and runs out of memory. What can I do?",
        "Show me how to read it in pieces.",
        "How would I add up one column for every customer that way?",
        "What changes when the file is compressed?",
    ),
    (
        "请帮我给新来的同事写一段团队介绍，我们做的是社区医院的预约系统。",
        "语气再轻松一点。",
        "加上一句关于每周三技术分享会的内容。",
        "最后翻译成英文。",
    ),
)


@dataclass(frozen=True, slots=True)
class PromptSet:
    """What will be sent."""

    supply: PromptSupply
    requests: int
    warmups: int
    warm_up: Callable[[int], Awaitable[Prompt]]  # the prompt of each of them
    lengths: Callable[[], str]  # how the lengths of the prompts made so far came about, for the report
    repeats: bool = False  # whether the same prompt is sent more than once
    different: int | None = None  # requests that are taken in turns, beginnings of their own apart; None: no turns

    @property
    def jobs(self) -> tuple[Job, ...]:
        """Those that are made and wait to be sent."""
        return self.supply.ahead


def request_count(settings: LoadSettings) -> int:
    """How many requests a load has; of one that lasts a given time, how many at most."""
    if settings.num_prompts is not None:
        return settings.num_prompts
    if settings.duration_s is not None:
        return _LONG_DURATION_PROMPTS if settings.dataset_name == "long" else _DURATION_PROMPTS
    if settings.dataset_name == "fixed":
        return max(FIXED_REQUESTS, 2 * (settings.max_concurrency or 1))
    return max(16, 4 * (settings.max_concurrency or 8))


async def make_prompts(
    settings: LoadSettings, counter: TokenCounter | None, nonce: str, progress: Callable[[int, int], None] | None = None
) -> PromptSet:
    """The prompts of a load, the first of them made; `progress` is told how many there are, of how many.

    Raises ConfigError for files that cannot be used, RequestFailedError when the server stops counting.
    """
    maker = _Maker(settings, counter, nonce)
    different: int | None
    if settings.dataset_name in FILE_DATASETS:
        supply, different = await _from_file(settings, maker)
        requests = supply.count
    else:
        make = {
            "fixed": maker.fixed,
            "random": maker.words,
            "prefix_repetition": maker.with_prefix,
            "long": maker.long,
            "chat": maker.chat,
        }[settings.dataset_name]
        requests, different = request_count(settings), maker.different
        jobs = math.ceil(requests / len(_CHAT_TURNS[0])) if settings.dataset_name == "chat" else requests
        supply = PromptSupply(make, jobs)
    await supply.make_ahead(progress)
    repeats = not settings.makes_unique and requests > (different or 1)
    return PromptSet(supply, requests, _warmup_count(settings), maker.warm_up, maker.lengths, repeats, different)


def _warmup_count(settings: LoadSettings) -> int:
    if settings.num_warmups is not None:
        return settings.num_warmups
    return min(settings.max_concurrency or 1, MOST_WARMUPS_AT_ONCE)


async def _from_file(settings: LoadSettings, maker: _Maker) -> tuple[PromptSupply, int]:
    """The file's prompts, and how many different ones these are."""
    assert settings.dataset_path is not None
    count = settings.num_prompts or (_DURATION_PROMPTS if settings.duration_s else None)
    read = read_jsonl if settings.dataset_name == "custom" else read_sharegpt
    path, length = settings.dataset_path, settings.output_len or _OUTPUT_LENS[settings.dataset_name]
    rows = await beside_the_loop(lambda: read(path, length, count or _FILE_PROMPTS))
    if settings.output_len is not None:  # it beats the rows' own
        rows = [Job(tuple(dataclasses.replace(turn, output_len=length) for turn in row.turns)) for row in rows]
    count = count or len(rows)

    async def make(number: int) -> Job:
        row = rows[number % len(rows)]
        return Job((maker.tagged(number, row.turns[0]),)) if settings.makes_unique else row

    return PromptSupply(make, count), len({str(row.turns[0].content) for row in rows})


class _Maker:
    def __init__(self, settings: LoadSettings, counter: TokenCounter | None, nonce: str) -> None:
        self._settings, self._counter, self._nonce = settings, counter, nonce
        self._special = settings.endpoint_type != "openai-chat"  # a chat's are the template's business
        self._prefixes: dict[int, str] = {}
        self._missed = 0
        self._sized = 0
        fixed: list[dict[str, str]] = json.loads(
            (Path(__file__).parent / "data" / "fixed_prompts.json").read_text("utf-8")
        )
        self._fixed = [entry["text"] for entry in fixed]

    @property
    def different(self) -> int | None:
        """Requests that the set takes turns with; None where each is made anew."""
        if self._settings.dataset_name == "chat":
            return sum(map(len, _CHAT_TURNS))
        return len(self._fixed) if self._settings.dataset_name == "fixed" else None

    def lengths(self) -> str:
        """How the lengths of the prompts came about."""
        if not self._sized:
            return "prompts as they are"
        if self._counter is None:
            return "approximate: the server cannot count tokens, and no --tokenizer is given"
        behind = "" if self._special else ", without the chat template"
        if self._missed:
            return f"by {self._counter.how}{behind}; {self._missed} of {self._sized} prompts miss theirs"
        return f"exact, by {self._counter.how}{behind}"

    def _rng(self, *what: object) -> random.Random:
        return random.Random(":".join(map(str, (self._nonce, self._settings.seed, *what))))

    async def warm_up(self, number: int) -> Prompt:
        """Random words, so that nothing of it is in a measured prompt."""
        length = min(self._input_len(self._rng("warm-up", number)) or 64, _MOST_WARMUP_INPUT)
        text = await sized_text(
            draw_words(self._rng("warm-up words", number)), length, self._counter, special=self._special
        )
        return Prompt(text.text, min(self._output_len(number), _WARMUP_TOKENS))

    async def fixed(self, number: int) -> Job:
        length = self._settings.output_len or FIXED_OUTPUT_LENS[number % len(FIXED_OUTPUT_LENS)]
        prompt = Prompt(self._fixed[number % len(self._fixed)], length)
        return Job((self.tagged(number, prompt) if self._settings.makes_unique else prompt,))

    async def words(self, number: int) -> Job:
        if self._settings.prefix_len:
            return await self.with_prefix(number)
        return await self._sized_job(number, draw_words(self._rng("words", self._line(number))))

    async def with_prefix(self, number: int) -> Job:
        """A beginning that prompts share, and words of their own."""
        which = number % self._settings.num_prefixes
        prefix_len = _PREFIX_LEN if self._settings.prefix_len is None else self._settings.prefix_len
        if which not in self._prefixes:
            words = draw_words(self._rng("prefix", which))
            made = await sized_text(words, prefix_len, self._counter, special=self._special) if prefix_len else None
            self._prefixes[which] = made.text + " " if made else ""
        prefix, words = self._prefixes[which], draw_words(self._rng("words", self._line(number)))
        return await self._sized_job(number, lambda count: prefix + words(count), more=prefix_len)

    async def long(self, number: int) -> Job:
        """Sentences in English and Chinese, and the wish for a summary."""
        rng = self._rng("long", self._line(number))
        sentences: list[str] = []

        def text(count: int) -> str:
            while len(sentences) < count:
                part = rng.choice(_LONG_PARTS)
                sentences.append(part.format(*rng.sample(WORDS if part.isascii() else _ZH_WORDS, 4)))
            return "\n".join(sentences[:count]) + _LONG_TASK

        return await self._sized_job(number, text, size=24.0)

    async def chat(self, number: int) -> Job:
        texts = _CHAT_TURNS[number % len(_CHAT_TURNS)]
        left = request_count(self._settings) - number * len(texts)  # the last one may be shorter
        turns = [Prompt(text, self._output_len(number)) for text in texts[:left]]
        if self._settings.makes_unique:
            turns[0] = self.tagged(number, turns[0])
        return Job(tuple(turns))

    def tagged(self, number: int, prompt: Prompt) -> Prompt:
        """The prompt with a beginning of its own."""
        tag = f"[{' '.join(self._rng('tag', number).choices(WORDS, k=4))}]"
        if isinstance(prompt.content, str):
            return dataclasses.replace(prompt, content=f"{tag} {prompt.content}")
        first: Message = {**prompt.content[0], "content": f"{tag} {prompt.content[0].get('content') or ''}"}
        return dataclasses.replace(prompt, content=(first, *prompt.content[1:]))

    async def _sized_job(self, number: int, make: Callable[[int], str], more: int = 0, size: float = 1.0) -> Job:
        wanted = more + (self._input_len(self._rng("input length", number)) or 1)
        if more and size == 1.0:
            inner = make
            make = lambda count: inner(max(1, count - more))  # noqa: E731 - the prefix has `more` of the parts
        found = await sized_text(make, wanted, self._counter, special=self._special, size=size)
        self._note(found, wanted)
        return Job((Prompt(found.text, self._output_len(number), wanted),))

    def _note(self, found: Sized, wanted: int) -> None:
        self._sized += 1
        self._missed += found.tokens is not None and found.tokens != wanted

    def _line(self, number: int) -> int:
        return number if self._settings.makes_unique else 0

    def _input_len(self, rng: random.Random) -> int | None:
        name = self._settings.dataset_name
        length = self._settings.input_len or _INPUT_LENS.get(name)
        return None if length is None else self._around(length, rng)

    def _output_len(self, number: int) -> int:
        name = self._settings.dataset_name
        if self._settings.output_len is None and name == "fixed":
            return FIXED_OUTPUT_LENS[number % len(FIXED_OUTPUT_LENS)]
        return self._around(self._settings.output_len or _OUTPUT_LENS[name], self._rng("output length", number))

    def _around(self, length: int, rng: random.Random) -> int:
        spread = self._settings.range_ratio
        return (
            length if spread == 0 else max(1, rng.randint(round(length * (1 - spread)), round(length * (1 + spread))))
        )
