"""An estimate as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from qwenvl.plan.estimate import PARTS, SAMPLING, Estimate
from qwenvl.plan.remedies import Remedy


def amount(size: float) -> str:
    """Bytes for people.

    Example:
        >>> amount(3.2e9), amount(4.5e6)
        ('3.20 GB', '4.5 MB')
    """
    return f"{size / 1e9:.2f} GB" if abs(size) >= 1e8 else f"{size / 1e6:.1f} MB"


def memory_lines(made: Estimate) -> Iterator[str]:
    """Parts in rows: while completions are sampled, while the policy is trained, and at the fullest moment.

    Where no completions are sampled, the vision tower's run has the place of the first.
    """
    before = "sampling" if any(phase.name == "prefill" for phase in made.phases) else "vision"
    sampled = max((p for p in made.phases if p.name in SAMPLING), key=lambda phase: phase.total)
    trained = max((p for p in made.phases if p.name not in SAMPLING), key=lambda phase: phase.total)
    yield f"{'':18}{before:>12}{'training':>12}"
    for part in PARTS:
        if sampled.parts[part] or trained.parts[part]:
            yield f"{part:18}{amount(sampled.parts[part]):>12}{amount(trained.parts[part]):>12}"
    yield f"{'in all':18}{amount(sampled.total):>12}{amount(trained.total):>12}   fullest: {made.fullest.name}"


def remedy_lines(found: Sequence[Remedy], peak: int, room: float) -> Iterator[str]:
    """Each remedy by itself: what it saves, whether it suffices, what it costs."""
    width = max((len(each.flags) for each in found), default=0)
    for each in found:
        after = each.case.estimate().peak
        enough = "then it fits; " if after <= room < peak else ""
        yield f"{each.flags:{width}}  saves {amount(peak - after):>8}; {enough}costs {each.costs}"
