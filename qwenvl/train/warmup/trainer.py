"""The warm-up on the Hugging Face Trainer: cross-entropy on targets, by the paths and positions of training."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from itertools import count
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor, nn
from transformers import ProcessorMixin, TrainerCallback, TrainerState
from transformers.trainer_utils import EvalLoopOutput

from qwenvl.config.grpo_config import WarmupConfig, require_config
from qwenvl.config.own_options import STOP_STEPS
from qwenvl.console import say
from qwenvl.data.options import PromptOptions
from qwenvl.grpo.loss import StepCounts
from qwenvl.model.inputs import InputBuilder, PromptInputs
from qwenvl.model.loading import evaluating, merged_weights, unwrap
from qwenvl.model.positions import first_positions, position_rule
from qwenvl.model.sharding import whole_weights
from qwenvl.rollout.turns import GrowingCompletion
from qwenvl.step.encode import Encode
from qwenvl.step.kernels import build_likelihood
from qwenvl.train.card import describe_model
from qwenvl.train.policy_trainer import PolicyTrainer
from qwenvl.train.warmup.targets import TargetCollator, narrowed, targets_of
from qwenvl.types import PromptBatch


class WarmupTrainer(PolicyTrainer):
    """Teaches a Qwen-VL model to say the targets of its prompts, so that training by rewards has something to prefer.

    The loss is the mean negative log-prob of the target tokens, end tokens included, over the whole optimizer step. The
    prompts are those of training: the same frames, positions, parts that learn and adapters.

    Args:
        model, train_dataset, eval_dataset, processing_class, callbacks, peft_config: as for ``GRPOTrainer``.
        args: the settings.

    Example:
        >>> args = WarmupConfig("runs/warm", dataset_use="data/sop.json", stop_below_loss=0.5)
        >>> WarmupTrainer("Qwen/Qwen3.5-4B", args).train()
    """

    trained_by = "a supervised warm-up"

    def __init__(
        self,
        model: str | Path | nn.Module | None = None,
        args: WarmupConfig | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: ProcessorMixin | None = None,
        callbacks: list[TrainerCallback] | None = None,
        peft_config: Any = None,
    ):
        args = WarmupConfig() if args is None else args
        require_config(args, WarmupConfig)
        super().__init__(
            args,
            targets_of(args),
            model=model,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=processing_class,
            callbacks=callbacks,
            peft_config=peft_config,
        )
        self.likelihood = build_likelihood(
            args,
            self.kernels,
            unwrap(self.model),
            self.accelerator,
            temperature=1.0,
            observe=self.gradient_reach.observe,
        )
        if args.stop_below_loss is not None:
            self.add_callback(StopBelow(args.stop_below_loss))
        self.encode = Encode(
            device=args.device,
            build_inputs=InputBuilder.of(position_rule(unwrap(self.model).config), self.data_collator.processor),
            encode_vision=self.kernels.encode_vision,
            autocast=self.accelerator.autocast,
        )
        self._counts = StepCounts(0, 0, 1)  # of the step that is being trained

    def make_collator(self, processor: ProcessorMixin, args: WarmupConfig) -> TargetCollator:
        return TargetCollator(processor, PromptOptions.of(args), self.rewards, args)

    def narrowed(self, dataset: Any, flag: str) -> Any:
        return narrowed(dataset, self.rewards, flag)

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch=None
    ) -> Tensor:
        """The cross-entropy of a micro-batch. Those of a step's micro-batches average to the loss of the step."""
        counts = self._counts if self.is_in_train else step_counts([inputs])  # a script may call it on its own
        with self.meter.time("time/logp_s"):
            encodes_once = self.kernels.encode_vision is not None
            with whole_weights(self.model, self.model_wrapped) if encodes_once else nullcontext():
                prompts = self.encoded(model, inputs["prompts"])
            loss = -self.target_logprobs(model, inputs, prompts).sum()
        nats = loss.item()
        lengths = [length for length in inputs["target_mask"].sum(1).tolist() if length]
        self.journal.trained_on.append((inputs["prompts"], nats, {"target/loss": nats}))
        self.journal.seen(inputs["prompts"])
        for length in lengths:
            self.meter.mean("target/tokens", length)
        self.meter.mean("target/loss", nats / max(1, sum(lengths)), weight=sum(lengths))
        self.meter.start("time/backward_s")
        # The Trainer divides by the micro-batches of a process, and gradients are averaged over processes.
        return loss / max(1, counts.tokens) * counts.micro_batches

    def encoded(self, model: nn.Module, batch: PromptBatch) -> PromptInputs:
        """The model's inputs, features in the place of pixels where the tower runs once per prompt.

        Engines that split the model must have its weights whole here: not every process has pictures. A batch without
        prompts becomes a single token, for the forward and backward that other processes wait for.
        """
        if not len(batch):
            return PromptInputs.of_text(torch.zeros(1, 1, dtype=torch.long, device=self.args.device))
        return self.encode.inputs(model, batch)

    def target_logprobs(self, model: nn.Module, inputs: dict[str, Any], prompts: PromptInputs | None = None) -> Tensor:
        """N x T log-probs of the targets, 0 where a row has none. Those of a batch without prompts are 0.

        Args:
            prompts: of the batch, as ``encoded`` gives them. None has them made.
        """
        ids = inputs["target_ids"]
        mask = inputs["target_mask"]
        prompts = self.encoded(model, inputs["prompts"]) if prompts is None else prompts
        if not len(inputs["prompts"]):
            token = prompts.input_ids
            return 0 * self.likelihood(model, prompts, token, token == 0).logprobs
        whole = None
        if "pieces" in inputs:
            appended = self.encoded(model, inputs["appended"]) if len(inputs["appended"]) else None
            whole = laid_out(prompts, ids, inputs["pieces"], appended)
        return self.likelihood(model, prompts, ids, mask, whole=whole).logprobs

    def begin_step(self, batches: Sequence[dict[str, Any]]) -> None:
        """Counts the targets of the step over all processes."""
        self._counts = step_counts(batches)
        for inputs in batches:
            self.journal.drawn(inputs["prompts"])

    def evaluation_loop(
        self, dataloader, description, prediction_loss_only=None, ignore_keys=None, metric_key_prefix="eval"
    ) -> EvalLoopOutput:
        """The mean negative log-prob of the target tokens of all prompts, each prompt once."""
        self.callback_handler.eval_dataloader = dataloader
        rows: list[tuple[str, float, int]] = []
        with whole_weights(self.model, self.model_wrapped), evaluating(self.model), torch.no_grad():
            for inputs in dataloader:
                inputs = self._prepare_inputs(inputs)
                logprobs = self.target_logprobs(self.model, inputs)
                mask = inputs["target_mask"]
                size = max(1, len(inputs["prompts"]))
                losses, counts = ([own.sum().item() for own in each.chunk(size)] for each in (-logprobs, mask))
                places = [record.where for record in inputs["prompts"].records]
                rows += zip(places, losses, counts, strict=False)  # a batch without prompts has a row of its own
                self.journal.left_out(inputs["prompts"])
                self.control = self.callback_handler.on_prediction_step(self.args, self.state, self.control)
        once = {where: (loss, tokens) for where, loss, tokens in gather_object(rows)}  # processes may share a prompt
        loss, tokens = (sum(column) for column in zip(*once.values(), strict=True)) if once else (0.0, 0)
        metrics = {f"{metric_key_prefix}_loss": loss / max(1, tokens), f"{metric_key_prefix}_loss_n": len(once)}
        return EvalLoopOutput(predictions=None, label_ids=None, metrics=metrics, num_samples=len(once))

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Saves the model, with the adapters of ``--lora_enable`` folded in: training by rewards starts from the whole.

        Checkpoints keep the adapters as they are.
        """
        if _internal_call or not self.args.lora_enable:
            super().save_model(output_dir, _internal_call)
            return
        folder = output_dir or self.args.output_dir
        with whole_weights(self.model, self.model_wrapped):
            if self.args.should_save:
                unwrap(self.model).save_pretrained(folder, state_dict=merged_weights(self.model))
                self.processing_class.save_pretrained(folder)
                describe_model(self, folder)


def laid_out(
    prompts: PromptInputs, ids: Tensor, pieces: Sequence[Sequence[int]], appended: PromptInputs | None
) -> PromptInputs:
    """Targets as a model takes them behind their prompts, padded on the right.

    Args:
        ids, pieces: ``target_ids`` and ``pieces`` of a ``TargetCollator``.
        appended: all that is appended, one row each, with positions that count from 0. None where nothing is.
    """
    starts = first_positions(prompts.position_ids, len(ids) // len(prompts)).tolist()
    number = count()
    rows = []
    for row, lengths, start in zip(ids, pieces, starts, strict=True):
        rows.append(GrowingCompletion(start))
        for k, piece in enumerate(row[: sum(lengths)].split(lengths)):
            of_tool = k % 2 and appended is not None
            rows[-1].add(appended.select([next(number)]) if of_tool else PromptInputs.of_text(piece[None]))
    return PromptInputs.join([row.whole() for row in rows], left=False)


def step_counts(batches: Sequence[dict[str, Any]]) -> StepCounts:
    """How many targets and tokens the micro-batches of a step have. All processes must call this together."""
    masks = [inputs["target_mask"] for inputs in batches]
    own = (sum(int(mask.any(1).sum()) for mask in masks), sum(int(mask.sum()) for mask in masks))
    by_process = gather_object([own])
    targets, tokens = (sum(column) for column in zip(*by_process, strict=True))
    return StepCounts(targets, tokens, micro_batches=len(batches) * len(by_process))


class StopBelow(TrainerCallback):
    """Ends training when the mean loss of the last ten steps is below ``loss``, and has a checkpoint of it saved.

    It reads the losses from the log that checkpoints hold: a resumed run ends where the uninterrupted one would have.
    """

    def __init__(self, loss: float):
        self._loss = loss

    def on_train_begin(self, args, state, control, **kwargs):
        """A resumed run that has reached the loss already ends at once."""
        if self._reached(state):
            control.should_training_stop = True

    def on_log(self, args, state, control, logs=None, **kwargs):
        """Looks at the last steps."""
        if "loss" in logs and self._reached(state):
            below = f"the mean loss of {STOP_STEPS} steps is below {self._loss:g}"
            say(f"step {state.global_step}: {below}: the warm-up ends")
            control.should_training_stop = True
            control.should_save = args.save_strategy != "no"

    def _reached(self, state: TrainerState) -> bool:
        losses = [row["loss"] for row in state.log_history if "loss" in row][-STOP_STEPS:]
        return len(losses) == STOP_STEPS and sum(losses) / STOP_STEPS < self._loss
