"""``qwenvl plan``: the memory of a step, whether it fits, and the flags that lower it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from qwenvl.config.command_line import config_from, file_tokens, help_text, split_file
from qwenvl.config.flags import FlagParser
from qwenvl.option import Options, option, problems_of
from qwenvl.plan.memory import Estimate, amount, memory_lines
from qwenvl.plan.remedies import Case, cheapest_way, remedies, remedy_lines
from qwenvl.plan.sizes import Engine
from qwenvl.train.display.console import ends_at_ctrl_c, say

if TYPE_CHECKING:
    from qwenvl.config.grpo_config import GRPOConfig, PolicyConfig
    from qwenvl.train.planning.case import Lengths

COMMAND = "qwenvl plan"
USAGE = (
    "qwenvl plan --model MODEL --dataset_use DATA [--gpus 1 --gpu_memory 24] [--flag of training value ...]\n"
    "       qwenvl plan run.yaml [--gpu_memory 24]\n"
    "       qwenvl plan --warmup --model MODEL --dataset_use DATA [--flag of a warm-up value ...]"
)
PURPOSE = (
    "Say before a run what memory a step takes, whether it fits, and which flags change that. It reads the "
    "model's config.json and processor, and the headers of media. It needs neither weights nor a GPU."
)
OF_THE_MACHINE = ("optim", "bf16", "fp16", "use_cpu", "deepspeed", "fsdp", "ds3_gather_for_generation")
"""Flags whose checks need the training machine. The plan reads them itself."""


@dataclass
class PlanOptions(Options):
    """The machine of the run, and the output."""

    warmup: bool = option(False, "Plan a warm-up (qwenvl warmup) with its flags, in the place of training by rewards.")
    gpus: int = option(1, "GPUs that the run is split among, at least 1, one process for each.", least=1)
    gpu_memory: float = option(24.0, "Memory of one GPU in GB, above 0.", above=0)
    engine: Literal["none", "ddp", "zero2", "zero3", "fsdp"] | None = option(
        None,
        "What splits the model among several GPUs, in place of --deepspeed and --fsdp.",
        unset="ddp with several GPUs",
    )
    records: int = option(
        1000, "Most records whose prompts are measured, at least 1: a random sample, the same for a seed.", least=1
    )
    json: bool = option(False, "Print the numbers as JSON in place of the tables.")

    def problems(self):
        """Contradictions."""
        if self.gpus == 1 and self.engine not in (None, "none", "zero2", "zero3"):
            yield f"--engine {self.engine} has no effect with --gpus 1"
        if self.gpus > 1 and self.engine == "none":
            yield "--engine none has no effect with several GPUs: each trains with the others, by ddp at least"


@dataclass(frozen=True)
class PlanRequest:
    """A parsed command line."""

    config: GRPOConfig  # of the run, as if it were on a CPU, but for the precision
    options: PlanOptions
    optimizer: str | None  # by the Trainer's name, None for its default
    on_host: bool  # the run is on a CPU

    @property
    def engine(self) -> Engine:
        """What splits the model."""
        return self.options.engine or ("ddp" if self.options.gpus > 1 else "none")


@dataclass(frozen=True)
class Plan:
    """The memory of a run's steps."""

    lengths: Lengths  # of the prompts
    case: Case  # a step with the longest prompt
    made: Estimate  # the memory of that step
    room: float  # bytes that it may take

    @property
    def fits(self) -> bool:
        """Whether a step fits as it is."""
        return self.made.peak <= self.room


