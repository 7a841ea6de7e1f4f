"""Arguments of calls in the types of a tool: whatever a completion writes, a tool gets what it declares."""

from __future__ import annotations

import enum
from typing import Any, Literal

import pytest

from qwenvl.tools.arguments import typed_arguments
from qwenvl.tools.errors import ToolError
from qwenvl.tools.functions import schema_of

COLORS = Literal["red", "green"]


def parameters(kind: Any) -> dict[str, Any]:
    def mark(value):
        """Mark something.

        Args:
            value: what to mark.
        """

    mark.__annotations__ = {"value": kind}
    return schema_of(mark)["function"]["parameters"]


def given(kind: Any, value: Any) -> Any:
    return typed_arguments("mark", parameters(kind), {"value": value})["value"]


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (COLORS, "blue", "value must be one of red, green, got 'blue'"),
        (list[COLORS], ["red", "blue"], "value must be of type array, each one of red, green, got"),
        (dict[str, COLORS], {"left": "blue"}, "value must be of type object, each one of red, green, got"),
        (tuple[COLORS, int], ["blue", 1], "value must be of type array, got"),
        (list[list[COLORS]], [["blue"]], "value must be of type array, got"),
        (COLORS | int, "up", "value must be one of red, green or of type integer, got 'up'"),
        (COLORS | None, "none", "value must be one of red, green, got 'none'"),
        (list[COLORS], '["blue"]', "value must be of type array, each one of red, green, got"),
        (Literal["a", None], "null", "value must be one of a, None, got 'null'"),
        (float | None, "soon", "value must be of type number, got 'soon'"),
        (int | str, None, "value must be of type integer or string, got"),
    ],
)
def test_a_value_that_is_not_listed_is_refused_wherever_it_stands(kind, value, message):
    with pytest.raises(ToolError) as refused:
        given(kind, value)
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize(
    ("kind", "value", "made"),
    [
        (list[COLORS], ["red", "green"], ["red", "green"]),
        (list[COLORS], '["red"]', ["red"]),
        (COLORS | int, "green", "green"),
        (COLORS | int, "3", 3),
        (Literal["a", 1], "1", 1),
        (Literal["a", 1], 1, 1),
        (Literal["1", 2], "1", "1"),
        (Literal["a", None], None, None),
        (COLORS | None, None, None),
        (dict[str, COLORS], {"left": "red"}, {"left": "red"}),
        (tuple[COLORS, int], ["red", "1"], ("red", 1)),
        (float | None, "null", None),
        (str | None, "null", "null"),
    ],
)
def test_a_listed_value_is_given_as_the_type_lists_it(kind, value, made):
    found = given(kind, value)
    assert found == made and type(found) is type(made)


def test_a_tool_without_arguments_says_so():
    def ring() -> str:
        """Ring the bell."""
        return "rung"

    with pytest.raises(ToolError, match=r"^ring has no 'times'$"):
        typed_arguments("ring", schema_of(ring)["function"]["parameters"], {"times": 2})


def test_an_enumeration_of_python_is_no_type_of_an_argument():
    class Side(enum.Enum):
        LEFT = "left"
        RIGHT = "right"

    advice = r"no members of Side; write Literal\['left', 'right'\] as the type of value"
    for kind in (Side, list[Side], Side | None, dict[str, list[Side]]):
        with pytest.raises(TypeError, match=advice):
            parameters(kind)
