"""A model and the records that it is asked about: the parts of a training run, without its Trainer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.data.collator import GRPOCollator
from qwenvl.data.options import PromptOptions
from qwenvl.model.loading import base_of_adapter, evaluating, load_processor, unwrap, with_adapter
from qwenvl.rewards import Rubric
from qwenvl.rollout.engine import EngineWithWeights
from qwenvl.train.assemble import build_collector, loaded_model
from qwenvl.train.collect.collector import Collector
from qwenvl.train.data_sets import build_dataset, build_frame_cache, build_sampler
from qwenvl.train.display.console import settle_output
from qwenvl.train.evaluation import in_budget
from qwenvl.train.fast_paths import PathLikelihood, build_paths
from qwenvl.train.log.meter import Meter
from qwenvl.train.step import Experience
from qwenvl.types import BadSample, PromptBatch


@dataclass
class Answers:
    """Completions of a model for a sample of records, as training would sample and score them.

    Attributes:
        model: frozen, with its adapter if it has one.
        collector: whose groups are as large as asked for.
        loader: the prompts, one to a batch.
        likelihood: the log-probs and entropies of completions.
        token_budget: prompts whose tokens stay below this are sampled together.
        meter: where the time went.
        left_out: records that could not become a prompt, as they turn up.
    """

    model: nn.Module
    collector: Collector
    loader: DataLoader
    likelihood: PathLikelihood
    token_budget: int
    meter: Meter
    left_out: list[BadSample] = field(default_factory=list)

    def __iter__(self) -> Iterator[Experience]:
        """One experience for each prompt, in the order of the loader."""
        new_tokens = self.collector.group_size * self.collector.params.max_new_tokens
        for batches in in_budget(self._prompts(), new_tokens=new_tokens, budget=self.token_budget):
            yield from self.collector.collect(self.model, batches)

    def __len__(self) -> int:
        """How many records are asked about, those that will be left out among them."""
        return len(self.loader)

    def entropies(self, experience: Experience) -> Tensor:
        """N x T, of the distributions that the tokens were drawn from, in nats, as training logs them. 0 at padding."""
        prompts, rollout = experience.prompts, experience.rollout
        temperature = self.collector.params.temperature
        with self.meter.time("time/entropy_s"), torch.no_grad(), evaluating(self.model):
            entropies = self.likelihood(
                self.model, prompts, rollout.completion_ids, rollout.completion_mask, temperature, "measured"
            ).entropies
        assert entropies is not None
        return entropies

    def seconds(self) -> dict[str, float]:
        """Where the time went since it was last asked for: waiting for data, the vision tower, sampling, rewards."""
        return {name.removeprefix("time/").removesuffix("_s"): value for name, value in self.meter.flush().items()}

    def _prompts(self) -> Iterator[PromptBatch]:
        self.meter.start("time/data_s")
        for inputs in self.loader:
            self.meter.stop("time/data_s")
            batch = inputs["prompts"]
            self.left_out += batch.bad
            if len(batch):
                yield batch
            self.meter.start("time/data_s")
        self.meter.stop("time/data_s")


@dataclass(frozen=True)
class Respondent:
    """A frozen model and what has it answer.

    Attributes:
        model: with its adapter if it has one.
        meter: where the time goes.
    """

    model: nn.Module
    collector: Collector
    likelihood: PathLikelihood
    meter: Meter


def build_respondent(config: GRPOConfig, collator: GRPOCollator, rubric: Rubric) -> Respondent:
    """The model ``config.model_name_or_path``, and the collector of a training run around it.

    Args:
        collator: as ``collator_of`` makes it.

    Raises:
        EngineLostError: the servers that the flags name can't be used.
    """
    path = str(config.model_name_or_path)
    base = base_of_adapter(path)
    model = loaded_model(base or path, config, frozen=True)
    model = (model if base is None else with_adapter(model, path)).requires_grad_(False).to(config.device)
    paths = build_paths(config, model, collator.processor.tokenizer)
    meter = Meter(config.device)
    accelerator = Accelerator(cpu=config.use_cpu, mixed_precision=config.mixed_precision)
    collector = build_collector(config, paths, unwrap(model), collator.processor, rubric, accelerator, meter)
    if isinstance(paths.engine, EngineWithWeights):
        paths.engine.sync(model, 0)
    return Respondent(model, collector, PathLikelihood.of(config, paths, unwrap(model), accelerator), meter)


def collator_of(config: GRPOConfig) -> GRPOCollator:
    """The collator of the model ``config.model_name_or_path``. An adapter has that of the model below it."""
    path = str(config.model_name_or_path)
    return GRPOCollator(load_processor(base_of_adapter(path) or path), PromptOptions.of(config))


def loader_of(dataset: Dataset, keys: Sequence[Any], collator: GRPOCollator, config: GRPOConfig) -> DataLoader:
    """The prompts of ``keys``, one to a batch, in this order."""
    return DataLoader(
        dataset,
        batch_size=1,
        sampler=keys,
        collate_fn=collator,
        num_workers=config.dataloader_num_workers,
        prefetch_factor=config.dataloader_prefetch_factor,
    )


def build_answers(config: GRPOConfig, rubric: Rubric, *, samples: int, limit: int) -> Answers:
    """What asks ``config.model_name_or_path`` about ``config.dataset_use``.

    The records are the first that training would draw, each once: a random sample. The data set is read before the
    weights, which may take minutes.

    Args:
        samples: completions per prompt.
        limit: most records.

    Raises:
        RecordError, ValueError, OSError: what a training run would be refused for.
    """
    settle_output()
    collator = collator_of(config)
    frame_cache = build_frame_cache(config, collator)
    dataset = build_dataset(config.dataset_use, config, rubric, collator, frame_cache, training=True)
    drawn: dict[int, tuple[int, int]] = {}
    for place in build_sampler(dataset, config, 1, collator):
        if place is not None:
            drawn.setdefault(place[1], place)  # with weights a record may come several times
    loader = loader_of(dataset, list(drawn.values())[:limit], collator, config)
    respondent = build_respondent(config, collator, rubric)
    return Answers(
        model=respondent.model,
        collector=replace(respondent.collector, group_size=samples),
        loader=loader,
        likelihood=respondent.likelihood,
        token_budget=config.rollout_token_budget,
        meter=respondent.meter,
    )