def main(argv: Sequence[str] | None = None) -> int:
    """Print the plan. The status is 0 where the run fits, 3 where not, 2 for a bad command, 1 for bad data."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if {"-h", "--help"} & set(argv):
        parser = FlagParser(usage=USAGE, add_help=False, description=PURPOSE)
        parser.add_options(PlanOptions, group=parser.add_argument_group("a plan"))
        print(parser.format_help() + "\n" + help_text("and any flag of training:", "").split("\n", 1)[1])
        return 0
    with ends_at_ctrl_c(COMMAND):
        say(f"{COMMAND}: loading PyTorch and transformers")  # which takes seconds
        from qwenvl.train.run.command import told_of_settings

        try:
            request = request_of(argv)
        except ValueError as error:
            print(f"usage: {USAGE}\nerror: {error}", file=sys.stderr)
            return 2
        with redirect_stdout(sys.stderr), told_of_settings(COMMAND):
            plan = plan_of(request)
    print(json.dumps(numbers(plan), indent=1) if request.options.json else "\n".join(lines(plan, request.options)))
    return 0 if plan.fits else 3


def request_of(argv: Sequence[str]) -> PlanRequest:
    """The request of a command line.

    Raises:
        ValueError: an unknown, unfit or meaningless flag, or no model or data.
    """
    from qwenvl.config.grpo_config import GRPOConfig
    from qwenvl.train.warmup.config import OF_TRAINING, WarmupConfig

    for word in argv:
        if word.split("=")[0] in ("--device", "--device_tflops", "--device_gbs"):
            raise ValueError(f"{word}: a plan computes memory alone; a run with --max_steps 5 measures time/step_s")
    argv = [
        "--model_name_or_path" + word[len("--model") :] if word.split("=")[0] == "--model" else word for word in argv
    ]
    parser = FlagParser(raises=True, add_help=False)
    parser.add_options(PlanOptions)
    own, rest = parser.parse_known_args(argv)
    options = PlanOptions(**vars(own))
    file, rest = split_file(rest)
    kind: type[PolicyConfig] = WarmupConfig if options.warmup else GRPOConfig
    machine: dict[str, str] = {}
    of_file = file_tokens(file, kind, ignored=OF_TRAINING if options.warmup else ())
    tokens = [*_without_machine(of_file, machine), *_without_machine(rest, machine)]
    for name in ("deepspeed", "fsdp"):
        if machine.get(name, "False") not in ("False", "false"):
            raise ValueError(f"--{name}: a plan takes --engine zero2, zero3 or fsdp with --gpus in its place")
    on_host = _true(machine.get("use_cpu"))
    config = config_from(None, [*tokens, "--use_cpu=True", "--output_dir=plan"], kind)  # nothing is written there
    for name, word in (("model_name_or_path", "--model"), ("dataset_use", "--dataset_use")):
        if getattr(config, name) is None:
            raise ValueError(f"{word} is missing")
    request = PlanRequest(config, options, machine.get("optim"), on_host)
    if options.warmup and "ds3_gather_for_generation" in machine:
        raise ValueError(kind.unknown("ds3_gather_for_generation"))
    config.ds3_gather_for_generation = _true(machine.get("ds3_gather_for_generation", "True"))
    if not config.ds3_gather_for_generation and request.engine not in ("zero3", "fsdp"):
        raise ValueError(
            "--ds3_gather_for_generation False has no effect without --engine zero3 or fsdp: give one, or leave it out"
        )
    if problems := [each for each in problems_of(config) if "--ds3_gather_for_generation" in each]:
        raise ValueError("\n".join(problems))
    half = machine.get("bf16", machine.get("fp16"))
    config.bf16 = not on_host if half is None else _true(half)
    return request


def _without_machine(tokens: Sequence[str], machine: dict[str, str]) -> list[str]:
    """The other tokens of a command line. Flags of the machine are added to ``machine``, bare ones with "True"."""
    words, others = [*tokens], []
    while words:
        flag, equals, value = (word := words.pop(0)).partition("=")
        if not flag.startswith("--") or flag[2:] not in OF_THE_MACHINE:
            others.append(word)
            continue
        if not equals:
            bare = not words or words[0].startswith("--")
            if bare and flag == "--optim":
                raise ValueError("argument --optim: expected one argument")
            value = "True" if bare else words.pop(0)
        machine[flag[2:]] = value
    return others


def _true(value: str | None) -> bool:
    return str(value).lower() in ("true", "1", "yes")


def plan_of(request: PlanRequest) -> Plan:
    """The plan of a request.

    Raises:
        ValueError, OSError: what is wrong with the model, the data or the flags.
    """
    from qwenvl.train.planning.case import SHARE, case_of, lengths_of_data, policy_without_weights

    args, options = request.config, request.options
    policy = policy_without_weights(args)
    lengths = lengths_of_data(args, options.records)
    case = case_of(
        args,
        policy,
        lengths.at(1.0),
        on_host=request.on_host,
        engine=request.engine,
        processes=options.gpus,
        optimizer=request.optimizer,
        targets=lengths.targets,
    )
    return Plan(lengths, case, case.estimate(), SHARE * options.gpu_memory * 1e9)


def lines(plan: Plan, options: PlanOptions) -> Iterator[str]:
    """The plan as text."""
    case, lengths = plan.case, plan.lengths
    job, peak = case.job, plan.made.peak
    median, most, longest = (lengths.at(share) for share in (0.5, 0.95, 1.0))
    yield f"prompts of {len(lengths.each):,} records: {median.tokens:,} tokens (median), {most.tokens:,} (95 %), " + (
        f"{longest.tokens:,} (largest, {longest.vision:,} of them vision)"
    )
    if lengths.left_out:
        yield f"  {lengths.left_out} more are above --max_prompt_length and are left out"
    of = f"{job.group} completions" if not job.warmup else "1 target" if job.group == 1 else f"{job.group} targets"
    yield f"memory of a step with the largest prompts, {of} of {job.length} tokens each:"
    yield from (f"  {line}" for line in memory_lines(plan.made))
    verdict = "fits" if plan.fits else "does not fit"
    yield f"It {verdict}: {amount(peak)} of {amount(plan.room)}, nine tenths of {options.gpu_memory:g} GB"
    yield "What changes that, the cheapest first:"
    yield from (f"  {line}" for line in remedy_lines(remedies(case), peak, plan.room))
    if not plan.fits:
        way, fitted = cheapest_way(case, plan.room)
        after = fitted.estimate().peak
        end = f"gives {amount(after)}" + ("" if after <= plan.room else ", which is still too much")
        yield f"Together, {' '.join(each.flags for each in way)} {end}" if way else "No flag is known that changes it"


def numbers(plan: Plan) -> dict[str, Any]:
    """The plan as JSON."""
    quantiles = {"median": plan.lengths.at(0.5), "p95": plan.lengths.at(0.95), "largest": plan.lengths.at(1.0)}
    found = remedies(plan.case)
    return {
        "prompt_tokens": {name: length.tokens for name, length in quantiles.items()},
        "vision_tokens": {name: length.vision for name, length in quantiles.items()},
        "memory": {phase.name: phase.parts for phase in plan.made.phases},
        "peak": plan.made.peak,
        "room": round(plan.room),
        "fits": plan.fits,
        "remedies": [{"flags": each.flags, "peak": each.case.estimate().peak, "costs": each.costs} for each in found],
    }


if __name__ == "__main__":
    raise SystemExit(main())
