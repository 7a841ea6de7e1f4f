"""Rewards for form and length of a completion. Their value does not tell a right answer from a wrong one."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from qwenvl.characters import CJK
from qwenvl.rewards.function import Argument, RewardFunction, Unfinished
from qwenvl.rewards.functions.actions import accuracy, check_actions
from qwenvl.rewards.functions.text import TAGS, first_block
from qwenvl.rewards.options import LONGEST, ResponseFormat
from qwenvl.rewards.values import inner_values
from qwenvl.types import Turn

ACCURACY = RewardFunction("accuracy", accuracy, check_actions, value_range=(0, 1))
READ_LIMIT = 50_000  # characters of a completion in which repetitions are looked for
_ANY_TAG = re.compile("|".join(TAGS))
_CJK = re.compile(f"[{CJK}]")

Form = Annotated[ResponseFormat, Argument("The form that is expected.", default_of="response_format")]
Correctness = Annotated[RewardFunction, Argument("Reward whose value 1 means that a completion is correct.")]
Longest = Annotated[int, Argument("Length T.", "tokens", least=1, default_of="generation_max_length")]


def format_reward(
    completions: list[str],
    opened_think: list[bool] | None = None,
    *,
    response_format: Form = "think_answer",
    **columns: Any,
) -> list[float]:
    """Parts for a think block, an answer block, and their order.

    ``think_answer``: 0.3 for a ``<think>...</think>`` pair, 0.3 for an ``<answer>...</answer>`` pair, 0.4 if the first
    think block ends before the first answer block begins. ``answer_only``: 1 for exactly one answer block and no think
    tag, else 0. Text outside of the blocks does not matter. Where the prompt ends inside a think block, as that of a
    thinking checkpoint does, the completion is judged from the prompt's ``<think>`` on, and ``answer_only`` is an
    error.
    """
    texts = _from_their_think_tag(completions, opened_think, response_format)
    if response_format == "answer_only":
        answer_tags = [*TAGS[2:]]
        return [float(_ANY_TAG.findall(text) == answer_tags) for text in texts]
    blocks = [(first_block(text, "think"), first_block(text, "answer")) for text in texts]
    whole = [think is not None and answer is not None and think.end <= answer.start for think, answer in blocks]
    parts = [0.3 * (think is not None) + 0.3 * (answer is not None) for think, answer in blocks]
    return [1.0 if in_order else part for in_order, part in zip(whole, parts, strict=True)]


def strict_format(
    completions: list[str],
    opened_think: list[bool] | None = None,
    turns: list[Sequence[Turn]] | None = None,
    *,
    response_format: Form = "think_answer",
    **columns: Any,
) -> list[float]:
    """1 if the whole text is one think block and one answer block and nothing else, else 0.

    ``think_answer``: outer white space aside, exactly one think block that is not blank, white space, one answer block
    that is not blank, and none of the four tags besides. ``answer_only``: the same without the think block. A think
    block that the prompt opens is treated as ``format`` treats it. With tools it is the last turn that counts.
    """
    expected = [*(TAGS if response_format == "think_answer" else TAGS[2:])]
    blank = [True, False] * (len(expected) // 2) + [True]  # before the first tag, in its block, between blocks, ...
    completions = completions if turns is None else [each[-1].text for each in turns]
    texts = _from_their_think_tag(completions, opened_think, response_format)
    return [
        float(_ANY_TAG.findall(text) == expected and [not part.strip() for part in _ANY_TAG.split(text)] == blank)
        for text in texts
    ]


def cosine(
    completions: list[str],
    completion_ids: list[Sequence[int]],
    *,
    correctness_func: Correctness = ACCURACY,
    max_len: Longest = LONGEST,
    min_len_value_correct: Annotated[float, Argument("Value of a correct completion of length 0.")] = 1.0,
    max_len_value_correct: Annotated[float, Argument("Value of a correct completion of length T.")] = 0.5,
    min_len_value_wrong: Annotated[float, Argument("Value of a wrong completion of length 0.")] = -0.5,
    max_len_value_wrong: Annotated[float, Argument("Value of a wrong completion of length T.")] = 0.0,
    **columns: Any,
) -> list[float | None]:
    """Correctness scaled by length along a half cosine: short correct and long wrong completions score most.

    f(t) = a - (a - b)(1 - cos(pi t / T)) / 2 for t completion tokens, t at most T = ``max_len``: from a at length 0 to
    b at T. a is ``min_len_value_correct`` or ``min_len_value_wrong``, b is ``max_len_value_correct`` or
    ``max_len_value_wrong``. A completion is correct where the function ``correctness_func`` gives 1. Where that gives
    None, so does this. arXiv:2502.03373, section 4.
    """

    def score(correct: bool, tokens: int) -> float:
        at_zero = min_len_value_correct if correct else min_len_value_wrong
        at_longest = max_len_value_correct if correct else max_len_value_wrong
        progress = min(tokens, max_len) / max_len
        return at_zero - (at_zero - at_longest) * (1 - math.cos(math.pi * progress)) / 2

    columns["completion_ids"] = completion_ids
    return by_correctness(score, [*map(len, completion_ids)], correctness_func, completions, columns)


def repetition(
    completions: list[str],
    *,
    n_grams: Annotated[int, Argument("Words in a row that are compared.", "words", least=1)] = 3,
    max_penalty: Annotated[float, Argument("Value of a text that says one thing only.", most=0)] = -1.0,
    **columns: Any,
) -> list[float]:
    """A penalty for saying the same again: (1 - different n-grams / n-grams) * ``max_penalty``.

    An n-gram is ``n_grams`` lower-cased words in a row, or characters where most of the text is Chinese or Japanese.
    Fewer words than n score 0. The first 50,000 characters count. arXiv:2502.03373, appendix.
    """

    def score(text: str) -> float:
        words = _words(text[:READ_LIMIT])
        total = len(words) - n_grams + 1
        if total < 1:
            return 0.0
        different = {tuple(words[start : start + n_grams]) for start in range(total)}
        repeated = total - len(different)
        return repeated / total * max_penalty if repeated else 0.0

    return [score(text) for text in completions]


def soft_overlong(
    completions: list[str],
    completion_ids: list[Sequence[int]],
    *,
    max_len: Longest = LONGEST,
    cache: Annotated[
        int | None, Argument("Length of the fall, at most T. None: a fifth of T.", "tokens", least=1)
    ] = None,
    **columns: Any,
) -> list[float]:
    """A growing penalty near the length limit: 0 up to T - cache tokens, then linearly down to -1 at T.

    T is ``max_len``. DAPO, arXiv:2503.14476, equation 13.
    """
    if problem := overlong_problem(max_len, cache):
        raise ValueError(problem)
    fall = cache or max(1, max_len // 5)
    return [max(-1.0, min(0.0, (max_len - fall - len(ids)) / fall)) for ids in completion_ids]


def overlong_problem(max_len: int, cache: int | None) -> str | None:
    """Why these arguments of ``soft_overlong`` do not go together, or None."""
    if cache is not None and cache > max_len:
        return f"cache must be at most max_len ({max_len}), got {cache}"
    return None


def length_window(
    completions: list[str],
    completion_ids: list[Sequence[int]],
    *,
    correctness_func: Correctness = ACCURACY,
    min: Annotated[int, Argument("Shortest completion that gets the bonus.", "tokens")] = 320,
    max: Annotated[int, Argument("Longest completion that gets the bonus.", "tokens")] = 512,
    bonus: Annotated[float, Argument("The bonus.", above=0)] = 0.2,
    **columns: Any,
) -> list[float | None]:
    """``bonus`` for correct completions of ``min`` to ``max`` tokens, else 0.

    It rewards thinking long enough and not too long. A completion is correct where the function ``correctness_func``
    gives 1. Where that gives None, so does this. Video-R1, arXiv:2503.21776: 0.2 for 320 to 512 tokens.
    """
    if problem := window_problem(min, max):
        raise ValueError(problem)

    def score(correct: bool, tokens: int) -> float:
        return bonus * (correct and min <= tokens <= max)

    columns["completion_ids"] = completion_ids
    return by_correctness(score, [*map(len, completion_ids)], correctness_func, completions, columns)


def window_problem(min: int, max: int) -> str | None:
    """Why these arguments of ``length_window`` do not go together, or None."""
    return f"min must be at most max ({max}), got {min}" if min > max else None


def by_correctness(
    score: Callable[[bool, Any], float],
    each: Sequence[Any],
    correctness: RewardFunction,
    completions: list[str],
    columns: dict[str, Any],
) -> list[Any]:
    """The values of a reward that depends on whether a completion is correct.

    Args:
        score: from whether a completion is correct, and its own of ``each``, to its value.
        each: N values.
        correctness: gives 1 for a correct completion.

    Returns:
        N values. Where correctness has none, what it has in its place: None, or ``Unfinished``.

    Raises:
        RewardError, ValueError: see ``inner_values``.
    """
    values = inner_values(correctness, completions, columns)
    return [
        value if value is None or isinstance(value, Unfinished) else score(value >= 1, own)
        for value, own in zip(values, each, strict=True)
    ]


def _words(text: str) -> list[str]:
    words = text.lower().split()
    characters = "".join(words)
    return list(characters) if 2 * len(_CJK.findall(characters)) > len(characters) else words


def _from_their_think_tag(
    completions: list[str], opened_think: list[bool] | None, response_format: ResponseFormat
) -> list[str]:
    """The completions, each with the ``<think>`` that its prompt ends in.

    Raises:
        ValueError: a prompt opens a think block and the format asks for no thinking: every completion would score 0.
    """
    opened = opened_think or [False] * len(completions)
    if response_format == "answer_only" and any(opened):
        raise ValueError(
            "response_format answer_only asks for no thinking, but the prompt ends inside a think block: "
            "use --response_format think_answer, or --chat_template_kwargs '{\"enable_thinking\": false}' where the "
            "template reads it"
        )
    return [TAGS[0] + text if inside else text for text, inside in zip(completions, opened, strict=True)]
