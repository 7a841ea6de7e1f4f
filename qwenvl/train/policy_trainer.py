"""What the trainers of this library share: how they are put together, what learns how fast, and what is saved."""

from __future__ import annotations

from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor, nn
from torch.utils.data import Dataset, SequentialSampler
from transformers import TrainerCallback
from transformers.trainer_utils import TrainOutput

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.data.dataset import GRPODataset
from qwenvl.data.difficulty import Difficulty
from qwenvl.data.order import EpochSampler, RepeatedSteps
from qwenvl.data.saved_processor import processor_as_trained
from qwenvl.model.loading import parameter_groups, unwrap
from qwenvl.model.sharding import settle_fsdp
from qwenvl.model.waiting_media import put_aside
from qwenvl.train.callbacks import install_callbacks
from qwenvl.train.card.trainer import DescribedTrainer
from qwenvl.train.data_sets import build_dataset, build_frame_cache, build_sampler
from qwenvl.train.display.choice import display_closed
from qwenvl.train.fast_paths import PathLikelihood, drawing_of
from qwenvl.train.log.doing import Doing
from qwenvl.train.log.journal import Journal
from qwenvl.train.log.memory import peak_memory
from qwenvl.train.log.meter import Meter
from qwenvl.train.parts import Parts
from qwenvl.train.reference import build_reference
from qwenvl.train.run.finite.steps import FiniteSteps
from qwenvl.train.run.live_weights import start_from_weights
from qwenvl.train.run.resumable import ResumableTrainer


