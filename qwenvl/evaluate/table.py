"""A probe as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from qwenvl.evaluate.facts import Facts
from qwenvl.evaluate.scores import Interval
from qwenvl.evaluate.verdict import Finding

SHOWN = 3  # records that were left out


def table(facts: Facts, findings: Sequence[Finding], command: str) -> str:
    """The numbers, what they say, and what to type next."""
    asked = facts.question
    rows = list(_rows(facts))
    width = max(len(name) for name, _ in rows) + 2
    lines = [
        f"{asked.model} on {asked.data}: {facts.prompts:,} prompts, {asked.samples} completions each, at temperature "
        f"{asked.temperature:g}",
        f"A completion passes where {asked.pass_by} is at least {asked.pass_at:g}. In brackets: the 95 % interval.",
        "",
        *(f"  {name:<{width}}{value}" for name, value in rows),
    ]
    if facts.left_out:
        lines += ["", f"left out: {len(facts.left_out):,} records", *(f"  {each}" for each in facts.left_out[:SHOWN])]
        if len(facts.left_out) > SHOWN:
            lines.append(f"  ... and {len(facts.left_out) - SHOWN:,} more (--json lists all)")
    lines += ["", *(f"{finding.name}: {finding.words}." for finding in findings), "", "next:", f"  {command}"]
    return "\n".join(lines)


def _rows(facts: Facts) -> Iterator[tuple[str, str]]:
    asked = facts.question
    for k, interval in facts.pass_at_k.items():
        yield f"pass@{k}", _share(interval)
    yield f"groups of {asked.group_size} without spread", _share(facts.equal_groups)
    if asked.samples != asked.group_size:
        yield f"groups of {asked.samples} without spread", _share(facts.equal_groups_of_all)
    yield f"groups of {asked.group_size} of equal {asked.pass_by}", _share(facts.equal_answers)
    if facts.format is not None:
        yield "in the asked form", _share(facts.format)
    yield "truncated", _share(facts.truncated)
    for name, reward in facts.rewards.items():
        spread = "" if reward.n < 2 else f" +- {reward.half_width:.3f}"
        yield f"reward {name}", f"{reward.mean:.3f}{spread}"
    yield "different completions", f"{facts.unique:.1f} of {asked.samples}"
    if facts.entropy is not None:
        yield "entropy of a token", f"{facts.entropy:.3f} nats"
    yield "completion tokens", f"{facts.completion_tokens:,.0f}, the longest {facts.longest_completion:,}"
    yield "prompt tokens", f"{facts.prompt_tokens:,.0f}, the longest {facts.longest_prompt:,}"
    parts = ", ".join(f"{name} {value:.2f}" for name, value in facts.seconds.items() if name != "all")
    yield "seconds per prompt", f"{facts.seconds['all']:.2f} ({parts})"


def _share(interval: Interval) -> str:
    if interval.n == 0:
        return "not known: no prompt has as many values"
    return f"{interval.mean:.3f}  [{interval.low:.3f}, {interval.high:.3f}]"
