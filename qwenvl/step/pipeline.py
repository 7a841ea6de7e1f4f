"""One training step as a pipeline of stages, and the function that builds it from the settings.

    draw -> encode -> sample -> score -> [contrast] -> [refill] -> [KL in the reward] -> compare -> count
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from accelerate import Accelerator
from torch import nn
from torch.utils.data import Dataset

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.data.collator import GRPOCollator
from qwenvl.data.dataset import GRPODataset
from qwenvl.data.order import RefillOrder
from qwenvl.model.inputs import InputBuilder
from qwenvl.model.loading import unwrap
from qwenvl.model.positions import position_rule
from qwenvl.model.reference import Reference
from qwenvl.model.sharding import LockStep
from qwenvl.option import row_of
from qwenvl.rewards import Rubric, build_rubric
from qwenvl.rewards.options import ContrastOptions
from qwenvl.rollout.background import BackgroundEngine
from qwenvl.rollout.engine import EngineWithWeights, RolloutEngine
from qwenvl.rollout.options import SamplingOptions
from qwenvl.step.ahead import SampleAhead
from qwenvl.step.compare import Advantages, Compare, GroupAdvantages, no_advantages
from qwenvl.step.contrast import TemporalContrast
from qwenvl.step.count import Count
from qwenvl.step.encode import Encode, EncodeLooks
from qwenvl.step.kernels import Kernels
from qwenvl.step.likelihood import CompletionLikelihood
from qwenvl.step.penalty import KLInReward
from qwenvl.step.processes import Processes
from qwenvl.step.refill import Refill
from qwenvl.step.sample import SampleNow, Sampler
from qwenvl.step.score import Score, ScoredGroups
from qwenvl.step.types import Experience, Sampled, Scored, Stage, StepContext, TrainStep
from qwenvl.tools.toolbox import Toolbox
from qwenvl.types import TOTAL, PromptBatch


@dataclass(frozen=True)
class Pipeline:
    """The stages of an optimizer step: from its prompts to the ``TrainStep`` that it is trained on.

    Attributes:
        sample: the stage that samples, which ``groups`` calls. It needs the policy's weights around the whole step.
        groups: prompts to scored completions: encode, sample, score, and what is wrapped around them.
        changes: what changes scored completions before they are compared, in this order.
        compare: scored completions to experiences.
        count: experiences to the step.
    """

    sample: Sampler
    groups: Stage[PromptBatch, Scored]
    changes: tuple[Stage[Scored, Scored], ...]
    compare: Stage[Scored, Experience]
    count: Count

    def __call__(self, batches: Sequence[PromptBatch], step: StepContext) -> TrainStep:
        """The step on the prompts of all micro-batches of this process. All processes must call this together.

        The whole step is collected at once, because rewards may be scaled by the spread of all of them, and because
        one call of the reward functions lets slow ones run side by side.
        """
        with self.sample.ready(step):
            scored = self.groups(batches, step)
            self.sample.finish(step)
            for change in self.changes:
                scored = change(scored, step)
            experiences = self.compare(scored, step)
        return self.count(experiences, step)


def build_pipeline(
    args: GRPOConfig,
    policy: nn.Module,
    sample: SampleNow,
    score: Score,
    *,
    likelihood: CompletionLikelihood,
    reference: Reference | None,
    dataset: Dataset | None,
    collate: GRPOCollator,
    teacher_alone: bool,
) -> Pipeline:
    """The stages of a training step, in their order, as the flags ask for them.

    Args:
        sample, score: shared with evaluation.
        likelihood: log-probs of completions under the reference.
        reference: of the KL in the reward.
        dataset, collate: what to train on, from which groups are replaced.
        teacher_alone: the policy learns from its teacher and from no reward.

    Raises:
        ValueError: a flag that does not fit the rewards, the data set or the engine.
    """
    sampler: Sampler = sample
    if args.async_rollouts:
        sampler = sampled_ahead(args, sample)

    groups: Stage[PromptBatch, Scored] = ScoredGroups(sampler, with_contrast(args, policy, sample, score))
    if row_of(args, "filter_groups") is not None and dataset is not None:
        groups = with_refill(args, groups, dataset, collate, sample.processes)

    changes: tuple[Stage[Scored, Scored], ...] = ()
    if args.kl_in_reward and reference is not None:
        changes = (KLInReward(reference, likelihood, beta=args.grpo_beta),)

    advantages: Advantages = no_advantages
    if not teacher_alone:
        advantages = GroupAdvantages(args.grpo_sample_size, args.estimator, args.scale_rewards, sample.processes)

    return Pipeline(
        sample=sampler,
        groups=groups,
        changes=changes,
        compare=Compare(
            advantages,
            device=args.device,
            leaves_out_truncated=args.mask_truncated_completions,
            corrects_for_sampler=args.engine_has_own_weights,
        ),
        count=Count(
            args.device, reads_entropies=args.reads_sampled_entropies, top_entropy=args.top_entropy_quantile
        ),
    )


def build_sample(
    args: GRPOConfig,
    kernels: Kernels,
    policy: nn.Module,
    collator: GRPOCollator,
    accelerator: Accelerator,
    *,
    group_size: int | None = None,
    on_answer: Callable[[], None] | None = None,
) -> SampleNow:
    """The stages encode and sample, for training and for evaluation.

    Args:
        group_size: completions per prompt. None: as in training.
        on_answer: called for each call of a tool that is answered.
    """
    bare = unwrap(policy)
    encode = Encode(
        device=args.device,
        build_inputs=InputBuilder.of(position_rule(bare.config), collator.processor),
        encode_vision=kernels.encode_vision,
        autocast=accelerator.autocast,
    )
    return SampleNow(
        encode=encode,
        engine=background_engine(args, kernels.engine) if args.async_rollouts else kernels.engine,
        group_size=args.grpo_sample_size if group_size is None else group_size,
        params=args.sampling_params(entropies=args.reads_sampled_entropies),
        toolbox=Toolbox.of(args, collator, on_answer),
        looks=EncodeLooks(encode),
        processes=Processes(lock_step=None if args.ds3_gather_for_generation else LockStep(args.device)),
        process=args.process_index,
    )


def background_engine(args: SamplingOptions, engine: RolloutEngine) -> BackgroundEngine:
    """The engine of ``--async_rollouts``, which samples in a thread.

    Raises:
        ValueError: the engine can't sample while the policy trains.
    """
    if not isinstance(engine, EngineWithWeights):
        name = type(engine).__name__
        raise ValueError(
            f"--async_rollouts {args.async_rollouts}: {name} can't sample while the policy trains: take an engine "
            "with weights of its own, or leave it out"
        )
    return BackgroundEngine(engine)


def sampled_ahead(args: GRPOConfig, sample: SampleNow) -> SampleAhead:
    """The stage *sample* of ``--async_rollouts``."""
    assert isinstance(sample.engine, BackgroundEngine)
    return SampleAhead(
        sample,
        sample.engine,
        depth=args.async_rollouts,
        iterations=args.num_iterations,
        requests_at_once=row_of(args, "filter_groups") is None,
        process=args.process_index,
        processes=args.world_size,
    )


def with_contrast(args: GRPOConfig, policy: nn.Module, sample: SampleNow, score: Score) -> Stage[Sampled, Scored]:
    """The stage *score*, with the bonus for answers that need the order of the frames where the flags ask for it."""
    contrast = row_of(args, "temporal_contrast")
    correctness = correctness_of(args)
    if contrast is None or correctness is None:
        return score
    return TemporalContrast(
        score=score,
        sample=sample,
        flags=contrast.arguments,
        correctness=rubric_of(args, functions=correctness, weights=None),
        temporal_patch_size=unwrap(policy).config.vision_config.temporal_patch_size,
    )


def with_refill(
    args: GRPOConfig,
    groups: Stage[PromptBatch, Scored],
    dataset: Dataset,
    collate: GRPOCollator,
    processes: Processes,
) -> Refill:
    """The stages that sample and score, with other groups in the places of those that ``--filter_groups`` replaces.

    Args:
        groups: samples and scores prompts.
        dataset, collate: what to train on.

    Raises:
        ValueError: the data set can't be drawn from by number.
    """
    if not isinstance(dataset, GRPODataset):
        raise ValueError("--filter_groups needs a GRPODataset, as load_dataset makes it")
    chosen = row_of(args, "filter_groups")
    assert chosen is not None
    by = chosen.name or TOTAL
    rounds = chosen.arguments.max_rounds
    prompts_of_process = args.per_device_train_batch_size * args.gradient_accumulation_steps
    order = RefillOrder(
        dataset.parts,
        args.seed if args.data_seed is None else args.data_seed,
        longest=prompts_of_process * (4 + rounds),
        process=args.process_index,
        processes=args.world_size,
    )
    return Refill(
        groups=groups,
        dataset=dataset,
        collate=collate,
        order=order,
        by=by,
        rounds=rounds,
        group_size=args.grpo_sample_size,
        by_function=args.estimator == "gdpo",
        processes=processes,
    )


def correctness_of(args: ContrastOptions) -> str | None:
    """The reward that tells the temporal contrast which completions are correct. None without contrast."""
    contrast = row_of(args, "temporal_contrast")
    if contrast is None:
        return None
    return contrast.name or "accuracy"


def rubric_of(args: GRPOConfig, *, functions: Any, weights: Any, **more: Any) -> Rubric:
    """A rubric with the settings of the run."""
    return build_rubric(
        functions,
        weights,
        external_plugins=args.external_plugins or (),
        settings=args,
        on_error=args.on_reward_error,
        **more,
    )
