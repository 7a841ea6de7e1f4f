"""pass@k, the chance of equal rewards, and means with 95 % intervals, from plain numbers."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from qwenvl.grpo.diagnostics import Interval, clustered_interval
from qwenvl.health.rules import SAME_REWARD

Z_975 = 1.959964  # the 97.5 % quantile of the normal distribution


def pass_at_k(samples: int, passed: int, k: int) -> float:
    """The chance that at least one of k completions passes, unbiased, from ``passed`` of ``samples`` that did.

    1 - C(samples - passed, k) / C(samples, k) (arXiv:2107.03374, equation 1).

    Raises:
        ValueError: k is above ``samples``.

    Example:
        >>> pass_at_k(4, 1, 2)
        0.5
    """
    if not 1 <= k <= samples:
        raise ValueError(f"pass@{k} of {samples} samples")
    return 1 - math.comb(samples - passed, k) / math.comb(samples, k)


def sample_counts(most: int) -> list[int]:
    """The k of pass@k: 1, 2, 4, ... up to 128, and ``most``. Empty for 0."""
    return [k for k in (1, 2, 4, 8, 16, 32, 64, 128) if k < most] + [most] * (most > 0)


def equal_chance(rewards: Sequence[float | None], k: int) -> float:
    """The chance that k of a prompt's completions all have equal rewards, by all choices of k among those at hand.

    Such a group has no policy gradient. A completion without a reward (None) does not count in its group.

    Raises:
        ValueError: k is above the number of completions.

    Example:
        >>> equal_chance([1.0, 1.0, 1.0, 0.0], 2)  # 3 of the 6 pairs
        0.5
    """
    if not 1 <= k <= len(rewards):
        raise ValueError(f"groups of {k} out of {len(rewards)} completions")
    known = sorted(reward for reward in rewards if reward is not None)
    missing = len(rewards) - len(known)
    alike: list[list[float]] = []  # the rewards of each value
    for reward in known:
        if alike and reward - alike[-1][0] <= SAME_REWARD:
            alike[-1].append(reward)
        else:
            alike.append([reward])
    without_any = math.comb(missing, k)
    equal = without_any + sum(math.comb(len(own) + missing, k) - without_any for own in alike)
    return equal / math.comb(len(rewards), k)


def share_interval(values: Sequence[float], clusters: Sequence[Hashable] | None = None) -> Interval:
    """``clustered_interval`` of values from 0 to 1, with Wilson's (1927) ends where all are 0 or all are 1.

    The bootstrap's interval would be empty there.

    Example:
        >>> round(share_interval([0.0] * 20).high, 3)
        0.161
    """
    interval = clustered_interval(values, clusters)
    if not interval.n or interval.mean not in (0.0, 1.0):
        return interval
    z = Z_975**2 / interval.n
    if interval.mean == 0:
        return interval._replace(low=0.0, high=z / (1 + z))
    return interval._replace(low=(1 + z / 2) / (1 + z) - z / 2 / (1 + z), high=1.0)


def as_json(value: Any) -> Any:
    """JSON values. An ``Interval`` becomes an object of its mean, its ends and ``n``, and NaN becomes None."""
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {str(name): as_json(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
