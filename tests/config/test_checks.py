"""Checks on a dataclass of flags."""

from dataclasses import dataclass, field
from typing import Literal

import pytest

from qwenvl.config.checks import choices_of, kinds_of, misfits, out_of_range, was_set


@dataclass
class Flags:
    """One field of each type that flags have."""

    rate: float = 1.0
    count: int | None = None
    names: list[str] = field(default_factory=lambda: ["format"])
    weights: list[float] | None = None
    mode: Literal["a", "b"] = "a"
    kernel: Literal["x", "y"] | None = None
    on: bool = True


@pytest.mark.parametrize(
    "fitting",
    [{"rate": 2}, {"count": 3}, {"weights": [1.0]}, {"mode": "b"}, {"kernel": "y"}, {"kernel": None}, {"on": False}],
    ids=str,
)
def test_values_of_their_type_fit(fitting):
    assert list(misfits(Flags(**fitting), Flags)) == []


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rate": "1e-6"}, "--rate must be a number, got '1e-6'"),
        ({"rate": None}, "--rate must be a number, got None"),
        ({"rate": True}, "--rate must be a number, got True"),
        ({"count": 1.5}, "--count must be an integer or None, got 1.5"),
        ({"names": "format"}, "--names must be a list, got 'format'"),
        ({"weights": 1.0}, "--weights must be a list or None, got 1.0"),
        ({"mode": "c"}, "--mode must be one of a, b, got 'c'"),
        ({"mode": None}, "--mode must be one of a, b, got None"),
        ({"kernel": "z"}, "--kernel must be one of x, y, got 'z'"),
        ({"on": 1}, "--on must be True or False, got 1"),
    ],
    ids=str,
)
def test_values_of_another_type_are_named(given, message):
    assert list(misfits(Flags(**given), Flags)) == [message]


def test_hints_taken_apart():
    assert choices_of(Literal["a", "b"] | None) == ("a", "b") and choices_of(int | None) == ()
    assert kinds_of(list[str] | None) == (list, type(None)) and kinds_of(list[str]) == (list,)


def test_was_set_compares_with_the_default_also_where_it_is_made():
    assert not was_set(Flags(names=["format"], rate=1.0), "names")
    assert was_set(Flags(names=["accuracy"]), "names") and was_set(Flags(count=0), "count")


@pytest.mark.parametrize(
    ("value", "bounds", "messages"),
    [
        (1, {"least": 1}, []),
        (0, {"least": 1}, ["--rate must be at least 1, got 0"]),
        (0, {"above": 0}, ["--rate must be above 0, got 0"]),
        (1, {"above": 0, "most": 1}, []),
        (1.5, {"above": 0, "most": 1}, ["--rate must be at most 1, got 1.5"]),
        (1, {"least": 0, "below": 1}, ["--rate must be below 1, got 1"]),
        (float("inf"), {"least": 0}, ["--rate must be a finite number, got inf"]),
        (None, {"least": 1}, []),
    ],
)
def test_bounds(value, bounds, messages):
    assert list(out_of_range(Flags(rate=value), "rate", **bounds)) == messages
