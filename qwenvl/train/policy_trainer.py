"""The base of the trainers of this library: wiring, learning rates, saving, resuming and the log."""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, SequentialSampler
from transformers import ProcessorMixin, Trainer, TrainerCallback, TrainerControl, set_seed
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, TrainOutput

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.console import say, settle_output
from qwenvl.data.collator import GRPOCollator
from qwenvl.data.dataset import GRPODataset
from qwenvl.data.options import PromptOptions
from qwenvl.data.order import EpochSampler, RepeatedSteps
from qwenvl.data.prompt_settings import PromptSettings
from qwenvl.data.saved_processor import processor_as_trained
from qwenvl.model.loading import load_processor, parameter_groups, unwrap
from qwenvl.model.saved_adapter import explained_misfit, load_adapter_weights
from qwenvl.model.sharding import settle_fsdp
from qwenvl.rewards import Rubric
from qwenvl.rollout.local import LocalEngine
from qwenvl.run_lock import locked
from qwenvl.step.assemble import build_dataset, build_sampler
from qwenvl.step.kernels import build_kernels
from qwenvl.step.meter import Meter, peak_memory
from qwenvl.step.types import Experience
from qwenvl.tools.functions import schemas_of
from qwenvl.train.assemble import build_policy, build_reference
from qwenvl.train.callbacks import install_callbacks
from qwenvl.train.card import METHOD, describe_model
from qwenvl.train.display.first_look import first_look, size_warnings
from qwenvl.train.display.progress import display_closed
from qwenvl.train.evaluation import require_metric
from qwenvl.train.gradient_reach import GradientReach, let_gradients_into_the_tower
from qwenvl.train.journal import Journal
from qwenvl.train.run.checkpoints import (
    is_sealed,
    load_weights,
    read_state,
    start_from_weights,
    whole_checkpoint,
)
from qwenvl.train.run.finite_steps import FiniteSteps
from qwenvl.train.run.interruptions import begin_worker, interruptible, kill_workers
from qwenvl.train.run.resume import Beginning, begin, require_no_trained_run

logger = logging.getLogger(__name__)


