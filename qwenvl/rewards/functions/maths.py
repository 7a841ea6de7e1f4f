"""The reward for mathematical answers, checked by math-verify in a worker process."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from qwenvl.child import Child, ChildDied, ChildFailed, ChildTimeout
from qwenvl.files import check_installed
from qwenvl.rewards.function import Unfinished
from qwenvl.rewards.functions.text import answer_of, normalized, solution_of
from qwenvl.rewards.mathematics import verifying
from qwenvl.rewards.mathematics.comparing import LONGEST, compare_as_text, expression_to_verify
from qwenvl.rewards.mathematics.results import expression_in, result_of

CPU_SECONDS = 2.0  # of computing that a pair may take, whatever else the machine does
HANGING_SECONDS = 300.0  # after which a pair that neither computes nor ends is given up
MEMORY = 3 * 2**30
ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}  # of a child process


class MathReward:
    """1 if the answer and the solution are the same mathematically, else 0.

    The answer block of the completion, the first behind its thinking, is compared with the answer block of the
    solution, or with all of it where it has no block: of a worked solution with its last box, or what is behind ####,
    as in GSM8K. Of an answer without a box what the last "the answer is" says counts, or the end of "the value of x is
    10". Markdown, an equals sign in front and a dot at the end do not matter.

    Texts that are equal once normalized are equal, but mathematics whose letters differ in case alone is not. Words,
    single letters and what holds a colon compare as text ("A", "yes", "12:30"), and so do numbers with a base (17_8),
    derivatives, dots, remainders, numbers of statements ("(1)(4)"), and ranges and dates of solutions ("20-30").

    Other pairs are parsed as LaTeX and verified by math-verify, gold first: 1/2 is 0.5, and the square root of 8 is
    twice that of 2. Plain writing such as ``ln(2)``, ``x**2``, ``sqrt(x + 1)``, ``3 x 10^8`` and ``1/2 x`` (half of x)
    and signs that Unicode has (x², ½, √2, π, ≤, 90°) are read as their LaTeX. ``1/2x`` may be half of x or 1/(2x),
    ``sin x/2`` half of sin(x) or sin(x/2), and ``x/2y`` is x/(2y). A lone i is the imaginary unit.

    "2 or 3" is "3, 2", and "x = 2, y = 3" is "(2, 3)" alone. "x = 3" is 3, "m + n = 11" is 11, and "4x = 12" is no
    value. Units behind the values must be the same, and are not converted. One side may lack its unit, or its sign %, °
    or $: "72 clips" is 72. "5m" alone may be a product, which 5 is not.

    An answer longer than 500 characters scores 0. A pair that takes more than 2 s of computing, or 3 GiB of memory,
    gets no value: it is named in the log and counted as ``reward/math_accuracy/skipped``.
    """

    def __init__(self) -> None:
        check_installed("math_verify", "rewards")
        self._child: Child | None = None
        self._lock = threading.Lock()  # records may be checked by several threads

    def __call__(self, completions: list[str], solution: list[str], **columns: Any) -> list[float | Unfinished]:
        verdicts = [
            compare_as_text(result_of(solution_of(truth)), answer_of(text))
            for text, truth in zip(completions, solution, strict=True)
        ]
        # Equal completions are verified once: one that takes all its time would take it again for each of a group.
        pairs = dict.fromkeys(each for each in verdicts if isinstance(each, tuple))
        verified = {pair: self._verify(*pair) for pair in pairs}
        return [verified[each] if isinstance(each, tuple) else float(each) for each in verdicts]

    def check(self, solution: str, fields: Mapping[str, Any]) -> str | None:
        """The reason why a record cannot be scored: its solution is empty or cannot be parsed. None: it can."""
        gold = expression_in(result_of(solution_of(solution)))
        if not normalized(gold):
            return "the solution is empty"
        if len(gold) > LONGEST:
            return f"the solution has {len(gold)} characters; at most {LONGEST} can be verified"
        pair = expression_to_verify(gold)
        if pair is None:
            return None  # it compares as text or as a number
        value = self._verify(*pair)
        if isinstance(value, Unfinished):
            return f"{value}: choose a simpler solution than {gold!r}"
        if value:
            return None
        return f"the solution cannot be parsed as mathematics: {gold!r}"

    def close(self) -> None:
        """End the child process."""
        if self._child is not None:
            self._child.kill()
        self._child = None

    def _verify(self, gold: str, answer: str) -> float | Unfinished:
        """``equivalent`` in the child process, which is replaced when it has died.

        An expression that math-verify fails on is not equal.
        """
        with self._lock:
            if self._child is None or not self._child.alive:
                self._child = Child(f"{verifying.__name__}:serve", memory_bytes=MEMORY, environment=ENVIRONMENT)
            try:
                return float(self._child.ask((gold, answer), HANGING_SECONDS, CPU_SECONDS))
            except ChildFailed as error:
                return Unfinished("a pair took more than 3 GiB") if "MemoryError" in str(error) else 0.0
            except (ChildTimeout, ChildDied) as error:
                return Unfinished(f"a pair could not be verified: {error}")
            except BaseException:  # interrupted: the child's answer would be taken for that of the next pair
                self.close()
                raise
