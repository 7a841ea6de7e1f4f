"""GRPO on the Hugging Face Trainer: the wiring of one training step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor, nn
from transformers import ProcessorMixin, TrainerCallback
from transformers.trainer_utils import EvalLoopOutput

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.data.dataset import GRPODataset
from qwenvl.grpo.loss import objective_of
from qwenvl.grpo.surrogates import completion_kl
from qwenvl.model.inputs import PromptInputs
from qwenvl.model.loading import unwrap
from qwenvl.model.logprobs import Comparison, EntropyUse, Likelihood, tokens_within
from qwenvl.model.sharding import sharded_modules
from qwenvl.rollout.engine import EngineWithWeights
from qwenvl.step.ahead import StepsAhead
from qwenvl.step.count import Experience, Step
from qwenvl.step.parity import ParityCheck
from qwenvl.step.refill import Refill
from qwenvl.train.assemble import build_collector, build_rewards, build_teacher, dataset_view, distills_alone
from qwenvl.train.callbacks import entropy_weight
from qwenvl.train.evaluation import ScoredPrompt, evaluation_metrics, in_budget, scored_prompts
from qwenvl.train.policy_trainer import PolicyTrainer
from qwenvl.types import PromptBatch, RolloutBatch

RewardFunction = Callable[..., list[float | None]]


class GRPOTrainer(PolicyTrainer):
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
        reward_funcs: names of the table or functions ``f(completions, **columns) -> list[float | None]``, one or
            several. None for ``format`` and ``accuracy``.
        reward_weights: one for each of ``reward_funcs``.
        callbacks: more callbacks of transformers.
        peft_config: an adapter to train instead of the whole model.

    Example:
        >>> trainer = GRPOTrainer("Qwen/Qwen3.5-4B", GRPOConfig("runs/sop", dataset_use="data/sop.json"))
        >>> trainer.train()
    """

    eval_metric = "eval_total_reward"

    def __init__(
        self,
        model: str | Path | nn.Module | None = None,
        args: GRPOConfig | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: ProcessorMixin | None = None,
        reward_funcs: str | RewardFunction | Sequence[str | RewardFunction] | None = None,
        reward_weights: Sequence[float] | None = None,
        callbacks: list[TrainerCallback] | None = None,
        peft_config: Any = None,
    ):
        args = args or GRPOConfig()
        rubric = build_rewards(args, reward_funcs, reward_weights)
        alone = distills_alone(args, reward_funcs, reward_weights)
        given = (model, train_dataset, eval_dataset, processing_class, callbacks, peft_config)
        super().__init__(args, rubric, *given, with_reference=args.grpo_beta > 0 or args.teacher == "reference")
        family = unwrap(self.model).config.model_type
        if args.engine_has_own_weights and args.correction == "none" and family == "qwen3_5":
            raise ValueError(
                f"--rollout_engine {args.rollout_engine}: vLLM rounds the linear attention of Qwen3.5 to half "
                "precision; weigh its tokens by --importance_correction token_truncate"
            )
        collator, engine = self.data_collator, self.paths.engine
        if (view := dataset_view(args)) is not None and self.train_dataset is not None:
            if not isinstance(self.train_dataset, GRPODataset):
                raise ValueError(f"--teacher {args.teacher} needs a GRPODataset, as load_dataset makes it")
            self.train_dataset = copy(self.train_dataset)
            self.train_dataset.view = view
        self.ahead = StepsAhead(engine, args) if args.async_rollouts else None
        self.collector = replace(
            build_collector(args, self.paths, unwrap(self.model), collator, rubric, self.accelerator, self.meter),
            engine=engine if self.ahead is None else self.ahead.engine,
            penalty=self._kl_penalties if args.kl_in_reward and self.reference is not None else None,
            refill=Refill.of(args, self.train_dataset, collator, rubric.names, self.meter),
            ahead=self.ahead,
            compares=not alone,
        )
        self.teacher = build_teacher(self)
        self.objective = objective_of(args, args.generation_max_length)
        if self.teacher is not None and self.teacher.bound is None:
            self.objective = replace(self.objective, distill=args.teacher_weight)
        self.check_parity = ParityCheck(args, self.meter)
        self.drawn: Sequence[PromptBatch] = ()  # the prompts of the present step
        self.step: Step | None = None  # None until completions are sampled for them

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch=None
    ) -> Tensor:
        """The GRPO loss of a micro-batch of prompts. Those of a step's micro-batches average to the loss of the step.

        The first micro-batch of a step has completions sampled, scored and compared for the whole step.

        Raises:
            ParityError: if sampler and trainer disagree about the same tokens (``check_parity``).
        """
        if self.ahead is not None:
            self.ahead.check()
        step = self._step_of(inputs["prompts"])
        experience, teacher = step.experiences[inputs.get("micro_batch", 0)], self.teacher
        if teacher is not None:
            teacher.score(experience, self.model_wrapped)
        compared = None if teacher is None else teacher.comparison(model, experience)
        entropy: EntropyUse = "trained" if self.objective.entropy_coef else "measured"
        with self.meter.time("time/logp_s"):
            likelihood = self._likelihood(model, experience, entropy, compared)
            if experience.old_logprobs is None:  # fresh completions
                experience.old_logprobs = experience.first_logprobs(likelihood)
                experience.ref_logprobs = self._reference_logprobs(experience)
                self.check_parity(self.state.global_step, experience, partial(self._exact_logprobs, experience))
                if teacher is not None:
                    teacher.compare(experience, likelihood)
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

    def next_step(self, epoch_iterator, num_batches, device):
        """The micro-batches of one optimizer step. Those of the steps that are sampled ahead are drawn as well."""
        if self.ahead is None:
            return super().next_step(epoch_iterator, num_batches, device)
        draw = partial(super().next_step, epoch_iterator, self.args.gradient_accumulation_steps, device)
        return self.ahead.next(draw, epoch_iterator, self.state)

    def begin_step(self, batches: Sequence[dict[str, Any]]) -> None:
        """New prompts are collected at the first micro-batch. Further iterations reuse the experiences of the last."""
        prompts = [inputs["prompts"] for inputs in batches]
        if self.state.global_step % self.args.num_iterations:
            self.step = self.step.next_iteration(prompts)
        else:
            self.step, self.drawn = None, prompts
            for batch in prompts:
                self.journal.drawn(batch)

    def _step_of(self, batch: PromptBatch) -> Step:
        """The step that a micro-batch belongs to. The first micro-batch of a step has all of them collected."""
        if self.step is None or not self.is_in_train:
            batches = self.drawn if self.is_in_train else [batch]  # a script may call compute_loss on its own
            with self.collector.ready(self.model, self.model_wrapped, self.version):
                experiences = self.collector.collect(self.model, batches, self.state)
            self.step = Step.of(experiences, self.args, self.meter.wait)
            if self.is_in_train and self.args.entropy_target is not None:
                weight = entropy_weight(self.args, self.step.counts.entropy, self.state)
                self.objective = replace(self.objective, entropy_coef=weight)
            for experience in experiences:
                self.journal.collected(self.state.global_step + 1, experience)
        return self.step

    def _likelihood(
        self, model: nn.Module, experience: Experience, entropy: EntropyUse = "none", compared: Comparison | None = None
    ) -> Likelihood:
        rollout, temperature = experience.rollout, self.args.generation_temperature
        ids, mask = rollout.completion_ids, rollout.completion_mask
        given = (model, experience.prompts, ids, mask, temperature, entropy, rollout.whole)
        return self.completion_likelihood(*given, compared)

    @torch.no_grad()
    def _exact_logprobs(self, experience: Experience) -> Tensor | None:
        """The policy's log-probs without autocast. None: its weights are rounded, or shared by processes."""
        bare = unwrap(self.model)
        if sharded_modules(bare) or any(p.dtype != torch.float32 or hasattr(p, "ds_id") for p in bare.parameters()):
            return None
        plain = copy(bare)
        plain.__dict__.pop("forward", None)  # accelerate's, with autocast
        rollout, size = experience.rollout, bare.config.get_text_config().vocab_size
        prompts, whole = (each and each.media_to(torch.float32) for each in (experience.prompts, rollout.whole))
        return self.paths.completion_likelihood(
            plain,
            prompts,
            rollout.completion_ids,
            rollout.completion_mask,
            whole=whole,
            temperature=self.args.generation_temperature,
            logit_chunk_tokens=tokens_within(self.args.logit_memory_gb, size),
        ).logprobs

    def _reference_logprobs(self, experience: Experience) -> Tensor | None:
        if self.reference is None or not self.args.grpo_beta or experience.ref_logprobs is not None:
            return experience.ref_logprobs  # computed for the reward (kl_in_reward)
        with self.reference.model() as reference:
            return self._likelihood(reference, experience).logprobs

    def _kl_penalties(
        self, prompts: Sequence[PromptInputs], rollouts: Sequence[RolloutBatch]
    ) -> list[tuple[Tensor, Tensor]]:
        """``kl_in_reward``: what is taken off rewards, beta x the KL of a completion (REINFORCE++, arXiv:2501.03262).

        The KL of a completion is the sum over its tokens of policy - reference log-prob. The policy's log-probs are
        those that it sampled the completion with.

        Returns:
            For each micro-batch the log-probs of the reference, N x T, and the penalties, N float64.

        Raises:
            ValueError: the engine gives no log-probs.
        """
        penalties, temperature = [], self.args.generation_temperature
        with self.reference.model() as reference:
            # Without its wrappers: with an adapter, DeepSpeed adds to them a hook that waits for all processes.
            bare = unwrap(reference)
            for own, rollout in zip(prompts, rollouts, strict=True):
                ids, mask = rollout.completion_ids, rollout.completion_mask
                if not len(ids):  # a micro-batch without prompts, whose stand-in has one token
                    penalties.append((torch.zeros(1, 1, device=ids.device), torch.zeros(0, dtype=torch.float64)))
                    continue
                if rollout.logprobs is None:
                    raise ValueError(
                        "kl_in_reward needs the log-probs of sampling, and this engine gives none: leave it out"
                    )
                given = (own, ids, mask, temperature)
                ref_logprobs = self.completion_likelihood(bare, *given, whole=rollout.whole).logprobs
                kl = completion_kl(rollout.logprobs, ref_logprobs, mask).cpu()
                penalties.append((ref_logprobs, self.args.grpo_beta * kl))
        return penalties

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """Training runs within: versions of weights count from 0, and at the end nothing is sampled any more."""
        if isinstance(self.collector.engine, EngineWithWeights):
            self.collector.engine.forget()
        self.collector.looks.clear()  # scripts may have changed the tower
        try:
            yield
        finally:
            if self.ahead is not None:
                self.ahead.close()

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        if self.ahead is not None:
            self.ahead.engine.save(self.ahead.file(output_dir))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if self.ahead is not None and checkpoint is not None:
            self.ahead.engine.load(self.ahead.file(checkpoint))
