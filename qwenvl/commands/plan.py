"""``qwenvl plan``: the memory of a step, whether it fits, and the flags that lower it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from qwenvl.config.command_line import parsed, split_file
from qwenvl.config.flags import USUAL, FlagParser, wants_help
from qwenvl.config.settings import FLAG_GROUPS, TrainingSettings
from qwenvl.console import ends_at_ctrl_c, say
from qwenvl.option import Options, option
from qwenvl.plan.memory import RESERVED, Phase, amount, estimate, fullest, memory_lines, remedies, reserved
from qwenvl.plan.sizes import Engine, Job, ModelWeights, Shapes

if TYPE_CHECKING:
    from qwenvl.data.prompt_length import PromptLength

COMMAND = "qwenvl plan"
USAGE = (
    "qwenvl plan --model MODEL --dataset_use DATA [--gpus 1 --gpu_memory 24] [--flag of training value ...]\n"
    "       qwenvl plan run.yaml [--gpu_memory 24]"
)
PURPOSE = (
    "Say before a run what memory a step takes, whether it fits, and which flags change that. It reads the "
    "model's config.json and processor, and the headers of media. It needs neither weights nor a GPU."
)
SHARE = 0.9
"""The share of a GPU's memory that PyTorch may reserve. The driver, CUDA's context and libraries take the remainder."""


@dataclass
class PlanOptions(Options):
    """The machine of the run, and the output."""

    gpus: int = option(1, "GPUs that the run is split among, at least 1, one process for each.", least=1)
    gpu_memory: float = option(24.0, "Memory of one GPU in GB, above 0.", above=0)
    engine: Literal["ddp", "zero2", "zero3", "fsdp"] | None = option(
        None,
        "What splits the model among several GPUs, in place of --deepspeed and --fsdp.",
        unset="ddp with several GPUs",
    )

    def problems(self) -> Iterator[str]:
        if self.gpus == 1 and self.engine in ("ddp", "fsdp"):
            yield f"--engine {self.engine} has no effect with --gpus 1"


class Plan(NamedTuple):
    """The memory of a run's steps."""

    lengths: Sequence[PromptLength]  # of the prompts, the shortest first
    left_out: int  # records whose prompts are too long
    records: int  # of the data
    case: tuple[Shapes, ModelWeights, Job]  # a step with the longest prompt
    phases: list[Phase]  # the memory of that step
    room: float  # bytes that PyTorch may reserve for it

    def length(self, share: float) -> PromptLength:
        """The quantile of this share, 1.0 for the largest prompt."""
        return self.lengths[min(len(self.lengths) - 1, int(share * len(self.lengths)))]

    @property
    def reserved(self) -> int:
        """Bytes that PyTorch reserves at the fullest moment, more than its tensors take."""
        return reserved(fullest(self.phases).total)

    @property
    def fits(self) -> bool:
        """Whether a step fits as it is."""
        return self.reserved <= self.room


def main(argv: Sequence[str] | None = None) -> int:
    """Print the plan. The status is 0 where the run fits, 3 where not, 2 for a bad command, 1 for bad data."""
    argv = list(sys.argv[1:] if argv is None else argv)
    own = {"gpus": "GPUs of the run", "gpu_memory": "memory of one GPU in GB", "engine": "ddp, zero2, zero3 or fsdp"}
    usual = {name: text for name, text in USUAL.items() if name != "dry_run"}
    if wants_help(argv, USAGE, PURPOSE, (PlanOptions, *FLAG_GROUPS), own | usual):
        return 0
    with ends_at_ctrl_c(COMMAND):
        try:
            settings, options = request_of(argv)
        except ValueError as error:
            print(f"usage: {USAGE}\nerror: {error}", file=sys.stderr)
            return 2
        say(f"{COMMAND}: loading PyTorch and transformers")  # which takes seconds
        from qwenvl.data.errors import told_to_the_user

        with redirect_stdout(sys.stderr), told_to_the_user(COMMAND, (ValueError, OSError, ImportError)):
            plan = plan_of(settings, options)
    print("\n".join(lines(plan, options)))
    return 0 if plan.fits else 3


