"""An answer that depends on its company is found, with the run and the token; a sound engine gives one text."""

from __future__ import annotations

from lpx.engine.engine import Engine
from lpx.quality.answers import Question, ask
from lpx.quality.stability import check_stability
from tests.engine.fake_executor import END_OF_TURN, ByteTokenizer, FakeExecutor, LineTemplate

QUESTIONS = [Question([{"role": "user", "content": text}], 12) for text in ("one", "two", "三")]


def engine_on(executor: FakeExecutor, template: LineTemplate | None = None) -> Engine:
    return Engine(
        executor,
        ByteTokenizer(),
        chat_template=template,
        eos_token_ids=frozenset({END_OF_TURN}),
        max_model_len=64,
        max_num_seqs=8,
        max_num_batched_tokens=64,
    )


def test_sound_engine_gives_one_text_and_progress_counts_all_answers() -> None:
    told: list[tuple[int, int]] = []
    engine = engine_on(FakeExecutor(num_blocks=256), LineTemplate())
    report = check_stability(engine, QUESTIONS, runs=5, progress=lambda *at: told.append(at))
    assert report.count("different") == 0
    assert told[-1] == (15, 15)
    assert {finding.kind for finding in report.findings} == {"cut"}
    engine.close()


def test_answer_that_depends_on_its_company_is_found() -> None:
    executor = FakeExecutor(num_blocks=256)

    def choose(tokens: list[int]) -> str:
        return "y" if len(executor.steps[-1].rows) > 1 and len(tokens) > 24 else "x"

    executor.choose = choose
    report = check_stability(engine_on(executor, LineTemplate()), QUESTIONS, runs=3)
    assert report.count("different") == 3
    finding = next(finding for finding in report.findings if finding.kind == "different")
    assert finding.place.startswith("run 2 differs from run 1 at token ")


def test_prompts_that_do_not_fit_are_refused_with_the_reason() -> None:
    long = Question([{"role": "user", "content": "x" * 100}], 12)
    report = check_stability(engine_on(FakeExecutor(num_blocks=256), LineTemplate()), [long, QUESTIONS[0]], runs=2)
    (refused,) = [finding for finding in report.findings if finding.kind == "refused"]
    assert "64" in refused.place


def test_models_without_a_template_continue_the_text() -> None:
    executor = FakeExecutor(num_blocks=256, choose=lambda tokens: "x")
    (answer,) = ask(engine_on(executor), [QUESTIONS[0]], together=1)
    assert answer.text == "x" * 12
    assert executor.steps[0].rows[0][1] == len("one\n\n")


def test_thoughts_are_no_part_of_the_answer() -> None:
    text = "<think>no</think>yes"
    prompt = len("user: one\nassistant: ")
    executor = FakeExecutor(num_blocks=256, choose=lambda tokens: (text + "!" * 99)[len(tokens) - prompt])
    question = Question(QUESTIONS[0].messages, len(text))
    (answer,) = ask(engine_on(executor, LineTemplate()), [question], together=1)
    assert answer.text == "yes"
