"""How numbers are spread, in four of them."""

from __future__ import annotations

from collections.abc import Sequence


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """Return the least, the median, the 95th percentile and the most. Empty without values."""
    if not values:
        return {}
    ordered = sorted(values)
    at = lambda share: ordered[min(len(ordered) - 1, int(share * len(ordered)))]
    return {"min": ordered[0], "median": at(0.5), "p95": at(0.95), "max": ordered[-1]}