class PolicyTrainer(ResumableTrainer, DescribedTrainer):
    """A Trainer of a Qwen-VL policy on batches of prompts. What it learns from is left to its subclasses.

    Args:
        parts: what it is put together from.
        with_reference: keep a reference, the policy as it is before training or what the flags name.
        callbacks: more callbacks of transformers.

    Attributes:
        doing: what this process is at.
        evaluated_as: the metric by which the log tells that the weights were evaluated.
        difficulty: which records are drawn less. None: all are drawn alike.
    """

    # What compute_loss returns is divided by the number of micro-batches, in every version of transformers.
    loss_is_scaled_for_ga = False
    evaluated_as = "eval_loss"
    difficulty: Difficulty | None = None

    def __init__(
        self,
        parts: Parts,
        args: GRPOConfig,
        *,
        with_reference: bool,
        callbacks: list[TrainerCallback] | None = None,
    ):
        policy, bare = parts.policy, unwrap(parts.policy)
        self.prompt_settings, self.learned_by = parts.prompt_settings, parts.learned_by
        super().__init__(
            model=policy,
            args=args,
            data_collator=parts.collator,
            train_dataset=parts.train_dataset,
            eval_dataset=parts.eval_dataset,
            processing_class=processor_as_trained(parts.processor, parts.prompt_settings),
            callbacks=callbacks,
        )
        self.model_accepts_loss_kwargs = False  # for versions that do not know loss_is_scaled_for_ga
        self.paths = parts.paths
        rounded_to = settle_fsdp(
            self.accelerator,
            policy,
            asked=bool(args.fsdp),
            copies_policy=with_reference and (bare is policy or args.ref_model_name_or_path is not None),
            output_dir=args.output_dir,
        )
        self.reference = build_reference(args, parts, rounded_to) if with_reference else None
        if args.start_from_weights is not None:
            start_from_weights(policy, args.start_from_weights)
        self.meter = Meter(args.device)
        self.doing = Doing(self.meter, drawing_of(parts.paths))
        self.journal = Journal(args, self.meter, self.train_dataset, self.paths.cache)
        self._finite_steps = FiniteSteps(args, self.journal, self.meter, self.accelerator)
        install_callbacks(self, self.journal)
        self.completion_likelihood = PathLikelihood.of(args, parts.paths, bare, self.accelerator)

    @property
    def version(self) -> int | None:
        """How many optimizer steps made the policy's weights. None outside of training: a script may change them."""
        return self.state.global_step if self.is_in_train else None

    def train(self, *args: Any, **kwargs: Any) -> TrainOutput:
        """Trains, as the base class does. An error leaves a clean terminal."""
        with display_closed(self):
            return super().train(*args, **kwargs)

    def evaluate(self, eval_dataset: Any = None, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Evaluates, as the base class does. An error leaves a clean terminal.

        Args:
            eval_dataset: as the trainer takes it, rows and names of data sets among it. None for that of the trainer.
        """
        with display_closed(self):
            return super().evaluate(self._held_out(eval_dataset), *args, **kwargs)

    def get_batch_samples(self, epoch_iterator, num_batches, device):
        """The micro-batches of one optimizer step. How long the step waits for them is measured.

        Where one is large, its pixels wait in a file.
        """
        drawn = ({**inputs, "prompts": put_aside(inputs["prompts"])} for inputs in epoch_iterator)
        with self.meter.wait("time/data_wait_s"):
            return super().get_batch_samples(drawn, num_batches, device)

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch=None) -> Tensor:
        """One micro-batch, forward and backward. ``compute_loss`` starts the clock of the latter.

        Raises:
            NonFiniteError: after the last one of a step, as ``FiniteSteps.check`` does.
        """
        loss = super().training_step(model, inputs, num_items_in_batch)
        self.meter.stop("time/backward_s")
        if self.accelerator.sync_gradients:
            self._finite_steps.check(model, self.state.global_step + 1)
        return torch.nan_to_num(loss, 0.0, 0.0, 0.0)  # the Trainer sums losses up, and one NaN would stay in the sum

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Adds what was measured since the last entry to the Trainer's own."""
        if "loss" in logs:
            self.meter.max("memory/peak_gb", peak_memory(self.args.device).used / 1e9)
            logs = logs | self.meter.flush(lambda state: gather_object([state]))
        super().log(logs, start_time)

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """The Trainer's optimizer, with learning rates of their own for merger and vision tower where they are set."""
        rates = {"mlp": self.args.mm_projector_lr, "vision": self.args.vision_tower_lr}
        rates = {part: rate for part, rate in rates.items() if rate is not None}
        if rates and self.optimizer is None:
            trained = self.model if model is None else model
            groups = parameter_groups(
                trained,
                weight_decay=self.args.weight_decay,
                decayed=set(self.get_decay_parameter_names(trained)),
                learning_rates=rates,
            )
            optimizer_class, settings = self.get_optimizer_cls_and_kwargs(self.args, trained)
            self.optimizer_cls_and_kwargs = optimizer_class, {**settings, "params": groups}
        return super().create_optimizer(model)

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """Not counted: the library's estimate knows neither vision nor groups."""
        return 0

    def _track_num_input_tokens(self, inputs: dict[str, Any]) -> None:
        """For ``include_num_input_tokens_seen``: the prompts' tokens, each prompt once."""
        prompts = inputs["prompts"]
        super()._track_num_input_tokens({"input_ids": prompts.input_ids, "attention_mask": prompts.attention_mask})

    def _get_train_sampler(self, train_dataset: Dataset | None = None) -> EpochSampler | RepeatedSteps:
        dataset = self.train_dataset if train_dataset is None else train_dataset
        return build_sampler(dataset, self.args, self._train_batch_size, self.data_collator, self.difficulty)

    def _held_out(self, given: Any) -> Any:
        """The samples to evaluate on, made of what ``evaluate`` was given. None and names among the trainer's stay."""
        by_name = isinstance(given, str) and isinstance(self.eval_dataset, dict) and given in self.eval_dataset
        if given is None or by_name or isinstance(given, GRPODataset):
            return given
        frame_cache = build_frame_cache(self.args, self.data_collator)
        return build_dataset(given, self.args, self.learned_by, self.data_collator, frame_cache, training=False)

    def _get_eval_sampler(self, eval_dataset: Dataset) -> SequentialSampler | None:
        # In order, whatever the order of training; several processes get their shares of it from accelerate.
        return SequentialSampler(eval_dataset) if self.args.world_size <= 1 else None
