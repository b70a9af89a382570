"""What a form may be asked for with, and what is said about it when it cannot be had."""

from __future__ import annotations

from typing import Any

import pytest

from lpx.engine.sampling_params import SamplingParams
from lpx.engine.structured.compiler import GrammarCompiler
from lpx.engine.structured.params import MAX_GRAMMAR_CHARACTERS, StructuredOutputsParams
from lpx.errors import InvalidRequestError
from tests.engine.fake_executor import END_OF_TURN, EOS, ByteTokenizer


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(ByteTokenizer(), vocab_size=259, eos_token_ids=frozenset({EOS, END_OF_TURN}))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "exactly one of .* not none"),
        ({"json": {}, "regex": "a"}, "not json and regex"),
        ({"json": "{"}, "not valid JSON"),
        ({"json": 3}, "needs a JSON schema"),
        ({"json": {"default": float("nan")}}, "not plain JSON"),
        ({"json": {"default": {1, 2}}}, "not plain JSON"),
        ({"json_object": 1}, "json_object"),
        ({"regex": ""}, "empty regex"),
        ({"regex": 3}, "needs text for regex"),
        ({"choice": []}, "list of texts"),
        ({"choice": "ab"}, "list of texts"),
        ({"choice": ["a", ""]}, "empty choice"),
        ({"choice": ["x"] * 1025}, "at most 1024"),
        ({"grammar": "a" * (MAX_GRAMMAR_CHARACTERS + 1)}, "65,537 characters; at most 65,536"),
        ({"json": "x" * (MAX_GRAMMAR_CHARACTERS + 1)}, "65,537 characters; at most 65,536"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused_at_once(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message) as caught:
        StructuredOutputsParams(**fields, param="response_format")
    assert caught.value.param == "response_format"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"json": {"type": "array", "uniqueItems": True}}, "keywords that are not supported: uniqueItems"),
        ({"json": {"not": {}, "if": {"type": "string"}}}, "not supported: if, not|not supported: not, if"),
        ({"json": {"type": "string", "format": "postcode"}}, "Unknown format: postcode"),
        ({"json": {"type": "quark"}}, "Invalid type: quark"),
        ({"json": {"$ref": "http://127.0.0.1:1/x"}}, "not present in a registry"),
        ({"json": False}, "cannot be used"),
        ({"json": {"type": "string", "pattern": "(?=a)b"}}, "look-around"),
        ({"regex": "(?=a)b"}, "the regular expression cannot be used: look-around"),
        ({"regex": "a{1,5"}, "unclosed counted repetition"),
        ({"grammar": "start: foo"}, 'unknown name: "foo"'),
        ({"grammar": 'root ::= "a" foo'}, "Rule 'foo' not found"),
        ({"grammar": 'root ::= "a" [b'}, "Unexpected end of input"),
        ({"grammar": "x ::= " + "(" * 5000}, "cannot be used"),
    ],
    ids=str,
)
def test_what_cannot_be_compiled_is_refused_by_name(
    compiler: GrammarCompiler, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRequestError, match=message) as caught:
        compiler.compile(StructuredOutputsParams(**fields, param="response_format"))
    assert caught.value.param == "response_format"
    assert len(str(caught.value)) < 400


def test_sampling_params_take_a_dict() -> None:
    params = SamplingParams(structured_outputs={"choice": ["a", "b"]})  # type: ignore[arg-type]
    assert params.structured_outputs == StructuredOutputsParams(choice=["a", "b"])
    for wrong in ({"jsn": {}}, "json", 3):
        with pytest.raises(InvalidRequestError, match="structured_outputs") as caught:
            SamplingParams(structured_outputs=wrong)  # type: ignore[arg-type]
        assert caught.value.param == "structured_outputs"


def test_a_grammar_is_compiled_once_and_the_oldest_are_forgotten(compiler: GrammarCompiler) -> None:
    def compiled(text: str) -> object:
        return compiler.compile(StructuredOutputsParams(regex=text))

    first = compiled("a0")
    assert compiled("a0") is first
    for i in range(1, 64):
        compiled(f"a{i}")
    assert compiled("a0") is first
    for i in range(64, 128):
        compiled(f"a{i}")
    assert compiled("a0") is not first


def test_a_choice_is_text_and_not_grammar(compiler: GrammarCompiler) -> None:
    texts = ['"', "\\", 'a" | "b', "é\n", "/x/", "<[5]>", "猫"]
    matcher = compiler.compile(StructuredOutputsParams(choice=texts)).begin()
    for text in texts:
        assert matcher.consume_tokens(list(text.encode())), text
        assert matcher.is_stopped(), text
        matcher.reset()
