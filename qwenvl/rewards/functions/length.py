"""Rewards that look at how long a completion is, and how much of it is repetition."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from qwenvl.rewards.function import RewardFunction, call_plain
from qwenvl.rewards.functions.text import CJK
from qwenvl.rewards.options import FunctionSettings

READ_LIMIT = 50_000  # characters of a completion in which repetitions are looked for
_CJK = re.compile(f"[{CJK}]")


class LengthOfCorrectReward:
    """What the two rewards share that look at the length and at whether the completion is correct.

    Args:
        correctness: the function that ``correctness_func`` names. A completion is correct where it gives 1.
    """

    def __init__(self, correctness: RewardFunction) -> None:
        self._correctness = correctness

    def __call__(
        self, completions: list[str], completion_ids: list[Sequence[int]], **columns: Any
    ) -> list[float | None]:
        values = call_plain(self._correctness, completions, {**columns, "completion_ids": completion_ids})
        return [
            None if value is None else self._score(value >= 1, len(ids))
            for value, ids in zip(values, completion_ids, strict=True)
        ]

    def _score(self, correct: bool, tokens: int) -> float:
        raise NotImplementedError


class CosineReward(LengthOfCorrectReward):
    """Correctness scaled by length along a half cosine: short correct and long wrong completions score most.

    f(t) = a - (a - b)(1 - cos(pi t / T)) / 2 for t completion tokens, t at most T = ``cosine_max_len``: from a at
    length 0 to b at T. a is ``cosine_min_len_value_correct`` (1.0) or ``cosine_min_len_value_wrong`` (-0.5), b is
    ``cosine_max_len_value_correct`` (0.5) or ``cosine_max_len_value_wrong`` (0.0). A completion is correct where the
    function ``correctness_func`` gives 1. Where that gives None, so does this. arXiv:2502.03373, section 4.
    """

    def __init__(
        self,
        correctness: RewardFunction,
        cosine_max_len: int,
        cosine_min_len_value_correct: float = FunctionSettings.cosine_min_len_value_correct,
        cosine_max_len_value_correct: float = FunctionSettings.cosine_max_len_value_correct,
        cosine_min_len_value_wrong: float = FunctionSettings.cosine_min_len_value_wrong,
        cosine_max_len_value_wrong: float = FunctionSettings.cosine_max_len_value_wrong,
    ) -> None:
        super().__init__(correctness)
        self._longest = cosine_max_len
        self._correct = (cosine_min_len_value_correct, cosine_max_len_value_correct)
        self._wrong = (cosine_min_len_value_wrong, cosine_max_len_value_wrong)

    def _score(self, correct: bool, tokens: int) -> float:
        at_zero, at_longest = self._correct if correct else self._wrong
        progress = min(tokens, self._longest) / self._longest
        return at_zero - (at_zero - at_longest) * (1 - math.cos(math.pi * progress)) / 2


class RepetitionReward:
    """A penalty for saying the same again: (1 - different n-grams / n-grams) * ``repetition_max_penalty``.

    An n-gram is ``repetition_n_grams`` (3) lower-cased words in a row, or characters where most of the text is Chinese
    or Japanese. Fewer words than n score 0. The first 50,000 characters count. arXiv:2502.03373, appendix.
    """

    def __init__(
        self,
        repetition_n_grams: int = FunctionSettings.repetition_n_grams,
        repetition_max_penalty: float = FunctionSettings.repetition_max_penalty,
    ) -> None:
        self._n, self._penalty = repetition_n_grams, repetition_max_penalty

    def __call__(self, completions: list[str], **columns: Any) -> list[float]:
        return [self._score(text) for text in completions]

    def _score(self, text: str) -> float:
        words = _words(text[:READ_LIMIT])
        total = len(words) - self._n + 1
        if total < 1:
            return 0.0
        repeated = total - len(set(zip(*(words[start:] for start in range(self._n)), strict=False)))
        return repeated / total * self._penalty if repeated else 0.0


class SoftOverlongReward:
    """A growing penalty near the length limit: 0 up to max - cache tokens, then linearly down to -1 at max.

    max is ``soft_overlong_max_len`` (``generation_max_length``), cache is ``soft_overlong_cache`` (a fifth of it).
    DAPO, arXiv:2503.14476, equation 13.
    """

    def __init__(self, soft_overlong_max_len: int, soft_overlong_cache: int) -> None:
        if not 0 < soft_overlong_cache <= soft_overlong_max_len:
            raise ValueError(
                f"soft_overlong_cache must be from 1 to soft_overlong_max_len ({soft_overlong_max_len}) tokens, "
                f"got {soft_overlong_cache}"
            )
        self._free, self._cache = soft_overlong_max_len - soft_overlong_cache, soft_overlong_cache

    def __call__(self, completions: list[str], completion_ids: list[Sequence[int]], **columns: Any) -> list[float]:
        return [max(-1.0, min(0.0, (self._free - len(ids)) / self._cache)) for ids in completion_ids]


class LengthWindowReward(LengthOfCorrectReward):
    """``length_window_bonus`` for correct completions of ``length_window_min`` to ``length_window_max`` tokens, else 0.

    It rewards thinking long enough and not too long. A completion is correct where the function ``correctness_func``
    gives 1. Where that gives None, so does this. Video-R1, arXiv:2503.21776: 0.2 for 320 to 512 tokens.
    """

    def __init__(
        self,
        correctness: RewardFunction,
        length_window_min: int = FunctionSettings.length_window_min,
        length_window_max: int = FunctionSettings.length_window_max,
        length_window_bonus: float = FunctionSettings.length_window_bonus,
    ) -> None:
        if length_window_min > length_window_max:
            raise ValueError(f"length_window_min {length_window_min} is above length_window_max {length_window_max}")
        super().__init__(correctness)
        self._bonus = length_window_bonus
        self._window = range(length_window_min, length_window_max + 1)

    def _score(self, correct: bool, tokens: int) -> float:
        return self._bonus * (correct and tokens in self._window)


def _words(text: str) -> list[str]:
    words = text.lower().split()
    characters = "".join(words)
    return list(characters) if 2 * len(_CJK.findall(characters)) > len(characters) else words
