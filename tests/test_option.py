"""An option: default, bounds, choices and help in one place, and the checks that come from it."""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import pytest

from qwenvl.option import Options, option, parse_row, problems_of


@pytest.mark.parametrize(
    "text",
    [
        *("f(1)", "f(**{})", "f(a=1, a=2)", "f(a={[1]: 2})", "f(a=g())", "f(a=1) + g(b=2)", "f(a=)", "f(*x)"),
        *("f((a=1))", "f(a=1)(b=2)"),
    ],
)
def test_anything_but_a_call_with_named_literals_is_refused(text):
    with pytest.raises(ValueError, match="expected name"):
        parse_row(text)


def test_an_unnamed_argument_is_taken_where_it_is_asked_for():
    assert parse_row("frames(6)", unnamed=True) == ("frames", {"": 6})
    assert parse_row("frames(wide, n=-1.5)", unnamed=True) == ("frames", {"": "wide", "n": -1.5})
    with pytest.raises(ValueError, match="expected name"):
        parse_row("frames(1, 2)", unnamed=True)


@dataclass
class Kinds(Options):
    """One option of each type."""

    rate: float = option(1.0, "A number.")
    count: int | None = option(None, "A whole number.", unset="none", least=1)
    names: list[str] | None = option(None, "Words.")
    weights: list[float] | None = option(None, "Numbers.")
    mode: Literal["a", "b"] = option("a", "One of two.")
    kernel: Literal["x", "y"] | None = option(None, "One of two, or none.")
    on: bool = option(True, "A switch.")


@dataclass
class Bounded(Options):
    """One option for each manner of bounds."""

    seconds: float = option(2.0, "Above 0.", above=0)
    share: float | None = option(None, "Above 0 to 1.", above=0, most=1)
    dropout: float = option(0.0, "0 to below 1.", least=0, below=1)
    group: int = option(4, "At least 2.", least=2, why="a group of one has no spread")

    def problems(self) -> Iterator[str]:
        if self.share is not None and self.dropout:
            yield "--share has no effect with --dropout"


@dataclass
class Both(Kinds, Bounded):
    """Several groups in one, with an option of its own."""

    last: int = option(0, "A number.", most=9)

    def problems(self) -> Iterator[str]:
        if self.last and not self.on:
            yield "--last has no effect without --on"


def refusal(made: type, **values) -> list[str]:
    with pytest.raises(ValueError) as error:
        made(**values)
    return str(error.value).splitlines()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rate": "1e-6"}, "--rate must be a number, got '1e-6'"),
        ({"rate": True}, "--rate must be a number, got True"),
        ({"count": 1.5}, "--count must be an integer or None, got 1.5"),
        ({"names": "format"}, "--names must be a list or None, got 'format'"),
        ({"mode": "c"}, "--mode must be one of a, b, got 'c'"),
        ({"mode": None}, "--mode must be one of a, b, got None"),
        ({"kernel": "z"}, "--kernel must be one of x, y, got 'z'"),
        ({"on": 1}, "--on must be True or False, got 1"),
    ],
    ids=str,
)
def test_values_of_another_type_are_named(given, message):
    assert refusal(Kinds, **given) == [message]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"seconds": 0}, "--seconds must be above 0, got 0"),
        ({"share": 1.5}, "--share must be at most 1, got 1.5"),
        ({"dropout": 1}, "--dropout must be below 1, got 1"),
        ({"seconds": float("inf")}, "--seconds must be a finite number, got inf"),
    ],
    ids=str,
)
def test_values_out_of_bounds_are_named(given, message):
    assert refusal(Bounded, **given) == [message]


def test_a_class_checks_the_options_of_all_its_bases_and_reports_every_problem():
    assert refusal(Both, last=10, on=False, count=0, group=1, share=0.5, dropout=0.5) == [
        "--group must be at least 2, got 1: a group of one has no spread",
        "--count must be at least 1, got 0",
        "--last must be at most 9, got 10",
        "--last has no effect without --on",
        "--share has no effect with --dropout",
    ]


def test_a_wrong_type_is_reported_alone_and_further_checks_come_last():
    assert refusal(Both, last="10", count=0) == ["--last must be an integer, got '10'"]
    made = Both()
    assert problems_of(made, lambda config: [f"more of {config.last}"]) == ["more of 0"]


def test_options_are_taken_from_any_object_that_has_them():
    flags = argparse.Namespace(seconds=1.0, share=None, dropout=0.0, group=8, other="not theirs")
    assert Bounded.of(flags) == Bounded(seconds=1.0, group=8)
    assert Bounded.of(Both(group=3), seconds=9.0) == Bounded(group=3, seconds=9.0)
    with pytest.raises(TypeError, match="colour"):
        Bounded.of(colour="red")
