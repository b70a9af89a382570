"""Lengths of made prompts, and prompts out of files."""

from __future__ import annotations

import asyncio
import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lpx.bench.load import LoadSettings
from lpx.bench.load.prompt import Job, Prompt
from lpx.bench.load.prompt_files import read_jsonl, read_sharegpt
from lpx.bench.load.prompt_sets import FIXED_OUTPUT_LENS, make_prompts
from lpx.bench.load.prompt_supply import PromptSupply
from lpx.bench.load.words import WORDS, draw_words, sized_text
from lpx.errors import ConfigError


class Counter:
    """Counts with a made-up vocabulary."""

    how = "a test"

    def __init__(self, kind):
        self.kind, self.asked = kind, 0

    async def count(self, text, *, special):
        self.asked += 1
        bos = int(special)
        if self.kind == "words":
            return bos + len(text.split())
        if self.kind == "bytes":
            return bos + len(text.encode())
        return bos + sum(1 + len(word) // 5 for word in text.split())  # "pieces": long words are several tokens


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 300), st.sampled_from(["words", "bytes", "pieces"]), st.booleans(), st.integers(0, 5))
def test_texts_have_the_wanted_length_in_any_vocabulary(wanted, kind, special, seed):
    counter = Counter(kind)
    found = asyncio.run(sized_text(draw_words(random.Random(seed)), wanted, counter, special=special))
    if kind != "words" and wanted < 16:  # about one word, which has the length it has
        assert abs(found.tokens - wanted) < 16
        return
    assert found.tokens == wanted
    assert asyncio.run(counter.count(found.text, special=special)) == wanted


def test_a_common_vocabulary_needs_two_looks_at_most():
    counter = Counter("words")
    asyncio.run(sized_text(draw_words(random.Random(0)), 500, counter, special=True))
    assert counter.asked <= 2


def test_without_a_count_a_text_has_about_as_many_words():
    found = asyncio.run(sized_text(draw_words(random.Random(0)), 500, None, special=True))
    assert (len(found.text.split()), found.tokens) == (500, None)


def made(counter=None, **options):
    return asyncio.run(make_prompts(LoadSettings(base_url="http://x", **options), counter, "n"))


def test_the_fixed_set_has_each_prompt_with_each_length_in_both_languages():
    prompts = [job.turns[0] for job in made(unique_prompts=False).jobs]
    assert len({(prompt.content, prompt.output_len) for prompt in prompts}) == 48
    assert {prompt.output_len for prompt in prompts} == set(FIXED_OUTPUT_LENS)
    chinese = [prompt for prompt in prompts if any("一" <= character <= "鿿" for character in prompt.content)]
    assert len(chinese) >= 24


def test_lengths_are_drawn_around_the_wanted_ones():
    prompts = [
        job.turns[0]
        for job in made(
            Counter("words"), dataset_name="random", input_len=100, output_len=40, range_ratio=0.5, num_prompts=60
        ).jobs
    ]
    lengths = [len(prompt.content.split()) + 1 for prompt in prompts]
    assert lengths == [prompt.input_len for prompt in prompts]
    assert 50 <= min(lengths) < 65
    assert 135 < max(lengths) <= 150
    assert 20 <= min(prompt.output_len for prompt in prompts) < 26
    assert 54 < max(prompt.output_len for prompt in prompts) <= 60


def test_a_long_text_has_both_languages_and_a_task_at_its_end():
    [job] = made(Counter("words"), dataset_name="long", input_len=700, num_prompts=1).jobs
    text = job.turns[0].content
    assert len(text.split()) + 1 == 700
    assert any("一" <= character <= "鿿" for character in text)
    assert "Summarise the text above" in text


def test_words_are_plain():
    assert len(set(WORDS)) == len(WORDS) > 200
    assert all(word.isascii() and word.islower() for word in WORDS)


def test_lines_hold_prompts_of_several_forms(tmp_path):
    path = tmp_path / "提示.jsonl"
    rows = [{"prompt": "写一首诗", "output_tokens": 7}, "plain", {"messages": [{"role": "user", "content": "hi"}]}]
    path.write_text("﻿" + "\r\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\r\n\r\n", "utf-8")
    jobs = read_jsonl(str(path), 99, 1000)
    assert [(job.turns[0].content, job.turns[0].output_len) for job in jobs] == [
        ("写一首诗", 7),
        ("plain", 99),
        (({"role": "user", "content": "hi"},), 99),
    ]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "line 2 is no JSON"),
        ("3", "line 2 is neither a string nor an object"),
        ("{}", "line 2 has no prompt"),
        ('{"prompt": ""}', "line 2 has no prompt"),
        ('{"messages": []}', "line 2 has no prompt"),
        ('{"prompt": "a", "output_tokens": 0}', "line 2: the output length 0 is no number of tokens"),
        ('{"prompt": "a", "max_tokens": "9"}', "line 2: the output length '9' is no number of tokens"),
    ],
)
def test_a_line_that_cannot_be_used_is_named(tmp_path, line, complaint):
    path = tmp_path / "rows.jsonl"
    path.write_text(f'"good"\n{line}\n')
    with pytest.raises(ConfigError, match=complaint):
        read_jsonl(str(path), 9, 1000)


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_jsonl(str(tmp_path / "absent"), 9, 1000)
    broken = tmp_path / "broken"
    broken.write_bytes(b'"a"\n\xff')
    with pytest.raises(ConfigError, match="is no UTF-8: invalid start byte"):
        read_jsonl(str(broken), 9, 1000)
    (tmp_path / "empty").touch()
    with pytest.raises(ConfigError, match="holds no prompts"):
        read_jsonl(str(tmp_path / "empty"), 9, 1000)


