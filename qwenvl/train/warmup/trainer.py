"""The warm-up on the Hugging Face Trainer: cross-entropy on targets, by the paths and positions of training."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
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
from qwenvl.train.run.finite_steps import SKIPPED
from qwenvl.train.warmup.targets import TargetCollator, narrowed, targets_of
from qwenvl.types import PromptBatch


@dataclass(frozen=True)
class EncodedTargets:
    """A micro-batch as inputs of the model, with features in the place of pixels where the tower runs once per prompt.

    Attributes:
        appended: the answers of tools between the turns of targets, one row each. None without any.
    """

    prompts: PromptInputs
    appended: PromptInputs | None


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
        """The cross-entropy of a micro-batch. The losses of a step's micro-batches average to its loss."""
        counts = self._counts if self.is_in_train else step_counts([inputs])  # a script may call it on its own
        with self.meter.time("time/logp_s"):
            # The tower runs outside of the model's own forward, where engines gather weights. Not every process has
            # pictures, in its prompts or in what tools have shown.
            encodes_once = self.kernels.encode_vision is not None
            with whole_weights(self.model, self.model_wrapped) if encodes_once else nullcontext():
                encoded = self.encoded(model, inputs)
            loss = -self.target_logprobs(model, inputs, encoded).sum()
        nats = loss.item()
        tokens = int(inputs["target_mask"].sum())
        self.journal.trained_on.append((inputs["prompts"], nats, {"target/loss": nats}))
        self.journal.seen(inputs["prompts"])
        for length in inputs["target_mask"].sum(1).tolist():
            if length:  # a prompt with fewer targets than another one has rows without tokens
                self.meter.mean("target/tokens", length)
        self.meter.mean("target/loss", nats / max(1, tokens), weight=tokens)
        self.meter.start("time/backward_s")
        # The Trainer divides by the micro-batches of a process, and gradients are averaged over processes.
        return loss / max(1, counts.tokens) * counts.passes

    def encoded(self, model: nn.Module, inputs: dict[str, Any]) -> EncodedTargets:
        """A micro-batch as inputs of the model. Engines that split the model must have its weights whole here.

        A batch without prompts becomes a single token, for the forward and backward that other processes wait for.
        """
        prompts: PromptBatch = inputs["prompts"]
        appended: PromptBatch | None = inputs.get("appended")
        if not len(prompts):
            token = torch.zeros(1, 1, dtype=torch.long, device=self.args.device)
            return EncodedTargets(PromptInputs.of_text(token), appended=None)
        answers = None
        if appended is not None and len(appended):
            answers = self.encode.inputs(model, appended)
        return EncodedTargets(self.encode.inputs(model, prompts), answers)

    def target_logprobs(self, model: nn.Module, inputs: dict[str, Any], encoded: EncodedTargets) -> Tensor:
        """N x T log-probs of the targets, 0 where a row has no token. A batch without prompts has a single 0."""
        ids = inputs["target_ids"]
        mask = inputs["target_mask"]
        if not len(inputs["prompts"]):
            token = encoded.prompts.input_ids  # 1 x 1
            return 0 * self.likelihood(model, encoded.prompts, token, token == 0).logprobs  # with a gradient, of 0
        whole = None
        if "pieces" in inputs:
            whole = laid_out(encoded.prompts, ids, inputs["pieces"], encoded.appended)
        return self.likelihood(model, encoded.prompts, ids, mask, whole=whole).logprobs

    def begin_step(self, batches: Sequence[dict[str, Any]]) -> None:
        """Count the targets of the step over all processes."""
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
                logprobs = self.target_logprobs(self.model, inputs, self.encoded(self.model, inputs))
                mask = inputs["target_mask"]
                size = max(1, len(inputs["prompts"]))
                losses = [own.sum().item() for own in (-logprobs).chunk(size)]  # one for each prompt
                counts = [own.sum().item() for own in mask.chunk(size)]
                places = [record.where for record in inputs["prompts"].records]
                rows += zip(places, losses, counts, strict=False)  # a batch without prompts has a row of its own
                self.journal.left_out(inputs["prompts"])
                self.control = self.callback_handler.on_prediction_step(self.args, self.state, self.control)
        once = {where: (loss, tokens) for where, loss, tokens in gather_object(rows)}  # processes may share a prompt
        loss = sum(loss for loss, _ in once.values())
        tokens = sum(tokens for _, tokens in once.values())
        metrics = {f"{metric_key_prefix}_loss": loss / max(1, tokens), f"{metric_key_prefix}_loss_n": len(once)}
        return EvalLoopOutput(predictions=None, label_ids=None, metrics=metrics, num_samples=len(once))

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model, with the adapters of ``--lora_enable`` folded in: training by rewards starts from the whole.

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
        appended: the answers of tools, one row each, with positions that count from 0. None without any.
    """
    group_size = len(ids) // len(prompts)
    starts = first_positions(prompts.position_ids, group_size).tolist()
    answers_used = 0
    rows = []
    for row, lengths, start in zip(ids, pieces, starts, strict=True):
        completion = GrowingCompletion(start)
        for number, piece in enumerate(row[: sum(lengths)].split(lengths)):
            if number % 2 == 1 and appended is not None:  # turns and answers alternate
                completion.add(appended.select([answers_used]))
                answers_used += 1
            else:
                completion.add(PromptInputs.of_text(piece[None]))
        rows.append(completion)
    return PromptInputs.join([row.whole() for row in rows], left=False)


def step_counts(batches: Sequence[dict[str, Any]]) -> StepCounts:
    """The numbers of targets and tokens in the micro-batches of a step. All processes must call this together."""
    masks = [inputs["target_mask"] for inputs in batches]
    own_targets = sum(int(mask.any(1).sum()) for mask in masks)
    own_tokens = sum(int(mask.sum()) for mask in masks)
    # Every process divides by the same two numbers: the loss is a mean over the whole optimizer step.
    by_process = gather_object([(own_targets, own_tokens)])
    return StepCounts(
        sum(targets for targets, _ in by_process),
        sum(tokens for _, tokens in by_process),
        passes=len(batches) * len(by_process),
    )


class StopBelow(TrainerCallback):
    """Ends training with a checkpoint when the mean loss of the last ten steps is below ``loss``.

    The losses are those of the log, which checkpoints hold: a resumed run ends where the uninterrupted one would have.
    """

    def __init__(self, loss: float):
        self._loss = loss

    def on_train_begin(self, args, state, control, **kwargs):
        """End a resumed run at once that has reached the loss already."""
        if self._reached(state):
            control.should_training_stop = True

    def on_log(self, args, state, control, logs=None, **kwargs):
        """End training if the last steps have reached the loss."""
        if "loss" in logs and self._reached(state):
            below = f"the mean loss of {STOP_STEPS} steps is below {self._loss:g}"
            say(f"step {state.global_step}: {below}: the warm-up ends")
            control.should_training_stop = True
            control.should_save = args.save_strategy != "no"

    def _reached(self, state: TrainerState) -> bool:
        """Whether there are enough steps, with a mean loss below the bound."""
        # A step that was left out has no loss: the Trainer logs 0.
        losses = [row["loss"] for row in state.log_history if "loss" in row and not row.get(SKIPPED)][-STOP_STEPS:]
        return len(losses) == STOP_STEPS and sum(losses) / STOP_STEPS < self._loss
