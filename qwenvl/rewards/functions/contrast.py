"""The arithmetic of ``temporal_contrast``, without the sampling."""

from __future__ import annotations

from collections.abc import Sequence


def temporal_contrast(
    ordered: Sequence[float | None], shuffled: Sequence[float | None], margin: float, bonus: float
) -> list[float | None]:
    """The bonus for each correct completion of a video prompt whose frames had to be in order, and 0 for the others.

    The prompt is answered a few more times with its frames in random order. The bonus is given where the ordered
    group's mean of ``correctness_func`` exceeds the shuffled group's by more than the margin. It is asked for by
    ``--temporal_contrast``, not by ``--reward_funcs``. After T-GRPO (arXiv:2503.21776), which compares by a factor.

    Args:
        ordered: N values of the correctness function, 1 being correct, None where it does not apply.
        shuffled: P means of the shuffled groups, None for prompts without video.

    Returns:
        N values, None for prompts without video and where the correctness function does not apply.

    Example:
        >>> temporal_contrast([1.0, 0.5, 1.0, 0.0], [0.25], margin=0.0, bonus=0.3)
        [0.3, 0.0, 0.3, 0.0]
    """
    size = len(ordered) // max(1, len(shuffled))
    values: list[float | None] = []
    for p, other in enumerate(shuffled):
        group = ordered[p * size : (p + 1) * size]
        known = [value for value in group if value is not None]
        if other is None or not known:
            values += [None] * size
            continue
        beats = sum(known) / len(known) - other > margin
        values += [None if value is None else bonus * (beats and value == 1) for value in group]
    return values
