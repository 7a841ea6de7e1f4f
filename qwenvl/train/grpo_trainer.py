"""GRPO on the Hugging Face Trainer: the hooks of the Trainer, and what each of them calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor, nn
from transformers import ProcessorMixin, TrainerCallback
from transformers.trainer_utils import EvalLoopOutput

from qwenvl.config.grpo_config import GRPOConfig, require_config
from qwenvl.data.dataset import GRPODataset
from qwenvl.grpo.loss import objective_of
from qwenvl.model.loading import unwrap
from qwenvl.model.logprobs import EntropyUse
from qwenvl.step.ahead import SampleAhead
from qwenvl.step.answer import Answer, in_budget
from qwenvl.step.assemble import build_rewards, check_view, dataset_view
from qwenvl.step.kernels import build_likelihood
from qwenvl.step.logprobs import Logprobs
from qwenvl.step.parity import ParityCheck
from qwenvl.step.pipeline import build_pipeline, build_sample
from qwenvl.step.score import Score
from qwenvl.step.types import Experience, StepContext, TrainStep
from qwenvl.train.assemble import build_teacher, distills_alone
from qwenvl.train.callbacks import move_entropy_weight
from qwenvl.train.evaluation import ScoredPrompt, evaluation_metrics, scored_prompts
from qwenvl.train.policy_trainer import PolicyTrainer
from qwenvl.types import EVALUATED, TOTAL, PromptBatch

RewardFunction = Callable[..., list[float | None]]


@dataclass
class StepInProgress:
    """The optimizer step that the Trainer is in.

    The Trainer draws the micro-batches of a step in one hook, ``get_batch_samples``, and hands them one by one to
    another, ``compute_loss``. A step is sampled and scored as a whole in the first call of the latter. So what the two
    share is here: ``begin_step`` writes the prompts, ``compute_loss`` writes the step, and each micro-batch carries its
    number in the step, as ``inputs["micro_batch"]``.

    Attributes:
        prompts: the prompts of all micro-batches of this process.
        step: None until completions are sampled for them. After training, the last step.
    """

    prompts: Sequence[PromptBatch] = ()
    step: TrainStep | None = None


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

    eval_metric = f"eval{EVALUATED}"
    logprobs: Logprobs

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
        args = GRPOConfig() if args is None else args
        require_config(args, GRPOConfig)
        rubric = build_rewards(args, reward_funcs, reward_weights)
        self.teacher_alone = distills_alone(args, reward_funcs, reward_weights)
        super().__init__(
            args,
            rubric,
            model=model,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=processing_class,
            callbacks=callbacks,
            peft_config=peft_config,
            with_reference=args.needs_reference,
        )
        family = unwrap(self.model).config.model_type
        if args.engine_has_own_weights and args.correction == "none" and family == "qwen3_5":
            raise ValueError(
                f"--rollout_engine {args.rollout_engine}: vLLM rounds the linear attention of Qwen3.5 to half "
                "precision; weigh its tokens by --importance_correction token_truncate"
            )
        view = dataset_view(args)
        if view is not None and self.train_dataset is not None:
            if not isinstance(self.train_dataset, GRPODataset):
                raise ValueError(f"--teacher {args.teacher} needs a GRPODataset, as load_dataset makes it")
            check_view(args, view, self.train_dataset.records)
            self.train_dataset = copy(self.train_dataset)  # a script may go on with its own data set
            self.train_dataset.view = view
        self.build_stages()
        self.objective = objective_of(args, args.generation_max_length)
        if self.logprobs.teacher is not None and self.logprobs.teacher.bound is None:
            self.objective = replace(self.objective, distill=args.teacher_weight)
        self.in_progress = StepInProgress()

    def metrics_of_evaluation(self, prefix: str) -> list[str]:
        """See ``PolicyTrainer``."""
        return [f"{prefix}_{name}_reward" for name in (*self.rewards.names, TOTAL)]

    def build_stages(self) -> None:
        """Build the parts of a step from the settings and ``kernels``: ``pipeline``, ``logprobs``, and ``answer``.

        ``pipeline`` makes a step of prompts, ``logprobs`` the log-probs of a step, and ``answer`` the completions of an
        evaluation. Subclasses that add a stage do so here.
        """
        args = self.args
        collator = self.data_collator
        sample = build_sample(
            args, self.kernels, self.model, collator, self.accelerator, on_answer=self.meter.call_answered
        )
        score = Score(self.rewards)
        likelihood = build_likelihood(
            args,
            self.kernels,
            unwrap(self.model),
            self.accelerator,
            temperature=args.generation_temperature,
            observe=self.gradient_reach.observe,
        )
        self.answer = Answer(sample, score)
        self.pipeline = build_pipeline(
            args,
            self.model,
            sample,
            score,
            likelihood=likelihood,
            reference=self.reference,
            dataset=self.train_dataset,
            collate=collator,
            teacher_alone=self.teacher_alone,
        )
        # A script may give a model in half precision without a flag that says so.
        has_half_weights = any(weight.dtype in (torch.bfloat16, torch.float16) for weight in self.model.parameters())
        self.logprobs = Logprobs(
            likelihood=likelihood,
            reference=self.reference if args.grpo_beta else None,
            teacher=build_teacher(
                args,
                self.model,
                kernels=self.kernels,
                sample=sample,
                reference=self.reference,
                collator=collator,
                accelerator=self.accelerator,
            ),
            parity=ParityCheck(
                args.check_parity,
                half_precision=args.bf16 or args.fp16 or has_half_weights,
                dropout=args.lora_enable and args.lora_dropout > 0,
                meter=self.meter,
            ),
            sample=sample,
            ratio_from_sampler=args.ratio_from_sampler,
        )

    @property
    def step(self) -> TrainStep | None:
        """The optimizer step in progress, once its completions are sampled. After training, the last one."""
        return self.in_progress.step

    @property
    def experiences(self) -> Sequence[Experience]:
        """See ``PolicyTrainer``."""
        return () if self.step is None else self.step.experiences

    def step_context(self) -> StepContext:
        """The parts of this trainer that the stages of a step may read."""
        return StepContext(
            policy=self.model,
            wrapped=self.model_wrapped,
            version=self.version,
            seed=self.args.seed,
            process=self.args.process_index,
            meter=self.meter,
            trainer_state=self.state,
        )

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch=None
    ) -> Tensor:
        """The GRPO loss of a micro-batch of prompts. The losses of a step's micro-batches average to its loss.

        The first micro-batch of a step has completions sampled, scored and compared for the whole step.

        Raises:
            ParityError: if sampler and trainer disagree about the same tokens (``check_parity``).
        """
        step = self.collect_step(inputs)
        number = inputs.get("micro_batch", 0)  # a script may call this with prompts alone
        experience = step.experiences[number]
        entropy: EntropyUse = "trained" if self.objective.entropy_coef else "measured"
        # N x T. The policy's have a gradient. The fixed ones, of old policy, reference and teacher, are computed once.
        policy, fixed = self.logprobs(model, experience, step.fixed_of(number), entropy, self.step_context())
        step = step.with_fixed(number, fixed)
        self.in_progress.step = step
        output = self.objective(step.loss_inputs(experience, policy, fixed), step.counts)
        self.journal.trained(step, number, output)
        self.meter.start("time/backward_s")
        # The Trainer divides by the micro-batches of a process, and gradients are averaged over processes.
        return output.loss * step.counts.passes

    def collect_step(self, inputs: dict[str, Any]) -> TrainStep:
        """The step of a micro-batch. The first micro-batch has the whole step sampled, scored and compared."""
        self.pipeline.sample.check()
        if self.in_progress.step is not None and self.is_in_train:
            return self.in_progress.step
        # Outside of training a script calls compute_loss on its own: the micro-batch is a step by itself.
        prompts = self.in_progress.prompts if self.is_in_train else [inputs["prompts"]]
        step = self.pipeline(prompts, self.step_context())
        if self.is_in_train and self.args.entropy_target is not None:
            weight = move_entropy_weight(self.args, step.counts.entropy, self.state)
            self.objective = replace(self.objective, entropy_coef=weight)
        for experience in step.experiences:
            self.journal.collected(self.state.global_step + 1, experience)
        self.in_progress.step = step
        return step

    def evaluation_loop(
        self, dataloader, description, prediction_loss_only=None, ignore_keys=None, metric_key_prefix="eval"
    ) -> EvalLoopOutput:
        """Sample ``eval_sample_size`` completions per prompt (greedy if 1), score them and average over prompts."""
        self.callback_handler.eval_dataloader = dataloader
        rows: list[ScoredPrompt] = []
        size = self.args.eval_sample_size
        prompts = (inputs["prompts"] for inputs in dataloader)
        groups: Iterator[list[PromptBatch]] = ([batch] for batch in prompts)
        if self.args.evaluates_by_tokens:
            longest = size * self.args.generation_max_length
            groups = in_budget(prompts, new_tokens=longest, budget=self.args.rollout_token_budget)
        step = self.step_context()
        # Processes may have different numbers of groups, so what they do together is done once, around all groups.
        with self.answer.sample.ready(step):
            for batches in groups:
                answers = self.answer(batches, size, step)
                for batch, (rollout, rewards) in zip(batches, answers, strict=True):
                    rows += scored_prompts(batch, rewards)
                    self.journal.evaluated(self.state.global_step, metric_key_prefix, batch, rollout, rewards)
                    self.control = self.callback_handler.on_prediction_step(self.args, self.state, self.control)
        rows = gather_object(rows)
        metrics = evaluation_metrics(rows, metric_key_prefix, needed=self.args.metric_for_best_model)
        return EvalLoopOutput(predictions=None, label_ids=None, metrics=metrics, num_samples=len(rows))

    def draw_step(self, epoch_iterator, num_batches, device):
        """Draw the micro-batches of one optimizer step, and those of the steps that are sampled ahead."""
        if not isinstance(self.pipeline.sample, SampleAhead):
            return super().draw_step(epoch_iterator, num_batches, device)
        draw_one = partial(super().draw_step, epoch_iterator, self.args.gradient_accumulation_steps, device)
        return self.pipeline.sample.draw(draw_one, epoch_iterator, self.state)

    def begin_step(self, batches: Sequence[dict[str, Any]]) -> None:
        """Keep the prompts of a new step for ``compute_loss``. A further iteration reuses the last experiences."""
        prompts = [inputs["prompts"] for inputs in batches]
        if self.state.global_step % self.args.num_iterations:
            step = self.in_progress.step
            assert step is not None  # its first iteration has made it
            self.in_progress.step = step.next_iteration(prompts)
            return
        self.in_progress = StepInProgress(prompts)
        for batch in prompts:
            self.journal.drawn(batch)

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """Let training run within. Versions of weights count from 0 there, and sampling ends with it."""
        self.pipeline.sample.start()
        try:
            yield
        finally:
            self.pipeline.sample.close()

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        self.pipeline.sample.save(output_dir)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            self.pipeline.sample.load(checkpoint)
