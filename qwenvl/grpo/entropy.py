"""The weight of the entropy bonus that follows a target (Skywork-OR1, arXiv:2505.22312, section 4.1)."""

from __future__ import annotations

COEFFICIENT_STEP = 0.005
"""The change of the coefficient each time completions are sampled."""


def bonus_weight(coefficient: float, entropy: float, target: float) -> tuple[float, float]:
    """The weight of the bonus in a step, and the coefficient of the next one.

    The bonus has the coefficient as its weight where the entropy is at most the target, and the coefficient grows by a
    step. Above the target it has no weight, and the coefficient shrinks by a step, never below 0.

    Args:
        entropy, target: mean over the sampled tokens, in nats.

    Example:
        >>> bonus_weight(0.01, entropy=0.5, target=0.6), bonus_weight(0.002, entropy=0.7, target=0.6)
        ((0.01, 0.015), (0.0, 0.0))
    """
    if entropy <= target:
        return coefficient, coefficient + COEFFICIENT_STEP
    return 0.0, max(0.0, coefficient - COEFFICIENT_STEP)
