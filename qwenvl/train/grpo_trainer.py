"""GRPO on the Hugging Face Trainer: the wiring of one training step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor, nn
from torch.utils.data import Dataset, SequentialSampler
from transformers import ProcessorMixin, TrainerCallback, set_seed
from transformers.trainer_utils import EvalLoopOutput

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.data.collator import GRPOCollator
from qwenvl.data.options import PromptOptions
from qwenvl.data.order import EpochSampler, RepeatedSteps
from qwenvl.data.saved_processor import PromptSettings, processor_as_trained
from qwenvl.grpo.chosen import objective_of
from qwenvl.model.loading import load_processor, parameter_groups, unwrap
from qwenvl.model.logprobs import tokens_within
from qwenvl.model.reference import Reference
from qwenvl.model.sharding import settle_fsdp, whole_weights
from qwenvl.model.vision import blank_vision
from qwenvl.train.assemble import (
    build_collector,
    build_dataset,
    build_frame_cache,
    build_policy,
    build_rewards,
    build_sampler,
)
from qwenvl.train.callbacks import install_callbacks
from qwenvl.train.evaluation import ScoredPrompt, evaluation_metrics, in_budget, scored_prompts
from qwenvl.train.fast_paths import build_paths
from qwenvl.train.journal import Journal
from qwenvl.train.meter import Meter
from qwenvl.train.model_card import DescribedTrainer
from qwenvl.train.parity import check_parity, wants_parity
from qwenvl.train.run.checkpoints import start_from_weights
from qwenvl.train.run.resumable import ResumableTrainer
from qwenvl.train.step import Experience, Step
from qwenvl.types import PromptBatch

RewardFunction = Callable[..., list[float | None]]


class GRPOTrainer(ResumableTrainer, DescribedTrainer):
    """Teaches a Qwen-VL model by Group Relative Policy Optimization (arXiv:2402.03300).

    For each prompt the policy samples ``grpo_sample_size`` completions, the rewards score them, each completion's
    advantage is its reward relative to its group, and the loss pushes the policy towards the better ones while a KL
    penalty keeps it near the reference, the model as it was before training.

    Args:
        model: a checkpoint folder or hub name, or a model. None for ``args.model_name_or_path``.
        args: the settings. Batch sizes count prompts.
        train_dataset, eval_dataset: data sets of ``qwenvl.data``, or what ``dataset_use`` takes: catalog names or paths
            of annotation files. None for ``args.dataset_use`` and ``args.eval_dataset_use``. Those for evaluation may
            be several, by name.
        processing_class: the processor. None for the one beside the model.
        reward_funcs: names of the table or functions ``f(completions, **columns) -> list[float | None]``. None for
            ``format`` and ``accuracy``.
        reward_weights: one for each of ``reward_funcs``.
        callbacks: more callbacks of transformers.
        peft_config: an adapter to train instead of the whole model.

    Example:
        >>> trainer = GRPOTrainer("Qwen/Qwen2.5-VL-3B-Instruct", GRPOConfig("runs/sop", dataset_use="data/sop.json"))
        >>> trainer.train()
    """

    # What compute_loss returns is divided by the number of micro-batches, in every version of transformers.
    loss_is_scaled_for_ga = False

    def __init__(
        self,
        model: str | Path | nn.Module | None = None,
        args: GRPOConfig | None = None,
        train_dataset: Dataset | str | Path | None = None,
        eval_dataset: Dataset | str | Path | dict[str, Dataset | str | Path] | None = None,
        processing_class: ProcessorMixin | None = None,
        reward_funcs: Sequence[str | RewardFunction] | None = None,
        reward_weights: Sequence[float] | None = None,
        callbacks: list[TrainerCallback] | None = None,
        peft_config: Any = None,
    ):
        args = args or GRPOConfig()
        args._n_gpu = min(args.n_gpu, 1)  # several GPUs in one process would mean DataParallel; torchrun is for those
        set_seed(args.seed)  # before adapters get their random weights
        policy = build_policy(model, args, peft_config)
        bare = unwrap(policy)
        processor = processing_class or load_processor(bare.name_or_path)
        rubric = build_rewards(args, reward_funcs, reward_weights)
        self.paths = build_paths(args, policy, processor.tokenizer)
        collator = GRPOCollator(processor, PromptOptions.of(args))
        frame_cache = build_frame_cache(args, collator)
        build = partial(build_dataset, args=args, rubric=rubric, limit=collator.limit, frame_cache=frame_cache)
        train_dataset = build(train_dataset or args.dataset_use, training=True)
        self.prompt_settings = PromptSettings.of(args, train_dataset, bare.name_or_path)
        super().__init__(
            model=policy,
            args=args,
            data_collator=collator,
            train_dataset=train_dataset,
            eval_dataset=build(eval_dataset or args.eval_dataset_use, training=False),
            processing_class=processor_as_trained(processor, self.prompt_settings),
            callbacks=callbacks,
        )
        self.model_accepts_loss_kwargs = False  # for versions that do not know loss_is_scaled_for_ga
        with_reference = args.grpo_beta > 0
        rounded_to = settle_fsdp(
            self.accelerator,
            policy,
            asked=bool(args.fsdp),
            copies_policy=with_reference and bare is policy,
            output_dir=args.output_dir,
        )
        self.reference = Reference(policy, dtype=rounded_to).to(args.device) if with_reference else None
        if args.start_from_weights is not None:
            start_from_weights(policy, args.start_from_weights)
        self.meter = Meter(args.device)
        self.collector = build_collector(args, self.paths, bare, processor, rubric, self.accelerator, self.meter)
        self.objective = objective_of(args, args.generation_max_length)
        self.journal = Journal(args, self.meter, self.train_dataset, self.paths.cache)
        install_callbacks(self, self.journal)
        self._logit_chunk_tokens = tokens_within(args.logit_memory_gb, bare.config.get_text_config().vocab_size)
        self.step: Step | None = None  # None until completions are sampled for what was drawn
        self._drawn: list[PromptBatch] = []

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, PromptBatch], return_outputs: bool = False, num_items_in_batch=None
    ) -> Tensor:
        """The GRPO loss of a micro-batch of prompts. Those of a step's micro-batches average to the loss of the step.

        The first micro-batch of a step has completions sampled, scored and compared for the whole step.

        Raises:
            FloatingPointError: if the loss is not a finite number: the weights would be lost for good.
            ParityError: if sampler and trainer disagree about the same tokens (``check_parity``).
        """
        step = self._step_of(inputs["prompts"])
        experience = step.experience_of(inputs["prompts"])
        with self.meter.time("time/logp_s"):
            logprobs = self._logprobs(model, experience)
            if experience.old_logprobs is None:  # fresh completions: the policy that sampled them is this one
                experience.old_logprobs = logprobs.detach()
                experience.ref_logprobs = self._reference_logprobs(experience)
                self._check_parity(experience)
        output = self.objective(experience.loss_inputs(logprobs), step.counts)
        self.journal.trained(step, experience, output)
        if not torch.isfinite(output.loss):
            raise FloatingPointError(
                f"step {self.state.global_step + 1}: the loss is {output.loss.item()}; {output.metrics}"
            )
        self.meter.start("time/backward_s")
        # The Trainer divides by the micro-batches of a process, and gradients are averaged over processes.
        return output.loss * step.counts.micro_batches

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch=None) -> Tensor:
        """One micro-batch, forward and backward."""
        loss = super().training_step(model, inputs, num_items_in_batch)
        self.meter.stop("time/backward_s")
        return loss

    def evaluation_loop(
        self, dataloader, description, prediction_loss_only=None, ignore_keys=None, metric_key_prefix="eval"
    ) -> EvalLoopOutput:
        """Samples ``eval_sample_size`` completions per prompt (greedy if 1), scores them, averages over prompts."""
        self.callback_handler.eval_dataloader = dataloader
        rows: list[ScoredPrompt] = []
        size, budget = self.args.eval_sample_size, self.args.rollout_token_budget
        groups = in_budget(
            (inputs["prompts"] for inputs in dataloader),
            new_tokens=size * self.args.generation_max_length,
            budget=budget if self.args.evaluates_by_tokens else None,
        )
        with whole_weights(self.model, self.model_wrapped):  # once: processes may have different numbers of groups
            for batches in groups:
                answers = self.collector.answer(self.model, batches, size, self.state)
                for batch, (rollout, rewards) in zip(batches, answers, strict=True):
                    rows += scored_prompts(batch, rewards)
                    self.journal.evaluated(self.state.global_step, metric_key_prefix, batch, rollout, rewards)
                    self.control = self.callback_handler.on_prediction_step(self.args, self.state, self.control)
        rows = gather_object(rows)
        metrics = evaluation_metrics(rows, metric_key_prefix)
        return EvalLoopOutput(predictions=None, label_ids=None, metrics=metrics, num_samples=len(rows))

    def get_batch_samples(self, epoch_iterator, num_batches, device):
        """Draws the micro-batches of one optimizer step, or the empty places of a further step on the last ones."""
        batches, items = super().get_batch_samples(epoch_iterator, num_batches, device)
        if not batches:
            return batches, items
        places = [inputs["prompts"] for inputs in batches]
        self.meter.step()
        if self.state.global_step % self.args.num_iterations:
            self.step = self.step.again(places)
        else:
            self.step, self._drawn = None, places
            for batch in places:
                self.journal.drawn(batch)
        return batches, items

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Adds what was measured since the last entry to the Trainer's own."""
        if "loss" in logs:
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

    def _step_of(self, batch: PromptBatch) -> Step:
        """The step that a micro-batch belongs to. The first micro-batch of a step has all of them collected."""
        if self.step is None or not self.is_in_train:
            places = self._drawn if self.is_in_train else [batch]  # a script may call compute_loss on its own
            with whole_weights(self.model, self.model_wrapped):
                experiences = self.collector.collect(self.model, places, self.state)
            self.step = Step.of(places, experiences)
            for experience in experiences:
                self.journal.collected(self.state.global_step + 1, experience)
        return self.step

    def _logprobs(self, model: nn.Module, experience: Experience) -> Tensor:
        prompts, rollout = experience.prompts, experience.rollout
        if self.args.world_size > 1:
            prompts = blank_vision(model, prompts, encoded=self.paths.encode is not None)
        with self.accelerator.autocast():  # of itself the reference has none, nor has the policy under FSDP
            return self.paths.completion_logprobs(
                model,
                prompts,
                rollout.completion_ids,
                rollout.completion_mask,
                temperature=self.args.generation_temperature,
                logit_chunk_tokens=self._logit_chunk_tokens,
            )

    def _reference_logprobs(self, experience: Experience) -> Tensor | None:
        if self.reference is None:
            return None
        with self.reference.model() as reference:
            return self._logprobs(reference, experience)

    def _check_parity(self, experience: Experience) -> None:
        if wants_parity(self.args, self.state.global_step):
            half = self.args.bf16 or self.args.fp16
            check_parity(experience.rollout, experience.old_logprobs, half_precision=half, meter=self.meter)

    def _get_train_sampler(self, train_dataset: Dataset | None = None) -> EpochSampler | RepeatedSteps:
        dataset = self.train_dataset if train_dataset is None else train_dataset
        return build_sampler(dataset, self.args, self._train_batch_size, self.data_collator)

    def _get_eval_sampler(self, eval_dataset: Dataset) -> SequentialSampler | None:
        # In order, whatever the order of training; several processes get their shares of it from accelerate.
        return SequentialSampler(eval_dataset) if self.args.world_size <= 1 else None

    def _get_grad_norm(self, model: nn.Module, grad_norm=None):
        norm = super()._get_grad_norm(model, grad_norm)
        # With fp16 the loss scaler skips such a step; otherwise it would turn every weight into NaN.
        if norm is not None and not self.args.fp16 and not torch.isfinite(torch.as_tensor(norm)):
            raise FloatingPointError(
                f"step {self.state.global_step + 1}: the gradient's norm is {norm}; nothing updated"
            )
        return norm
