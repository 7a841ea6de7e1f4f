"""The calls in a text, and their arguments in the types of a schema: what a model may write, in linear time."""

import json
import math
from typing import Any, Literal

import pytest

from qwenvl.tools.arguments import typed_arguments
from qwenvl.tools.calls import DEEPEST, calls_in, read_json
from qwenvl.tools.errors import ToolError, refusal
from qwenvl.tools.functions import schema_of


def call(body: str) -> str:
    return f"<tool_call>{body}</tool_call>"


MANY = 100_000
"""Repetitions. A pattern that goes back for each of them would take hours."""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (call("<function=f><parameter=a>" + "\n" * MANY + "</function>"), [("f", {})]),
        (call("<function=f><parameter=a>" + "\n" * MANY + "1</parameter></function>"), [("f", {"a": "1"})]),
        (call("<function=f>" + "<parameter=a>" * MANY), [("f", {})]),
        (call("<function=f>" + "<parameter=" * MANY + "a>1</parameter>"), [("f", {"a": "1"})]),
        (call("<function=" * MANY + " >"), [("", {})]),
        (call("[" * MANY), [("", {})]),
        (call('"' * MANY), [("", {})]),
        (call('"' + '\\"' * MANY), [("", {})]),
        (call('{"name": "f", "arguments": {"a": ' + "9" * MANY + "}}"), [("f", {"a": math.inf})]),
        ("<tool_call>" * MANY, [("", {})] * MANY),
    ],
    ids=[
        "white space", "white space in a value", "open parameters", "open names", "open functions", "brackets",
        "quotes", "escapes", "digits", "calls",
    ],
)  # fmt: skip
def test_a_long_text_is_read_in_linear_time(text, found):
    assert calls_in(text) == found


@pytest.mark.parametrize(
    "body",
    [
        "",
        "look",
        "[1]",
        "null",
        "1",
        '{"arguments": {}}',
        '{"name": "f", "arguments": [["a", 1]]}',
        '{"name": "f", "arguments": "a"}',
        '{"name": "f", "arguments": {"a": "\\ud800"}}',
        '{"name": "\\udfff"}',
        '{"name": "f", "arguments": ' + "[" * DEEPEST + "]" * DEEPEST + "}",
        "<function=><parameter=a>1</parameter>",
        "<function=a b>",
    ],
)
def test_text_that_is_no_call_has_no_name(body):
    assert calls_in(call(body)) == [("", {})]


def test_brackets_and_control_tokens_in_strings_are_text():
    text = "[" * 2 * DEEPEST + "<|im_end|> \U0001f600"
    assert read_json(f'{{"a": "{text}"}}') == {"a": text}
    assert read_json('"\\ud83d\\ude00"') == "\U0001f600", "a whole pair"


def test_a_function_of_xml_in_a_text_of_json_is_text():
    text = "use <function=look><parameter=start>1</parameter></function> here"
    assert calls_in(f'<tool_call> {json.dumps({"name": "note", "arguments": {"text": text}})}</tool_call>') == [
        ("note", {"text": text})
    ]


def test_a_call_that_is_not_closed_ends_at_the_next():
    one, two = '{"name": "f"}', '{"name": "g", "arguments": {"a": 1}}'
    assert calls_in(f"So. <tool_call>{one}<tool_call>{two}</tool_call> And.") == [("f", {}), ("g", {"a": 1})]


def function(
    number: float = 0.0,
    count: int = 0,
    flag: bool = False,
    word: str = "",
    mode: Literal["fast", "slow"] = "fast",
    boxes: list[list[int]] | None = None,
    pair: tuple[int, str] = (0, ""),
    sizes: dict[str, float] | None = None,
    either: int | str = 0,
    some: int | list[int] = 0,
    anything: Any = None,
):
    """Do something.

    Args:
        number, count, flag, word, mode, boxes, pair, sizes, either, some, anything: a value.
    """


def typed(**arguments):
    return typed_arguments("function", schema_of(function)["function"]["parameters"], arguments)


@pytest.mark.parametrize(
    ("name", "written", "value"),
    [
        ("number", 1, 1.0),
        ("number", " 1.5 ", 1.5),
        ("count", "3", 3),
        ("count", 3.0, 3),
        ("count", "1e3", 1000),
        ("count", 2**53 + 1, 2**53 + 1),
        ("count", str(2**62 + 1), 2**62 + 1),
        ("flag", "True", True),
        ("word", 5, "5"),
        ("mode", "slow", "slow"),
        ("boxes", [[1, 2.0]], [[1, 2]]),
        ("boxes", "[[1, 2]]", [[1, 2]]),
        ("boxes", None, None),
        ("pair", [1, "a"], (1, "a")),
        ("sizes", {"a": 1}, {"a": 1.0}),
        ("either", "a", "a"),
        ("either", "5", "5"),
        ("either", 5, 5),
        ("some", [5], [5]),
        ("some", "5", 5),
        ("anything", {"a": [None]}, {"a": [None]}),
    ],
)
def test_a_tool_gets_the_types_that_it_declares(name, written, value):
    [got] = typed(**{name: written}).values()
    assert got == value and type(got) is type(value)


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("number", "nan"),
        ("number", math.inf),
        ("number", float("9" * 400)),
        ("number", [1]),
        ("number", None),
        ("number", True),
        ("number", "1_0"),
        ("count", False),
        ("count", "1_0"),
        ("word", None),
        ("word", ["a"]),
        ("word", {"a": 1}),
        ("count", 1.5),
        ("count", 1e308),
        ("count", 2**63),
        ("count", "9" * 30),
        ("flag", "perhaps"),
        ("mode", "medium"),
        ("boxes", [[1, "a"]]),
        ("boxes", [1]),
        ("boxes", "[" * 100),
        ("boxes", "1"),
        ("pair", [1]),
        ("sizes", [1]),
        ("sizes", {"a": math.nan}),
        ("some", "a"),
        ("anything", [math.nan]),
    ],
)
def test_arguments_of_other_types_are_refused_in_a_sentence(name, written):
    with pytest.raises(ToolError) as refused:
        typed(**{name: written})
    assert str(refused.value).startswith(f"{name} must be ") and len(str(refused.value)) < 150


def test_a_refusal_is_one_short_line_without_special_tokens():
    tokens = ["<|im_end|>", "<tool_call>", "</tool_call>"]
    text = refusal("so <|im_end|>\n<tool_call>\x1b[2J \ud800 </tool_call>" + "x" * 10_000, tokens)
    assert text.startswith("Error: so < |im_end|> < tool_call>\ufffd[2J \ufffd < /tool_call>xxx")
    assert len(text) < 500 and not any(token in text for token in tokens)
