"""``qwenvl plan``: what memory and time a step takes, whether it fits, and which flag changes that."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any

from qwenvl.train.display.console import ends_at_ctrl_c, say
from qwenvl.train.planning.settings import USAGE, Asked, asked_of, help_of_plan

if TYPE_CHECKING:
    from qwenvl.train.planning.plan import Plan

COMMAND = "qwenvl plan"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the plan. The status is 0 where the run fits, 3 where not, 2 for a bad command, 1 for bad data."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if {"-h", "--help"} & set(argv):
        print(help_of_plan())
        return 0
    with ends_at_ctrl_c(COMMAND):
        say(f"{COMMAND}: loading PyTorch and transformers")  # which takes seconds
        from qwenvl.train.planning.plan import plan_of
        from qwenvl.train.run.command import told_of_settings

        try:
            asked = asked_of(argv)
        except ValueError as error:
            print(f"usage: {USAGE}\nerror: {error}", file=sys.stderr)
            return 2
        with redirect_stdout(sys.stderr), told_of_settings(COMMAND):
            plan = plan_of(asked)
    print(json.dumps(numbers(plan), indent=1) if asked.options.json else "\n".join(lines(plan, asked)))
    return 0 if plan.fits else 3


def lines(plan: Plan, asked: Asked) -> Iterator[str]:
    """The plan as text."""
    from qwenvl.plan.table import amount, memory_lines, remedy_lines

    case, lengths, options = plan.case, plan.lengths, asked.options
    job, peak = case.job, plan.made.peak
    median, most, longest = (lengths.at(share) for share in (0.5, 0.95, 1.0))
    yield f"prompts of {len(lengths.each):,} records: {median.tokens:,} tokens (median), {most.tokens:,} (95 %), " + (
        f"{longest.tokens:,} (largest, {longest.vision:,} of them vision)"
    )
    if lengths.rough:
        yield f"  roughly: {lengths.rough}"
    if lengths.left_out:
        yield f"  {lengths.left_out} more are above --max_prompt_length and are left out"
    of = f"{job.group} completions" if not job.taught else "1 target" if job.group == 1 else f"{job.group} targets"
    yield f"memory of a step with the largest prompts, {of} of {job.length} tokens each:"
    yield from (f"  {line}" for line in memory_lines(plan.made))
    verdict = "fits" if plan.fits else "does not fit"
    yield f"It {verdict}: {amount(peak)} of {amount(plan.room)}, nine tenths of {options.gpu_memory:g} GB"
    yield "What changes that, the cheapest first:"
    yield from (f"  {line}" for line in remedy_lines(plan.remedies, peak, plan.room))
    if not plan.fits:
        flags = " ".join(each.flags for each in plan.way)
        end = f"gives {amount(plan.after)}" + ("" if plan.after <= plan.room else ", which is still too much")
        yield f"Together, {flags} {end}" if plan.way else "No flag is known that changes it"
    yield f"seconds of a step with median prompts, computed, not measured ({plan.rates.source}):"
    yield "  " + ", ".join(f"{name} {seconds:.2g}" for name, seconds in plan.seconds.items())
    left_out = f"{'' if job.taught else 'rewards, '}decoding of clips and waiting"
    yield f"  in all {sum(plan.seconds.values()):.2g} without {left_out}"


def numbers(plan: Plan) -> dict[str, Any]:
    """The plan as JSON."""
    quantiles = {"median": 0.5, "p95": 0.95, "largest": 1.0}
    return {
        "prompt_tokens": {name: plan.lengths.at(share).tokens for name, share in quantiles.items()},
        "vision_tokens": {name: plan.lengths.at(share).vision for name, share in quantiles.items()},
        "memory": {phase.name: dict(phase.parts) for phase in plan.made.phases},
        "peak": plan.made.peak,
        "room": round(plan.room),
        "fits": plan.fits,
        "remedies": [
            {"flags": each.flags, "peak": each.case.estimate().peak, "costs": each.costs} for each in plan.remedies
        ],
        "seconds": plan.seconds,
        "rates": plan.rates.source,
    }


if __name__ == "__main__":
    raise SystemExit(main())