def request_of(argv: Sequence[str]) -> tuple[Any, PlanOptions]:
    """The settings of the run, which need not fit this machine, and the options of the plan.

    Raises:
        ValueError: an unknown, unfit or meaningless flag, or no model or data.
    """
    words = []
    for word in argv:
        name, equals, value = word.partition("=")
        # ``--model`` is short for the flag of training.
        words.append(f"--model_name_or_path{equals}{value}" if name == "--model" else word)
    parser = FlagParser(raises=True, add_help=False)
    parser.add_options(PlanOptions)
    own, rest = parser.parse_known_args(words)
    options = PlanOptions(**vars(own))
    settings = TrainingSettings(**parsed(*split_file(rest), TrainingSettings, more=vars(own)))
    if options.engine is not None:  # in place of those of a settings file
        settings.deepspeed = None
        settings.fsdp = None
    for name, flag in (("model_name_or_path", "--model"), ("dataset_use", "--dataset_use")):
        if getattr(settings, name) is None:
            raise ValueError(f"{flag} is missing")
    for name in ("deepspeed", "fsdp"):
        if str(getattr(settings, name)).lower() not in ("none", "false"):
            raise ValueError(f"--{name}: a plan takes --engine zero2, zero3 or fsdp with --gpus in its place")
    if not settings.ds3_gather_for_generation:
        raise ValueError("--ds3_gather_for_generation False: leave it out; without gathering, sampling takes less")
    if settings.bf16 is None:
        settings.bf16 = not settings.use_cpu and not settings.fp16
    return settings, options


def plan_of(settings: Any, options: PlanOptions) -> Plan:
    """The plan of a run with these settings.

    Raises:
        ValueError, OSError: what is wrong with the model, the data or the flags.
    """
    from qwenvl.train.planning.case import case_of, lengths_of, policy_without_weights

    policy = policy_without_weights(settings)
    lengths, left_out, records = lengths_of(settings)
    engine: Engine = options.engine or ("ddp" if options.gpus > 1 else "none")
    case = case_of(settings, policy, lengths[-1], engine=engine, processes=options.gpus)
    return Plan(
        lengths=lengths,
        left_out=left_out,
        records=records,
        case=case,
        phases=estimate(*case),
        room=SHARE * options.gpu_memory * 1e9,
    )


def lines(plan: Plan, options: PlanOptions) -> Iterator[str]:
    """The plan as text."""
    job = plan.case[-1]
    median = plan.length(0.5)
    most = plan.length(0.95)
    longest = plan.length(1.0)
    yield (
        f"prompts of {len(plan.lengths):,} records: {median.tokens:,} tokens (median), {most.tokens:,} (95 %), "
        f"{longest.tokens:,} (largest, {longest.vision:,} of them vision)"
    )
    if plan.left_out:
        yield f"  {plan.left_out} more are above --max_prompt_length and are left out"
    measured = len(plan.lengths) + plan.left_out
    if measured < plan.records:
        yield (
            f"  a random sample: {plan.records - measured:,} further records were not measured. --max_prompt_length "
            "bounds their prompts"
        )
    yield f"memory of a step with the largest prompts, {job.group} completions of {job.length} tokens each:"
    yield from (f"  {line}" for line in memory_lines(plan.phases))
    verdict = "fits" if plan.fits else "does not fit"
    more = f"{RESERVED - 1:.0%} more than tensors take"
    yield (
        f"It {verdict}: PyTorch reserves {amount(plan.reserved)}, {more}, of {amount(plan.room)}, nine tenths of "
        f"{options.gpu_memory:g} GB"
    )
    found = list(remedies(*plan.case))
    if found:
        yield "What lowers what is reserved, one after the other, the cheapest first:"
    for flags, costs, lower in found:
        fits = ", which fits" if reserved(lower) <= plan.room else ""
        yield f"  {flags} gives {amount(reserved(lower))}{fits}; it costs {costs}"
    further = ["a smaller --grpo_sample_size"]
    if not job.rank:
        further.append("--lora_enable")
    if options.gpus == 1:
        further.append("--gpus 8 --engine zero3")
    yield f"Plan again with {' or '.join(further)} to see what that saves"


if __name__ == "__main__":
    raise SystemExit(main())