class PolicyTrainer(Trainer):
    """A Trainer of a Qwen-VL policy on batches of prompts. Subclasses have the loss and the evaluation.

    Args:
        args: the settings.
        rewards: the rubric of the run, or the targets of a warm-up.
        model, train_dataset, eval_dataset, processing_class, callbacks, peft_config: as ``GRPOTrainer`` takes them,
            in place of those that the flags name.
        with_reference: keep a reference, the policy as it is before training or the model that the flags name.

    Attributes:
        meter: metrics since the last log entry, and the current phase of this process.
        eval_metric: the metric that an evaluation logs in any case.
        trained_by: the method, for the model card.
        kernels: the computations of the policy, each fast or plain.
        prompt_settings: the settings that are saved with the model.
        reference: None in a run without one. Checkpoints have its weights where they move (``sync_ref_model``).
        steps_trained: optimizer steps of the last call of ``train``, without those before its checkpoint.

    Raises:
        RecordError, ValueError, OSError: the model, the data or the flags can't be used.
    """

    # So that the result of compute_loss is divided by the number of micro-batches in every version of transformers.
    loss_is_scaled_for_ga = False
    eval_metric = "eval_loss"
    trained_by = METHOD
    steps_trained = 0

    # Of Trainer, which mypy does not read.
    control: TrainerControl
    train_dataset: Any

    def __init__(
        self,
        args: GRPOConfig,
        rewards: Any,
        model: str | Path | nn.Module | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: ProcessorMixin | None = None,
        callbacks: list[TrainerCallback] | None = None,
        peft_config: Any = None,
        *,
        with_reference: bool = False,
    ):
        if args.activation_offload and args.device.type == "cpu":
            raise ValueError(
                "--activation_offload has no effect on a CPU: activations are in its memory anyway; leave it out"
            )
        args._n_gpu = min(args.n_gpu, 1)  # several GPUs in one process would mean DataParallel; torchrun is for those
        set_seed(args.seed)
        self.rewards = rewards
        source = args.model_name_or_path if model is None else model

        # Data come before the weights of a checkpoint: these take minutes to load, and a bad record ends the run.
        policy = None
        if not isinstance(source, (str, Path)):
            policy = build_policy(source, args, peft_config)
        settle_output()
        processor = processing_class
        if processor is None:
            processor = load_processor(str(source) if policy is None else unwrap(policy).name_or_path)
        _check_processor(processor)
        collator = self.make_collator(processor, args)
        build = partial(build_dataset, args=args, checker=rewards, collator=collator)
        train = build(args.dataset_use if train_dataset is None else train_dataset, training=True)
        evaluation = build(args.eval_dataset_use if eval_dataset is None else eval_dataset, training=False)
        self._look_at(args, train, evaluation)

        if policy is None:
            policy = build_policy(source, args, peft_config)
        bare = unwrap(policy)
        self.kernels = build_kernels(args, policy, processor)
        self.prompt_settings = PromptSettings.of(args, train, bare.name_or_path)
        super().__init__(
            model=policy,
            args=args,
            data_collator=collator,
            train_dataset=self.narrowed(train, "--dataset_use"),
            eval_dataset=self.narrowed(evaluation, "--eval_dataset_use"),
            processing_class=processor_as_trained(processor, self.prompt_settings),
            callbacks=callbacks,
        )
        for warning in size_warnings(args, self.train_dataset, self.eval_dataset):
            if self.is_world_process_zero():
                logger.warning(warning)
        self.model_accepts_loss_kwargs = False  # for versions that do not know loss_is_scaled_for_ga

        # In forwards under FSDP weights may be rounded: those of a reference then are rounded alike.
        rounded_to = settle_fsdp(
            self.accelerator,
            policy,
            asked=bool(args.fsdp),
            copies_policy=with_reference and (bare is policy or args.ref_model_name_or_path is not None),
            output_dir=args.output_dir,
        )
        self.reference = build_reference(args, policy, processor, self.kernels, rounded_to) if with_reference else None
        if args.start_from_weights is not None:  # after the reference, which stays the model that was named
            start_from_weights(policy, args.start_from_weights)

        let_gradients_into_the_tower(policy, args)
        self._watch(policy)

    def _look_at(self, args: GRPOConfig, train: Any, evaluation: Any) -> None:
        """Report what stands out in the data, and check the metric that checkpoints go by, before loading weights."""
        names = self.rewards.names if isinstance(self.rewards, Rubric) else ()  # a warm-up has none
        first_look(train, self.rewards.columns, names)
        if args.metric_for_best_model is not None and evaluation is not None:
            require_metric(args.metric_for_best_model, evaluation, self.metrics_of_evaluation)

    def _watch(self, policy: nn.Module) -> None:
        """Make the observers of the run: meter, journal, callbacks, and the checks of gradients and finite numbers."""
        engine = self.kernels.engine
        self.meter = Meter(self.args.device, engine.drawing if isinstance(engine, LocalEngine) else None)
        self.journal = Journal(self.args, self.meter, self.train_dataset)
        self.finite_steps = FiniteSteps(self.args, self.journal, self.meter, self.accelerator)
        install_callbacks(self, self.journal)
        self.gradient_reach = GradientReach(policy, self.accelerator)

    def make_collator(self, processor: ProcessorMixin, args: GRPOConfig) -> GRPOCollator:
        """Make the collator of this trainer."""
        return GRPOCollator(processor, PromptOptions.of(args), tools=schemas_of(args))

    def narrowed(self, dataset: Any, flag: str) -> Any:
        """A data set, or several by name, without the records that the trainer learns nothing from."""
        return dataset

    def metrics_of_evaluation(self, prefix: str) -> list[str]:
        """The names of the metrics that an evaluation logs. A subclass that logs more adds them here."""
        return [self.eval_metric.replace("eval", prefix, 1)]

    @property
    def experiences(self) -> Sequence[Experience]:
        """The experiences of the optimizer step in progress, or of the last one. Empty where nothing is sampled."""
        return ()

    @property
    def version(self) -> int | None:
        """The optimizer steps that made the policy's weights. None outside of training: a script may change them."""
        return self.state.global_step if self.is_in_train else None

    def train(
        self, resume_from_checkpoint: str | bool | Beginning | None = None, *args: Any, **kwargs: Any
    ) -> TrainOutput:
        """Train, from the beginning or from a checkpoint. An error leaves a clean terminal.

        Args:
            resume_from_checkpoint: a folder, or True for the newest checkpoint of ``output_dir``. None: as ``resume``
                of the settings says. A ``Beginning`` was checked already: a command does so before it loads the model.

        Raises:
            FileExistsError: a new run would mix with checkpoints of an earlier one, or replace its model or its rows.
            RunFolderError: another run holds the folder, or it can't be written.
            FileNotFoundError: there is no such checkpoint, or it lacks its optimizer or its schedule.
            ValueError: a file of it is cut short, the settings differ, or its weights do not fit the model.
            SystemExit: with status 0, where a signal ended training and a checkpoint was saved (``save_on_signal``).
            EngineLostError: in all processes, where nothing samples any more. The last step is saved as a checkpoint,
                if it could be resumed.
        """
        beginning = resume_from_checkpoint
        if not isinstance(beginning, Beginning):
            beginning = begin(self.args, beginning, adapter=unwrap(self.model) is not self.model)
            if beginning.checkpoint is None:
                require_no_trained_run(self.args, trained_steps=self.state.global_step)
        checkpoint = beginning.checkpoint
        if beginning.finished and checkpoint is None:
            raise FileExistsError(beginning.finished)
        first_step = 0 if checkpoint is None else read_state(checkpoint)["global_step"]
        eval_on_start = self.args.eval_on_start
        self.args.eval_on_start = eval_on_start and first_step == 0  # a resumed run's start was evaluated when it began
        folder_held = locked(self.args.output_dir, self.args.process_index)
        try:
            with folder_held, display_closed(self), self.sampling(), interruptible(self) as stop:
                output = super().train(checkpoint, *args, **kwargs)
        finally:
            self.args.eval_on_start = eval_on_start
        self.steps_trained = output.global_step - first_step
        if stop.stopped_by is not None:
            self.accelerator.end_training()
            say(stop.message())
            raise SystemExit(0)
        self.journal.runlog.finish(self.state.global_step, saved=False)
        return output

    def sampling(self) -> AbstractContextManager[None]:
        """A context that training runs within, for trainers whose engine has to know when it begins and ends."""
        return nullcontext()

    def evaluate(self, eval_dataset: Any = None, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Evaluate as the base class does. An error leaves a clean terminal.

        Args:
            eval_dataset: as the trainer takes it: a data set, rows, or names. None: the data set of the trainer.
        """
        with display_closed(self):
            return super().evaluate(self._held_out(eval_dataset), *args, **kwargs)

    def get_batch_samples(self, epoch_iterator, num_batches, device):
        """The micro-batches of one optimizer step, with their numbers. Empty where a resumed run is finished."""
        if self.control.should_training_stop:
            return [], None
        batches, items = self.draw_step(epoch_iterator, num_batches, device)
        if batches:
            self.journal.begin_step()
            self.begin_step(batches)
        return [{**inputs, "micro_batch": number} for number, inputs in enumerate(batches)], items

    def draw_step(self, epoch_iterator: Iterator[Any], num_batches: int, device: Any) -> tuple[list[Any], Any]:
        """Draw the micro-batches of one optimizer step. The wait for them is measured."""
        with self.meter.wait("time/data_wait_s"):
            return super().get_batch_samples(epoch_iterator, num_batches, device)

    def begin_step(self, batches: Sequence[dict[str, Any]]) -> None:
        """Begin an optimizer step on these micro-batches."""
        raise NotImplementedError

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch=None) -> Tensor:
        """Train on one micro-batch, forward and backward. ``compute_loss`` starts the clock of the backward pass.

        Raises:
            FloatingPointError: after the last one of a step, as ``FiniteSteps.check`` does.
            NoGradientError: after the last one of a step, as ``GradientReach.check`` does.
        """
        loss = super().training_step(model, inputs, num_items_in_batch)
        self.meter.stop("time/backward_s")
        if self.accelerator.sync_gradients:
            self.gradient_reach.check(self.state.global_step + 1)
            self.finite_steps.check(model, self.state.global_step + 1)
        return torch.nan_to_num(loss, 0.0, 0.0, 0.0)  # the Trainer sums losses up, and one NaN would stay in the sum

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log the Trainer's numbers with the metrics since the last entry."""
        if "loss" in logs:
            self.meter.max("memory/peak_gb", peak_memory(self.args.device)[0] / 1e9)
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

    def save_last_step(self) -> None:
        """Save a checkpoint of the last step, unless there is one. Its weights must not have changed since.

        Nothing is saved between steps on the same completions: such a checkpoint lacks them, and cannot be resumed.
        """
        folder = Path(self.args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        can_be_resumed = self.state.global_step % self.args.num_iterations == 0
        if self.state.global_step and can_be_resumed and not is_sealed(folder):
            self._save_checkpoint(self.model, trial=None)
            self.control = self.callback_handler.on_save(self.args, self.state, self.control)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        folder = Path(self._get_output_dir(trial=trial)) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        with whole_checkpoint(self, folder):
            super()._save_checkpoint(model, trial)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        if self.reference is not None and self.args.sync_ref_model and self.args.should_save:
            self.reference.save(output_dir)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if self.reference is not None and self.args.sync_ref_model and checkpoint is not None:
            self.reference.load(checkpoint)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        if self._engine_loads():
            with explained_misfit(resume_from_checkpoint):
                super()._load_from_checkpoint(resume_from_checkpoint, model)
        else:
            self._load_saved(resume_from_checkpoint)

    def _load_best_model(self) -> None:
        if self._engine_loads():
            super()._load_best_model()
        else:
            self._load_saved(self.state.best_model_checkpoint)

    def _load_saved(self, checkpoint: str) -> None:
        """Load the weights or the adapter of a checkpoint, strictly, which the Trainer does not."""
        if unwrap(self.model) is self.model:
            load_weights(self.model, checkpoint)
        else:
            load_adapter_weights(self.model, checkpoint, trainable=True)

    def _engine_loads(self) -> bool:
        """Whether DeepSpeed or FSDP reads checkpoints, in its own form."""
        return self.is_deepspeed_enabled or self.is_fsdp_enabled

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        if state_dict is not None:  # engines gather a tied tensor once for each of its names
            tied = unwrap(self.model).all_tied_weights_keys
            state_dict = {name: value for name, value in state_dict.items() if name not in tied}
        super()._save(output_dir, state_dict)
        if self.args.should_save:
            describe_model(self, output_dir or self.args.output_dir)

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Write the Trainer's own card, as a push to the hub does, and our sections into it."""
        super().create_model_card(*args, **kwargs)
        if self.is_world_process_zero():
            describe_model(self, self.args.output_dir)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        if self.is_world_process_zero():  # the Trainer copies weights and processor from the checkpoint, but no card
            describe_model(self, self.args.output_dir)
        super()._push_from_checkpoint(checkpoint_folder)

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """Not counted: the library's estimate knows neither vision nor groups."""
        return 0

    def _track_num_input_tokens(self, inputs: dict[str, Any]) -> None:
        """Count the prompts' tokens, each prompt once (``include_num_input_tokens_seen``)."""
        prompts = inputs["prompts"]
        super()._track_num_input_tokens({"input_ids": prompts.input_ids, "attention_mask": prompts.attention_mask})

    def _get_dataloader(self, *args: Any, **kwargs: Any) -> DataLoader:
        loader = super()._get_dataloader(*args, **kwargs)
        if loader.num_workers:
            own = getattr(loader, "base_dataloader", loader)  # accelerate wraps it
            own.worker_init_fn = partial(begin_worker, own.worker_init_fn)
            atexit.register(kill_workers, os.getpid())  # before multiprocessing's own, which was registered earlier
        return loader

    def _get_train_sampler(self, train_dataset: Dataset | None = None) -> EpochSampler | RepeatedSteps:
        dataset = self.train_dataset if train_dataset is None else train_dataset
        return build_sampler(dataset, self.args, self._train_batch_size, self.data_collator)

    def _held_out(self, given: Any) -> Any:
        """The samples to evaluate on, made of the rows or names that ``evaluate`` was given.

        None, a ``GRPODataset`` and the name of one of the trainer's data sets stay: the Trainer knows them.
        """
        by_name = isinstance(given, str) and isinstance(self.eval_dataset, dict) and given in self.eval_dataset
        if given is None or by_name or isinstance(given, GRPODataset):
            return given
        made = build_dataset(given, self.args, self.rewards, self.data_collator, training=False)
        return self.narrowed(made, "evaluate")

    def _get_eval_sampler(self, eval_dataset: Dataset) -> SequentialSampler | None:
        # In order, whatever the order of training; several processes get their shares of it from accelerate.
        return SequentialSampler(eval_dataset) if self.args.world_size <= 1 else None


def _check_processor(processor: Any) -> None:
    """Raise TypeError for a tokenizer, which scripts for text give in the place of a processor."""
    if not hasattr(processor, "tokenizer"):
        raise TypeError(
            f"processing_class: expected the processor of a Qwen-VL model (AutoProcessor), which reads clips too, got "
            f"{type(processor).__name__}; leave it out for the one beside the model"
        )
