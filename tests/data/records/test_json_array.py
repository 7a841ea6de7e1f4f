"""Elements of arrays, held to the standard library's reading of the whole text."""

import io
import json
import random

import pytest

from qwenvl.data.records import json_array
from qwenvl.data.records.json_array import ArrayDamage, ArrayText


@pytest.fixture(params=[1, 7, 64])
def small_window(request, monkeypatch):
    """Windows that end within strings, escapes, numbers and words."""
    monkeypatch.setattr(json_array, "READ_CHARACTERS", request.param)


def elements(text: str) -> list:
    return [json.loads(element) for element in ArrayText(io.StringIO(text, newline="")).elements()]


def some_value(draw: random.Random, depth: int = 0):
    kind = draw.randrange(7 if depth < 3 else 5)
    if kind == 5:
        return [some_value(draw, depth + 1) for _ in range(draw.randrange(4))]
    if kind == 6:
        return {f"k{i}é": some_value(draw, depth + 1) for i in range(draw.randrange(4))}
    text = "".join(draw.choice('a"\\\n\u2028é🎬[]{},:') for _ in range(draw.randrange(30)))
    return [None, True, draw.random() * 10 ** draw.randrange(-30, 30), draw.randrange(10**9), text][kind]


@pytest.mark.parametrize("seed", range(20))
def test_every_element_is_found(seed, small_window):
    draw = random.Random(seed)
    values = [some_value(draw) for _ in range(draw.randrange(8))]
    plain = {"ensure_ascii": draw.random() < 0.5, "indent": draw.choice([None, 3])}
    assert elements(json.dumps(values, **plain)) == values


def test_what_only_the_standard_library_reads(small_window):
    values = [1, float("inf"), 2**100, "\ud800", -0.0, {"a": [float("-inf"), 10**-300]}]
    assert elements(json.dumps(values)) == values
    assert repr(elements("[NaN, 1e400]")) == "[nan, inf]"


@pytest.mark.parametrize(
    ("text", "found", "message"),
    [
        ("[1, 23", [1, 23], "the file ends within the array at line 1 column 7"),
        ('["a" "b"]', ["a"], "expected , or ], found '\"' at line 1 column 6"),
        ("[1] [2]", [1], "text after the end of the array at line 1 column 5"),
        ('[{"a": tru}]', [], "Expecting value at line 1 column 8"),
        ('[{"a": 1},\n\r\n {"b": "c', [{"a": 1}], "Unterminated string starting at line 3 column 8"),
        ("[1,\n ", [1], "Expecting value at line 2 column 2"),
        ("[1,\n]", [1], "Expecting value at line 2 column 1"),
        ('["é🎬", x]', ["é🎬"], "Expecting value at line 1 column 8"),
        ("[" + "[" * 200_000, [], "nested too deeply at line 1 column 2"),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 100])
def test_damage_is_named_after_the_elements_before_it(text, found, message, size, monkeypatch):
    monkeypatch.setattr(json_array, "READ_CHARACTERS", size)
    texts = ArrayText(io.StringIO(text, newline="")).elements()
    assert [json.loads(next(texts)) for _ in found] == found
    with pytest.raises(ArrayDamage) as damage:
        next(texts)
    assert str(damage.value) == message


def test_a_mistake_far_from_the_end_does_not_have_the_rest_read(monkeypatch):
    monkeypatch.setattr(json_array, "READ_CHARACTERS", 1000)
    file = io.StringIO('[{"a" 1}, ' + " " * 100_000)
    with pytest.raises(ArrayDamage, match="Expecting ':' delimiter"):
        list(ArrayText(file).elements())
    assert file.tell() == 1000
