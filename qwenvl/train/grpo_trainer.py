"""GRPO on the Hugging Face Trainer: the wiring of one training step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from accelerate.utils import gather_object
from torch import Tensor, nn
from transformers import ProcessorMixin, TrainerCallback
from transformers.trainer_utils import EvalLoopOutput

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.grpo.chosen import objective_of
from qwenvl.model.loading import unwrap
from qwenvl.model.logprobs import EntropyUse, Likelihood
from qwenvl.train.assemble import build_collector, build_rewards
from qwenvl.train.collect.ahead import sampled_ahead
from qwenvl.train.collect.filtering import filtering
from qwenvl.train.collect.penalty import KlPenalty
from qwenvl.train.evaluation import ScoredPrompt, evaluation_metrics, in_budget, scored_prompts
from qwenvl.train.parity import ParityCheck
from qwenvl.train.parts import build_parts
from qwenvl.train.run.state.drawn_ahead import DrawsAhead
from qwenvl.train.run.state.entropy_target import followed
from qwenvl.train.run.state.pass_rates import build_pass_rates
from qwenvl.train.step import Experience, Step, TokenRules
from qwenvl.types import PromptBatch

RewardFunction = Callable[..., list[float | None]]


class GRPOTrainer(DrawsAhead):
    """Teaches a Qwen-VL model by Group Relative Policy Optimization (arXiv:2402.03300).

    For each prompt the policy samples ``grpo_sample_size`` completions, the rewards score them, each completion's
    advantage is its reward relative to its group, and the loss pushes the policy towards the better ones while a KL
    penalty keeps it near the reference, the model as it was before training.

    Args:
        model: a checkpoint folder or hub name, or a model. None for ``args.model_name_or_path``.
        args: the settings. Batch sizes count prompts.
        train_dataset, eval_dataset: what ``dataset_use`` takes, rows (a list of dicts, data sets of `datasets`) or a
            ``GRPODataset``. None for ``args.dataset_use`` and ``args.eval_dataset_use``. Those for evaluation may be
            several, by name.
        processing_class: the processor. None for the one beside the model.
        reward_funcs: names of the table or functions ``f(completions, **columns) -> list[float | None]``. None for
            ``format`` and ``accuracy``.
        reward_weights: one for each of ``reward_funcs``.
        callbacks: more callbacks of transformers.
        peft_config: an adapter to train instead of the whole model.

    Example:
        >>> trainer = GRPOTrainer("Qwen/Qwen3.5-4B", GRPOConfig("runs/sop", dataset_use="data/sop.json"))
        >>> trainer.train()
    """

    evaluated_as = "eval_total_reward"

    def __init__(
        self,
        model: str | Path | nn.Module | None = None,
        args: GRPOConfig | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: ProcessorMixin | None = None,
        reward_funcs: Sequence[str | RewardFunction] | None = None,
        reward_weights: Sequence[float] | None = None,
        callbacks: list[TrainerCallback] | None = None,
        peft_config: Any = None,
    ):
        args = args or GRPOConfig()
        rubric = build_rewards(args, reward_funcs, reward_weights)
        parts = build_parts(args, rubric, model, train_dataset, eval_dataset, processing_class, peft_config)
        super().__init__(parts, args, with_reference=args.grpo_beta > 0, callbacks=callbacks)
        bare, accelerator = unwrap(parts.policy), self.accelerator
        penalty = KlPenalty.of(args, self.reference, self.completion_likelihood)
        collector = build_collector(args, parts.paths, bare, parts.processor, rubric, accelerator, self.meter, penalty)
        self.pass_rates = build_pass_rates(args, parts.train_dataset, rubric, self.meter.mean)
        if self.pass_rates is not None:
            self.difficulty = self.pass_rates.difficulty
            self.add_callback(self.pass_rates)
        self.collector = sampled_ahead(filtering(collector, args, parts, self.meter, self.difficulty), self.draws)
        self.objective = objective_of(args, args.generation_max_length)
        self.check_parity = ParityCheck(args, self.meter, self.journal.runlog)
        self.step: Step | None = None  # None until completions are sampled for what was drawn

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, PromptBatch], return_outputs: bool = False, num_items_in_batch=None
    ) -> Tensor:
        """The GRPO loss of a micro-batch of prompts. Those of a step's micro-batches average to the loss of the step.

        The first micro-batch of a step has completions sampled, scored and compared for the whole step.

        Raises:
            ParityError: if sampler and trainer disagree about the same tokens (``check_parity``).
        """
        step = self._step_of(inputs["prompts"])
        experience = step.experience_of(inputs["prompts"])
        with self.meter.time("time/logp_s"):
            likelihood = self._likelihood(model, experience, "trained" if self.objective.entropy_coef else "measured")
            if experience.old_logprobs is None:  # fresh completions: the policy that sampled them is this one
                experience.old_logprobs = experience.first_logprobs(likelihood)
                experience.ref_logprobs = self._reference_logprobs(experience)
                self.check_parity(self.state.global_step, experience)
        output = self.objective(experience.loss_inputs(likelihood), step.counts)
        self.journal.trained(step, experience, output)
        self.meter.start("time/backward_s")
        # The Trainer divides by the micro-batches of a process, and gradients are averaged over processes.
        return output.loss * step.counts.micro_batches

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
        with self.collector.ready(self.model, self.model_wrapped, self.version):  # once: numbers of groups may differ
            for batches in groups:
                answers = self.collector.answer(self.model, batches, size, self.state)
                for batch, (rollout, rewards) in zip(batches, answers, strict=True):
                    rows += scored_prompts(batch, rewards)
                    self.journal.evaluated(self.state.global_step, metric_key_prefix, batch, rollout, rewards)
                    self.control = self.callback_handler.on_prediction_step(self.args, self.state, self.control)
        rows = gather_object(rows)
        metrics = evaluation_metrics(rows, metric_key_prefix, needed=self.args.metric_for_best_model)
        return EvalLoopOutput(predictions=None, label_ids=None, metrics=metrics, num_samples=len(rows))

    def get_batch_samples(self, epoch_iterator, num_batches, device):
        """Draws the micro-batches of one optimizer step, or the empty places of a further step on the last ones."""
        batches, items = super().get_batch_samples(epoch_iterator, num_batches, device)
        if not batches:
            return batches, items
        places = [inputs["prompts"] for inputs in batches]
        self.journal.begin_step(len(places))
        if self.state.global_step % self.args.num_iterations:
            self.step = self.step.again(places)
        else:
            self.step, self.draws.present = None, places
            for batch in places:
                self.journal.drawn(batch)
        return batches, items

    def _step_of(self, batch: PromptBatch) -> Step:
        """The step that a micro-batch belongs to. The first micro-batch of a step has all of them collected."""
        if self.step is None or not self.is_in_train:
            places = self.draws.present if self.is_in_train else [batch]  # a script may call compute_loss on its own
            with self.collector.ready(self.model, self.model_wrapped, self.version):
                experiences = self.collector.collect(self.model, places, self.state)
            self.step = Step.of(places, experiences, TokenRules.of(self.args), self.meter.wait)
            if self.is_in_train:
                self.objective = followed(self.callback_handler, self.objective, self.step.counts)
            for experience in experiences:
                self.journal.collected(self.state.global_step + 1, experience)
                if self.pass_rates is not None:
                    self.pass_rates.saw(experience)
        return self.step

    def _likelihood(self, model: nn.Module, experience: Experience, entropy: EntropyUse = "none") -> Likelihood:
        ids, mask = experience.rollout.completion_ids, experience.rollout.completion_mask
        temperature = self.args.generation_temperature
        return self.completion_likelihood(model, experience.prompts, ids, mask, temperature, entropy)

    def _reference_logprobs(self, experience: Experience) -> Tensor | None:
        if self.reference is None or experience.ref_logprobs is not None:  # the reward has asked it (kl_in_reward)
            return experience.ref_logprobs
        with self.reference.model() as reference:
            return self._likelihood(reference, experience).logprobs