def test_sharegpt_gives_the_first_words_of_people(tmp_path):
    rows = [
        {"conversations": [{"from": "human", "value": "你好"}, {"from": "gpt", "value": "hello"}]},
        {"conversations": [{"from": "system", "value": "s"}, {"from": "user", "value": "two"}]},
        {"conversations": [{"from": "gpt", "value": "alone"}]},
        {"conversations": []},
        {"other": 1},
    ]
    path = tmp_path / "sharegpt.json"
    path.write_text(json.dumps(rows))
    assert [job.turns[0].content for job in read_sharegpt(str(path), 9, 1000)] == ["你好", "two"]
    path.write_text("\n".join(map(json.dumps, rows)))
    assert len(read_sharegpt(str(path), 9, 1000)) == 2
    path.write_text("{}")
    with pytest.raises(ConfigError, match="holds no conversation"):
        read_sharegpt(str(path), 9, 1000)


def test_a_files_prompts_are_sent_as_they_are_and_repeats_are_said(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('"one"\n"two"\n')
    file = {"dataset_name": "custom", "dataset_path": str(path)}
    once = made(**file)
    assert [job.turns[0].content for job in once.jobs] == ["one", "two"]
    assert not once.repeats
    assert made(**file, num_prompts=3).repeats
    tagged = made(**file, num_prompts=4, unique_prompts=True)
    assert not tagged.repeats
    assert len({job.turns[0].content for job in tagged.jobs}) == 4


@pytest.mark.parametrize("count", [1, 3, 4, 5, 10])
def test_conversations_have_exactly_as_many_turns_as_were_asked_for(count):
    jobs = made(dataset_name="chat", endpoint_type="openai-chat", num_prompts=count).jobs
    lengths = [len(job.turns) for job in jobs]
    assert sum(lengths) == count
    assert set(lengths[:-1]) <= {4}


def test_a_file_is_read_no_further_than_needed(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('"one"\n"two"\nno JSON\n')
    assert len(read_jsonl(str(path), 9, 2)) == 2
    with pytest.raises(ConfigError, match="line 3"):
        read_jsonl(str(path), 9, 3)


def test_prompts_beyond_a_bounded_memory_are_made_when_they_are_asked_for():
    asked = []

    async def make(number):
        asked.append(number)
        return Job((Prompt("好" * 1000, 1),))

    async def main():
        supply = PromptSupply(make, 1_000_000, ahead_bytes=10_000)
        await supply.make_ahead()
        ahead = len(asked)
        jobs = [await supply.next() for _ in range(ahead + 3)]
        return supply, ahead, jobs

    supply, ahead, jobs = asyncio.run(main())
    assert 1 < ahead < 10
    assert None not in jobs
    assert asked == list(range(ahead + 3))
    assert (supply.made_late, supply.ahead) == (3, ())


def test_a_supply_ends():
    async def make(number):
        return Job((Prompt(str(number), 1),))

    async def main():
        supply = PromptSupply(make, 3, ahead_bytes=1)
        await supply.make_ahead()
        return [await supply.next() for _ in range(5)]

    assert [job and job.turns[0].content for job in asyncio.run(main())] == ["0", "1", "2", None, None]


def test_making_a_million_prompts_can_be_stopped_and_a_pipe_that_never_ends_too(tmp_path):
    import os

    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    async def main(**options):
        begun = asyncio.Event()
        settings = LoadSettings(base_url="http://x", **options)
        prompts = asyncio.ensure_future(make_prompts(settings, None, "n", lambda done, total: begun.set()))
        if "dataset_path" in options:
            await asyncio.sleep(0)
        else:
            await begun.wait()
        assert not prompts.done()
        prompts.cancel()
        assert isinstance(*await asyncio.gather(prompts, return_exceptions=True), asyncio.CancelledError)

    asyncio.run(main(dataset_name="random", num_prompts=1_000_000))
    asyncio.run(main(dataset_name="custom", dataset_path=str(pipe)))
