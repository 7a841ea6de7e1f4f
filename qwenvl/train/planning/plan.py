"""The plan of a run: lengths of its prompts, memory and seconds of its steps, and what would lower them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import nn

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.data.dataset import load_dataset
from qwenvl.data.options import SampleOptions
from qwenvl.data.records.parse import ReadOptions
from qwenvl.model.loading import load_without_weights, unwrap
from qwenvl.plan.devices import Rates, rates_of
from qwenvl.plan.estimate import Estimate
from qwenvl.plan.remedies import Case, Remedy, cheapest_way, remedies
from qwenvl.plan.seconds import seconds_by_phase
from qwenvl.train.assemble import build_policy
from qwenvl.train.planning.case import case_of
from qwenvl.train.planning.lengths import Lengths, prompt_lengths, ruler_of, sampled
from qwenvl.train.planning.settings import Asked
from qwenvl.train.planning.taught import taught_of
from qwenvl.train.warmup.config import WarmupConfig
from qwenvl.train.warmup.rollouts import RolloutTargets
from qwenvl.train.warmup.targets import SolutionTargets
from qwenvl.train.warmup.trainer import narrowed, targets_of
from qwenvl.types import Record

SHARE = 0.9
"""Of a GPU's memory that a plan counts on. The rest is for the driver, and for gaps between what is allocated."""


@dataclass(frozen=True)
class Plan:
    """What is known of a run before it.

    Attributes:
        lengths: of the prompts.
        case: a step with the largest prompts.
        made: its memory.
        room: bytes that it may take.
        remedies: each by itself, the cheapest first.
        way: the cheapest ones that together make it fit, or all where it never does. Empty where it fits as it is.
        after: bytes with these.
        seconds: of a step with median prompts, by phase.
        rates: which they are computed from.
    """

    lengths: Lengths
    case: Case
    made: Estimate
    room: float
    remedies: list[Remedy]
    way: list[Remedy]
    after: int
    seconds: Mapping[str, float]
    rates: Rates

    @property
    def fits(self) -> bool:
        """Whether a step fits as it is."""
        return self.made.peak <= self.room


def plan_of(asked: Asked) -> Plan:
    """The plan of what is asked.

    Raises:
        ValueError, OSError: what is wrong with the model, the data or the flags.
    """
    args, options = asked.config, asked.options
    policy = policy_without_weights(args)
    targets = targets_of(args) if isinstance(args, WarmupConfig) else None
    ruler, rough = ruler_of(args, unwrap(policy).config)
    records = records_of(args, targets)
    lengths = prompt_lengths(args, records, ruler, options.records, rough)
    measured = (records[number] for number in sampled(len(records), options.records, args.seed))
    case = case_of(
        args,
        policy,
        lengths.at(1.0),
        on_host=asked.on_host,
        engine=options.splits,
        processes=options.gpus,
        optimizer=asked.optimizer,
        taught=None if targets is None else taught_of(measured, targets, ruler),
    )
    made, room = case.estimate(), SHARE * options.gpu_memory * 1e9
    way, after = cheapest_way(case, room)
    rates, _ = rates_of(options.device, options.gpu_memory, options.device_tflops, options.device_gbs)
    median = lengths.at(0.5)
    usual = replace(case.job, tokens=median.tokens, patches=median.vision * case.shapes.vision.merged)
    seconds = seconds_by_phase(case.shapes, case.weights, usual, rates)
    return Plan(lengths, case, made, room, remedies(case), way, after.estimate().peak, seconds, rates)


def policy_without_weights(args: GRPOConfig) -> nn.Module:
    """The policy on the meta device: shapes, and what learns.

    Raises:
        OSError: the model is no folder, and the hub can't be reached or has none of this name.
    """
    path = str(args.model_name_or_path)
    try:
        return build_policy(load_without_weights(path), args)
    except OSError as error:
        reason = str(error.__cause__ or error).strip().splitlines()[0]
        raise OSError(
            f"--model {path}: no folder of this name with a config.json, and the hub gave none ({reason}); a plan "
            "needs the model's config.json alone: copy it into a folder, with the tokenizer if it is at hand, and "
            "give that"
        ) from None


def lengths_of(args: GRPOConfig, policy: nn.Module, most: int) -> Lengths:
    """The lengths of the prompts that ``dataset_use`` names.

    Raises:
        ValueError, OSError: what is wrong with the data or the processor.
    """
    ruler, rough = ruler_of(args, unwrap(policy).config)
    return prompt_lengths(args, records_of(args), ruler, most, rough)


def records_of(args: GRPOConfig, targets: SolutionTargets | RolloutTargets | None = None) -> Sequence[Record]:
    """The records that ``dataset_use`` names, in a warm-up those with targets.

    Raises:
        ValueError, OSError: what is wrong with the data.
    """
    dataset = load_dataset(
        args.dataset_use,
        SampleOptions.of(args),
        catalog_path=args.dataset_catalog,
        **vars(ReadOptions.of(args)),
        stream_above=int(args.stream_above_mb * 2**20),
        stream_above_records=args.stream_above_records,
        seed=args.seed,
        check_record=None if targets is None else targets.check_record,
    )
    return dataset.records if targets is None else narrowed(dataset, targets, "--dataset_use").records
