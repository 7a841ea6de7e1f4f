"""Places of array elements, held to the standard library's reading of the whole text."""

import io
import json
import random

import pytest

from qwenvl.data.records import json_window
from qwenvl.data.records.json_window import JSONDamage, Window


@pytest.fixture(params=[1, 7, 64])
def small_window(request, monkeypatch):
    """Windows that end within strings, escapes, numbers and words."""
    monkeypatch.setattr(json_window, "WINDOW_BYTES", request.param)


def elements(data: bytes) -> list:
    file = io.BytesIO(data)
    places = list(Window(file).elements())
    return [json.loads(data[start:end]) for start, end in places]


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
    assert elements(json.dumps(values, **plain).encode()) == values


@pytest.mark.parametrize(
    ("data", "found", "message", "at"),
    [
        ("[1, 23", [1, 23], "the file ends within the array", 6),
        ('["a" "b"]', ["a"], "expected , or ]", 5),
        ("[1] [2]", [1], "text after the end", 4),
        ('[{"a": tru}]', [], "Expecting value", 7),
        ('[{"a": 1}, {"b": "c', [{"a": 1}], "Unterminated string", 17),
        ("[1, ", [1], "Expecting value", 4),
        ("[" + "[" * 200_000, [], "nested too deeply", 1),
    ],
)
def test_damage_is_named_after_the_elements_before_it(data, found, message, at):
    places = Window(io.BytesIO(data.encode())).elements()
    assert [json.loads(data[start:end]) for start, end in (next(places) for _ in found)] == found
    with pytest.raises(JSONDamage, match=message) as damage:
        next(places)
    assert damage.value.at == at


def test_a_mistake_far_from_the_end_does_not_have_the_rest_read(monkeypatch):
    monkeypatch.setattr(json_window, "WINDOW_BYTES", 1000)
    file = io.BytesIO(b'[{"a" 1}, ' + b" " * 100_000)
    with pytest.raises(JSONDamage, match="Expecting ':' delimiter"):
        list(Window(file).elements())
    assert file.tell() == 1000
