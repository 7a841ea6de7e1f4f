"""A frozen model that answers records as training would sample and score them, without the Trainer."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any, TypeVar

from accelerate import Accelerator
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.config.own_options import LoaderOptions
from qwenvl.console import say, shows_bars
from qwenvl.data.collator import GRPOCollator
from qwenvl.data.dataset import GRPODataset
from qwenvl.data.options import PromptOptions, SampleOptions
from qwenvl.evaluate.options import PassOptions
from qwenvl.failure import counted
from qwenvl.model.loading import load_processor
from qwenvl.model.saved_adapter import with_adapter
from qwenvl.model.weight_files import base_of_adapter
from qwenvl.option import nearest
from qwenvl.rewards import Rubric
from qwenvl.rewards.table import BY_FLAG, SHAPING
from qwenvl.rollout.engine import EngineWithWeights, SamplingParams
from qwenvl.step.answer import Answer, in_budget
from qwenvl.step.assemble import loaded_model
from qwenvl.step.kernels import build_kernels
from qwenvl.step.meter import Meter
from qwenvl.step.pipeline import build_sample, with_contrast
from qwenvl.step.sample import SampleNow
from qwenvl.step.score import Score, ScoredGroups
from qwenvl.step.types import Sampled, Scored, Stage, StepContext
from qwenvl.tools.functions import schemas_of
from qwenvl.tools.toolbox import Toolbox
from qwenvl.types import TOTAL, BadSample, PromptBatch, Record, RewardBatch, RolloutBatch

SECONDS_BETWEEN_LINES = 10.0
Item = TypeVar("Item")


@dataclass(frozen=True)
class Respondent:
    """A frozen model with the stages that answer records: encode, sample, score.

    Attributes:
        config: the settings of training.
        answer: completions and rewards for an evaluation.
        score: the stage *score* of training, with the bonus of the temporal contrast where the flags ask for it.
        step: what the stages read: the model, and the seed of draws.
    """

    config: GRPOConfig
    answer: Answer
    score: Stage[Sampled, Scored]
    step: StepContext

    @property
    def sample(self) -> SampleNow:
        """The stage *sample*."""
        return self.answer.sample

    def complete(
        self, batches: Sequence[PromptBatch], size: int, params: SamplingParams | None = None
    ) -> list[RolloutBatch]:
        """``size`` completions per prompt, see ``Answer.complete``."""
        return self.answer.complete(batches, size, self.step, params)

    def scored_answers(self, batches: Sequence[PromptBatch], size: int) -> list[tuple[RolloutBatch, RewardBatch]]:
        """``size`` completions per prompt with their rewards, see ``Answer``."""
        return self.answer(batches, size, self.step)

    def groups(self, batches: Sequence[PromptBatch]) -> Sequence[Scored]:
        """The groups that training would sample for the prompts, with their rewards."""
        return ScoredGroups(self.sample, self.score)(batches, self.step)

    def with_toolbox(self, toolbox: Toolbox | None) -> Respondent:
        """The same model, whose calls another toolbox answers. None: there are no tools."""
        sample = replace(self.sample, toolbox=toolbox)
        score = with_contrast(self.config, self.step.policy, sample, self.answer.score)
        return replace(self, answer=Answer(sample, self.answer.score), score=score)


def build_respondent(
    config: GRPOConfig,
    collator: GRPOCollator,
    rubric: Rubric,
    path: str | None = None,
    *,
    process: int | None = None,
    group_size: int | None = None,
) -> Respondent:
    """The frozen model ``path`` or ``config.model_name_or_path``, with the stages of a training run around it.

    Args:
        collator: of ``collator_of``.
        process: the number that draws depend on. None: that of this process.
        group_size: completions per prompt in ``Respondent.groups``. None: as in training.

    Raises:
        EngineLostError: the servers that the flags name can't be used.
    """
    path = path or str(config.model_name_or_path)
    base = base_of_adapter(path)
    model = loaded_model(base or path, config, frozen=True)
    if base is not None:
        model = with_adapter(model, path)
    model = model.requires_grad_(False).to(config.device)
    kernels = build_kernels(config, model, collator.processor)
    accelerator = Accelerator(cpu=config.use_cpu, mixed_precision=config.mixed_precision)
    sample = build_sample(config, kernels, model, collator, accelerator, group_size=group_size)
    score = Score(rubric)
    step = StepContext(
        policy=model,
        wrapped=None,
        version=0,  # a frozen model has the weights that it begins with
        seed=config.seed,
        process=config.process_index if process is None else process,
        meter=Meter(config.device),
    )
    if isinstance(sample.engine, EngineWithWeights):
        sample.engine.sync(model, step.version)
    return Respondent(config, Answer(sample, score), with_contrast(config, model, sample, score), step)


def collator_of(config: GRPOConfig) -> GRPOCollator:
    """The collator of the model ``config.model_name_or_path``. An adapter has that of its base model."""
    path = str(config.model_name_or_path)
    processor = load_processor(base_of_adapter(path) or path)
    return GRPOCollator(processor, PromptOptions.of(config), tools=schemas_of(config))


def dataset_of(records: Sequence[Record], config: GRPOConfig, collator: GRPOCollator) -> GRPODataset:
    """The records with their media as evaluation in training shows them."""
    fit_to = collator.options.fit_to
    return GRPODataset(records, SampleOptions.of(config), training=False, ruler=collator.ruler, fit_to=fit_to)


def loader_of(dataset: Dataset, keys: Sequence[Any], collator: GRPOCollator, config: LoaderOptions) -> DataLoader:
    """The prompts of ``keys``, one to a batch, in this order."""
    return DataLoader(
        dataset,
        batch_size=1,
        sampler=keys,
        collate_fn=collator,
        num_workers=config.dataloader_num_workers,
        prefetch_factor=config.dataloader_prefetch_factor,
    )


def in_blocks(
    respondent: Respondent,
    data: Dataset,
    blocks: Sequence[Sequence[Any]],
    collator: GRPOCollator,
    samples: int,
    name: str = "",
) -> Iterator[tuple[Sequence[Any], list[BadSample], Iterator[list[PromptBatch]]]]:
    """Each block of keys, its records that cannot be read, and its prompts in batches that are sampled together."""
    config = respondent.config
    new_tokens = samples * respondent.sample.params.max_new_tokens
    # One loader for all blocks, so that its workers read the next block while this one is answered.
    keys = list(chain.from_iterable(blocks))
    loader = loader_of(data, keys, collator, config)
    prompts = with_progress((inputs["prompts"] for inputs in loader), len(keys), name)
    for block in blocks:
        batches: list[PromptBatch] = list(islice(prompts, len(block)))
        bad: list[BadSample] = []
        for batch in batches:
            bad += batch.bad
        readable = [batch for batch in batches if len(batch) > 0]
        yield block, bad, in_budget(readable, new_tokens=new_tokens, budget=config.rollout_token_budget)
    next(prompts, None)  # ends the bar


def pass_reward(rubric: Rubric, options: PassOptions) -> str:
    """The name of the reward of ``--pass_by``, by default the first that tells right from wrong.

    Raises:
        ValueError: no such reward, or one that no completion or every completion passes.
    """
    names = (*rubric.names, TOTAL)
    judges = []
    for name in rubric.names:
        without_number = name.rstrip("_0123456789")  # several reward models are reward_model_1, ...
        if name not in SHAPING and without_number not in BY_FLAG:
            judges.append(name)
    if options.pass_by is None and not judges:
        raise ValueError(
            f"none of the rewards {', '.join(rubric.names)} tells right from wrong by itself: name one with --pass_by, "
            "or total, and the value with which a completion passes with --pass_at"
        )
    pass_by = options.pass_by or judges[0]
    if pass_by not in names:
        raise ValueError(f"--pass_by {pass_by}: no such reward here; {nearest(pass_by, names, 'there are')}")
    value_range = next((each.value_range for each in rubric.functions if each.name == pass_by), None)
    if value_range is not None and pass_by not in SHAPING:
        low, high = value_range
        if not low < options.pass_at <= high:
            raise ValueError(f"--pass_at {options.pass_at:g}: expected above {low:g} and at most {high:g} of {pass_by}")
    return pass_by


def with_progress(items: Iterable[Item], total: int, name: str = "") -> Iterator[Item]:
    """The items, counted in the first process: by a bar on a terminal, elsewhere by a line every 10 seconds.

    Args:
        total: number of items.
        name: prefix of the bar and of the lines.
    """
    if shows_bars():
        other_process = os.environ.get("RANK", "0") != "0"
        return iter(tqdm(items, name or None, total, unit="prompt", disable=other_process))
    return _with_lines(items, total, f"{name}: " if name else "")


def _with_lines(items: Iterable[Item], total: int, prefix: str) -> Iterator[Item]:
    printed_at = time.monotonic()
    for number, item in enumerate(items, 1):
        if time.monotonic() - printed_at >= SECONDS_BETWEEN_LINES:
            say(f"{prefix}{number:,} of {counted(total, 'prompt')}")
            printed_at = time.monotonic()
        yield item
