"""The examples in the docstrings of rewards, and of what reads answers for them, are true."""

import doctest
import pkgutil
from importlib import import_module

import pytest

import qwenvl.rewards.functions
import qwenvl.rewards.mathematics

MODULES = [
    f"{package.__name__}.{module.name}"
    for package in (qwenvl.rewards.functions, qwenvl.rewards.mathematics)
    for module in pkgutil.iter_modules(package.__path__)
]


@pytest.mark.parametrize("name", [*MODULES, "qwenvl.timeline", "qwenvl.times"])
def test_examples_are_true(name):
    assert doctest.testmod(import_module(name)).failed == 0
