"""From prompts to experience: completions are sampled, scored and compared within their groups."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor, nn
from transformers import TrainerState

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.data.dataset import Pictures
from qwenvl.data.seeds import stable_random
from qwenvl.grpo.advantages import group_advantages, needs_whole_step
from qwenvl.model.inputs import InputBuilder, PromptInputs, is_large, media_bytes
from qwenvl.model.sharding import LockStep, whole_weights
from qwenvl.model.vision_tower import features_or_pixels
from qwenvl.rewards import Rubric, reward_columns
from qwenvl.rollout.engine import EngineWithWeights, RolloutEngine, SamplingParams, lost_together, real_tokens
from qwenvl.step.ahead import StepsAhead
from qwenvl.step.contrast import NAME, TemporalContrast
from qwenvl.step.count import Experience
from qwenvl.step.groups import join_rewards, rewards_of_rows, without_pixels
from qwenvl.step.refill import Refill
from qwenvl.tools.toolbox import Conversations, Toolbox
from qwenvl.types import PromptBatch, RewardBatch, RolloutBatch, Turn

LOOKS_BYTES = 2**30
"""Of looks whose features wait for the next steps, in the memory of the CPU."""


@dataclass(frozen=True)
class Collector:
    """Samples completions with an engine, scores them with a rubric, and compares each with its group.

    Training and evaluation share it. It knows no Trainer.

    Attributes:
        args: the settings: how rewards become advantages (see ``group_advantages``), the device, and the seed. Draws
            are a function of it, the process, and the epochs and ids of the records.
        engine: samples completions.
        build_inputs: makes a batch the model's inputs.
        encode: runs the vision tower once per prompt. None where it has to run in every forward.
        rubric: the rewards and their weights.
        params: how completions of training are drawn.
        group_size: completions per prompt in training.
        penalty: for each micro-batch the log-probs of the reference, N x T, and the N penalties that are taken off the
            rewards before they are compared. None: no penalty.
        refill: replaces groups that teach nothing, see ``filtering``. None: all groups stay.
        ahead: the steps that the engine samples ahead, see ``ahead``. None: each is sampled when it is its turn.
        contrast: the bonus for answers that need the order of the frames. None: no bonus.
        toolbox: answers the calls of completions. None: there are no tools.
        compares: rewards make advantages. False: a teacher alone does, and all of these are 0.
        process: the number of this process.
        autocast: the precision of forwards.
        clock: measures what runs within ``clock("time/sample_s")``.
        lock_step: gathers weights that processes share layer by layer. None: they are gathered whole, where any are.
        looks: what tools have shown, encoded by a frozen tower, by a digest of tokens and pixels.
    """

    args: GRPOConfig
    engine: RolloutEngine
    build_inputs: InputBuilder
    encode: Callable[..., PromptInputs] | None
    rubric: Rubric
    params: SamplingParams
    group_size: int
    penalty: Callable[..., list[tuple[Tensor, Tensor]]] | None = None
    contrast: TemporalContrast | None = None
    toolbox: Toolbox | None = None
    refill: Refill | None = None
    ahead: StepsAhead | None = None
    compares: bool = True
    process: int = 0
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext
    clock: Callable[[str], AbstractContextManager[Any]] = nullcontext
    lock_step: LockStep | None = None
    looks: dict[bytes, PromptInputs] = field(default_factory=dict)

    @contextmanager
    def ready(self, model: nn.Module, wrapped: nn.Module | None = None, version: int | None = None) -> Iterator[None]:
        """Context in which the model can run, and an engine with weights of its own has those of the model.

        All processes must enter it together. Call every sampling function inside this block. For a step that was
        sampled ahead the engine keeps its weights: ``collect`` gives it new ones.

        Args:
            wrapped: the model as DeepSpeed has wrapped it, see ``whole_weights``.
            version: of the weights, see ``EngineWithWeights.sync``.
        """
        if self.ahead is not None and self.ahead.due:
            with whole_weights(model, wrapped), lost_together(self.engine):
                yield
            return
        with (self.lock_step or whole_weights)(model, wrapped):
            if not isinstance(self.engine, EngineWithWeights):
                yield
                return
            with self.clock("time/sync_s"), lost_together(self.engine):
                self.engine.sync(model, version)
            with lost_together(self.engine):
                yield
            self.engine.rest()

    def collect(
        self, model: nn.Module, batches: Sequence[PromptBatch], state: TrainerState | None = None
    ) -> list[Experience]:
        """One experience for each micro-batch of an optimizer step. All processes must call this together.

        The whole step is collected at once, because rewards may be scaled by the spread of all of them, and because one
        call of the reward functions lets slow ones run side by side.
        """
        ahead = self.ahead if self.ahead is not None and self.ahead.due and state is not None else None
        staleness = 0 if ahead is None else ahead.take(self, model, batches, state.global_step)
        if ahead is not None and self.refill is None:  # so that the engine samples while rewards are computed
            ahead.request_next(self, model)
        scored = self.scored(model, batches, state)
        if self.refill is not None:
            scored = self.refill.filled(self, model, scored, state)
            if ahead is not None:
                ahead.request_next(self, model)
        return [replace(each, staleness=staleness) for each in self._compared(scored)]

    def scored(
        self, model: nn.Module, batches: Sequence[PromptBatch], state: TrainerState | None, *purpose: object
    ) -> list[Experience]:
        """Completions and rewards of the prompts of all micro-batches, which are not compared yet."""
        sizes = [len(batch) * self.group_size for batch in batches]
        with self.clock("time/vision_s") if self.encode is not None else nullcontext():
            prompts = self.encoded(model, batches)
        with self.clock("time/sample_s"), lost_together(self.engine):
            rollouts = self._sample(model, batches, prompts, self.group_size, self.params, *purpose)
        with self.clock("time/reward_s"):
            rewards = self._score(batches, rollouts, state)
        if self.contrast is not None:
            rewards = self._contrast(self.contrast, model, batches, rollouts, rewards, state, *purpose)
        rows = iter(range(sum(sizes)))
        own = [rewards_of_rows(rewards, [*islice(rows, size)]) for size in sizes]
        parts = zip(map(without_pixels, batches), prompts, rollouts, own, strict=True)
        return [Experience(*part) for part in parts]

    def _compared(self, scored: Sequence[Experience]) -> list[Experience]:
        """Each micro-batch with its advantages."""
        sizes = [len(each) * self.group_size for each in scored]
        rewards = join_rewards([each.rewards for each in scored])
        penalties: list[Any] = [None] * len(scored)
        if self.penalty is not None:
            with self.clock("time/logp_s"):
                penalties = self.penalty([each.prompts for each in scored], [each.rollout for each in scored])
            lowered = rewards.total.double() - torch.cat([amounts for _, amounts in penalties])
            rewards = replace(rewards, total=lowered.to(rewards.total.dtype))
        advantages = self._advantages(rewards).split(sizes)
        return [self._with_advantages(*each) for each in zip(scored, advantages, penalties, strict=True)]

    def complete(
        self, model: nn.Module, batches: Sequence[PromptBatch], size: int, params: SamplingParams | None = None
    ) -> list[RolloutBatch]:
        """``size`` completions per prompt. The batches are sampled together.

        Without ``params`` they are those of an evaluation: greedy if the size is 1, else as in training.
        """
        usual = replace(self.params, temperature=0.0) if size == 1 else self.params
        inputs = [self._encode(model, batch) for batch in batches]
        rollouts = self._sample(model, batches, inputs, size, params or usual)
        require_finite(rollouts)
        return rollouts

    def answer(
        self, model: nn.Module, batches: Sequence[PromptBatch], size: int, state: TrainerState | None = None
    ) -> list[tuple[RolloutBatch, RewardBatch]]:
        """``size`` completions per prompt for an evaluation, greedy if that is 1, and their rewards.

        With size > 1 the random draws depend on which batches are sampled together.
        """
        rollouts = self.complete(model, batches, size)
        # Scored batch by batch: a reward that fails takes no other batch with it.
        pairs = zip(batches, rollouts, strict=True)
        return [(rollout, self._score([batch], [rollout], state)) for batch, rollout in pairs]

    def _with_advantages(
        self, scored: Experience, advantages: Tensor, penalty: tuple[Tensor, Tensor] | None
    ) -> Experience:
        if not len(scored):  # a stand-in, see Experience
            token = torch.zeros(1, 1, dtype=torch.long, device=self.args.device)
            prompts, advantages = PromptInputs.of_text(token), torch.zeros(1, device=self.args.device)
            rollout = RolloutBatch(token, torch.ones_like(token, dtype=torch.bool), texts=[""], finish_reasons=["stop"])
            scored = replace(scored, prompts=prompts, rollout=rollout)
        loss_mask = scored.rollout.completion_mask & (len(scored) > 0)
        experience = replace(scored, advantages=advantages, loss_mask=loss_mask)
        if penalty is not None:
            experience.ref_logprobs, experience.penalties = penalty[0].to(self.args.device), penalty[1]
        return experience

    def _contrast(
        self,
        contrast: TemporalContrast,
        model: nn.Module,
        batches: Sequence[PromptBatch],
        rollouts: Sequence[RolloutBatch],
        rewards: RewardBatch,
        state: TrainerState | None,
        *purpose: object,
    ) -> RewardBatch:
        """The rewards with the bonus for answers that need the order of the frames."""
        size = contrast.group_size(self.group_size)
        parts = [contrast.shuffled(batch, self.args.seed) for batch in batches]
        with self.clock("time/contrast_s"):
            prompts = self.encoded(model, parts)
            with lost_together(self.engine):
                again = self._sample(model, parts, prompts, size, self.params, NAME, *purpose)
            (other,) = contrast.correctness.values(*_texts_and_columns(parts, again), trainer_state=state)
            (ordered,) = contrast.correctness.values(*_texts_and_columns(batches, rollouts), trainer_state=state)
        known = [[v for v in other[n : n + size] if v is not None] for n in range(0, len(other), size)]
        means = iter([sum(values) / len(values) if values else None for values in known])
        videos = [count > 0 for batch in batches for count in batch.videos_per_prompt]
        return contrast.add(rewards, ordered, [next(means) if video else None for video in videos])

    def encoded(self, model: nn.Module, batches: Sequence[PromptBatch]) -> list[PromptInputs]:
        """Model inputs of the micro-batches of a step. Where one is large, their media wait on the CPU."""
        inputs = (self._encode(model, batch) for batch in batches)
        waits = len(batches) > 1 and any(map(is_large, batches))
        return [each.media_to("cpu") if waits else each for each in inputs]

    def _encode(self, model: nn.Module, batch: PromptBatch) -> PromptInputs:
        """Model inputs on the device. Where the tower is frozen, its features in the place of pixels."""
        if self.ahead is not None and (known := self.ahead.inputs.pop(id(batch), None)) is not None:
            return known
        return features_or_pixels(model, batch, self.args.device, self.build_inputs, self.encode, self.autocast)

    def _sample(
        self,
        model: nn.Module,
        batches: Sequence[PromptBatch],
        prompts: Sequence[PromptInputs],
        size: int,
        params: SamplingParams,
        *purpose: object,
    ) -> list[RolloutBatch]:
        """Completions of all micro-batches, drawn together. For another purpose the same prompts have other draws."""
        more = {} if self.toolbox is None else {"conversations": self.conversations(batches, size, model)}
        with self.autocast():
            return self.engine.sample(model, prompts, size, params, self.seed_of(batches, *purpose), **more)

    def conversations(self, batches: Sequence[PromptBatch], size: int, model: nn.Module) -> Conversations:
        """Those with ``size`` completions of each prompt, which begin. ``model`` encodes what tools show."""
        assert self.toolbox is not None
        records = [record for batch in batches for record in batch.records for _ in range(size)]
        return self.toolbox.begin(records, partial(self._encode_look, model))

    def _encode_look(self, model: nn.Module, batch: PromptBatch) -> PromptInputs:
        """As ``_encode``. A frozen tower runs once for equal looks of all steps, as long as there is room for them."""
        if self.encode is None or not media_bytes(batch):
            return self._encode(model, batch)
        tensors = [(name, x) for name, x in vars(batch).items() if isinstance(x, Tensor)]
        parts = [f"{name} {tuple(x.shape)}".encode() + x.numpy().tobytes() for name, x in tensors]
        key = hashlib.sha256(b"".join(parts)).digest()
        if (known := self.looks.get(key)) is None:
            known = self.looks[key] = self._encode(model, batch).media_to("cpu")
            while sum(map(media_bytes, self.looks.values())) > LOOKS_BYTES:
                del self.looks[next(iter(self.looks))]
        return known.media_to(self.args.device)

    def seed_of(self, batches: Sequence[PromptBatch], *purpose: object) -> int:
        """The seed of the completions of these prompts."""
        drawn = [pair for batch in batches for pair in zip(batch.epochs, (r.id for r in batch.records), strict=True)]
        # The process is part of the seed: two that draw the same prompt should not draw the same completions.
        return stable_random(self.args.seed, self.process, *drawn, *purpose).getrandbits(63)

    def _score(
        self, batches: Sequence[PromptBatch], rollouts: Sequence[RolloutBatch], state: TrainerState | None
    ) -> RewardBatch:
        """Rewards of all completions in one call."""
        texts, columns = _texts_and_columns(batches, rollouts)
        return self.rubric.score(texts, columns, trainer_state=state)

    def _advantages(self, rewards: RewardBatch) -> Tensor:
        """N advantages. An estimator that needs the rewards of the whole step has those of all processes."""
        if not self.compares:
            return torch.zeros_like(rewards.total, device=self.args.device)
        values = [[math.nan if value is None else value for value in column] for column in rewards.components]
        own = torch.stack([rewards.total, *(torch.tensor(column, dtype=rewards.total.dtype) for column in values)], 1)
        shared = needs_whole_step(self.args.estimator, self.args.scale_rewards)
        by_process = self.from_all(own) if shared else [own]
        joined = torch.cat(by_process)
        advantages = group_advantages(
            joined[:, 0],
            self.group_size,
            self.args.scale_rewards,
            self.args.estimator,
            components=joined[:, 1:],
            weights=rewards.weights,
        )
        parts = advantages.split([*map(len, by_process)])
        return parts[self.process if shared else 0].to(self.args.device)

    def from_all(self, value: Any) -> list[Any]:
        """The values of all processes. All must call this, and none samples meanwhile."""
        if self.lock_step is not None:
            self.lock_step.meet()
        return gather_object([value])


def require_finite(rollouts: Sequence[RolloutBatch]) -> None:
    """Check the log-probs of completions that no loss is computed from.

    Raises:
        FloatingPointError: the model gives sampled tokens log-probs that are NaN or infinite.
    """
    bad = [each for each in rollouts if each.logprobs is not None and not each.logprobs.isfinite().all()]
    if bad:
        raise FloatingPointError(
            "the model's log-probs of sampled tokens are NaN or infinite: its weights are, or its logits overflow in "
            "this precision; evaluate an earlier checkpoint, or use --bf16 True or full precision in place of --fp16"
        )


def _texts_and_columns(
    batches: Sequence[PromptBatch], rollouts: Sequence[RolloutBatch]
) -> tuple[list[str], dict[str, list[Any]]]:
    """Arguments of the reward functions: the N completions of all prompts, and the columns."""
    texts = [text for each in rollouts for text in each.texts]
    prompts = [each for batch in batches for each in zip(batch.records, batch.frames, strict=True)]
    size = len(texts) // max(1, len(prompts))
    shown = [Pictures(tuple(frames), record.images) for record, frames in prompts]
    columns = reward_columns(
        [record for record, _ in prompts],
        size,
        shown=[each for each in shown for _ in range(size)],
        opened_think=[opened for batch in batches for opened in batch.opened_think],
        completion_ids=[ids for each in rollouts for ids in real_tokens(each.completion_ids, each.completion_mask)],
        finish_reasons=[reason for each in rollouts for reason in each.finish_reasons],
        turns=[turns for each in rollouts for turns in each.turns or [(Turn(text),) for text in each.texts]],
    )
    return texts, columns
