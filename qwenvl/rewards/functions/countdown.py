"""The Countdown game: reach a target from given numbers. What the model wrote is read, never run."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from qwenvl.rewards.functions.text import answer_of

_CHARACTERS = frozenset("0123456789+-*/()= \t\n.")
_LONGEST, _MOST_NODES, _LARGEST = 200, 64, 10**6
_OPERATIONS = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
}


def countdown(completions: list[str], nums: list[list[int]], target: list[float], **columns: Any) -> list[float]:
    """1 if the answer's expression uses each of the record's ``nums`` once and equals ``target`` within 1e-5, else 0.

    The expression is what stands left of any ``=``. It has + - * / and parentheses over whole numbers, no ``**`` and no
    ``//``, and is computed in exact fractions. Right of ``=`` only arithmetic may stand. An answer has at most 200
    characters.
    """
    return [
        float(solves(answer_of(text) or "", numbers, goal))
        for text, numbers, goal in zip(completions, nums, target, strict=True)
    ]


def solves(answer: str, numbers: list[int], target: float) -> bool:
    """Whether an expression uses exactly these numbers and reaches the target.

    Example:
        >>> solves("(7 - 3) * 6 = 24", [3, 6, 7], 24), solves("9**9**9**9", [9, 9, 9, 9], 1)
        (True, False)
    """
    if len(answer) > _LONGEST or not _CHARACTERS.issuperset(answer):
        return False
    try:
        tree = ast.parse(answer.split("=")[0].strip(), mode="eval").body
        if sum(1 for _ in ast.walk(tree)) > _MOST_NODES:
            return False
        used: list[int] = []
        value = _evaluate(tree, used)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return False
    return sorted(used) == sorted(numbers) and abs(value - Fraction(target)) <= Fraction(1, 100_000)


def check_countdown(solution: str, fields: Mapping[str, Any]) -> str | None:
    """Why a record is no Countdown game: ``nums`` or ``target`` is missing or of another kind."""
    nums, target = fields.get("nums"), fields.get("target")
    if not isinstance(nums, list) or not nums or not all(type(n) is int and 0 <= n <= _LARGEST for n in nums):
        return f"the field 'nums' must be a list of whole numbers from 0 to {_LARGEST}, got {nums!r}"
    if isinstance(target, bool) or not isinstance(target, int | float) or not abs(target) <= _LARGEST:
        return f"the field 'target' must be a number up to {_LARGEST}, got {target!r}"
    return None


def _evaluate(node: ast.AST, used: list[int]) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) is int and node.value <= _LARGEST:
        used.append(node.value)
        return Fraction(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_evaluate(node.operand, used)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        return _OPERATIONS[type(node.op)](_evaluate(node.left, used), _evaluate(node.right, used))
    raise ValueError("only whole numbers, + - * / and parentheses are read")
