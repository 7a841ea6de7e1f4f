"""``temporal_contrast``: a bonus for answers that the order of the frames was needed for.

The policy answers each video prompt a few more times with the frames in random order. Where the ordered group is right
more often, its right completions get a bonus. Where order makes no difference, they get none, since an answer that can
be read off a single frame is not understanding of video. The bonus follows the temporal reward of T-GRPO (Video-R1,
arXiv:2503.21776), which compares by a factor. Here the difference has to exceed a margin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from qwenvl.data.seeds import stable_random
from qwenvl.rewards import Rubric
from qwenvl.rewards.functions.grounding import temporal_contrast
from qwenvl.rewards.options import ContrastArguments
from qwenvl.rollout.engine import lost_together
from qwenvl.step.sample import Sample
from qwenvl.step.score import texts_and_columns
from qwenvl.step.types import Sampled, Scored, Stage, StepContext
from qwenvl.types import PromptBatch, RewardBatch

NAME = "temporal_contrast"


@dataclass(frozen=True)
class TemporalContrast:
    """The stage *score* with the bonus: samples the second groups of a step, and compares them with the first.

    Attributes:
        score: gives the rewards that the bonus is added to.
        sample: samples the second groups.
        flags: share, margin and bonus.
        correctness: one function, which gives 1 for a correct completion.
        temporal_patch_size: frames of a temporal patch.
    """

    score: Stage[Sampled, Scored]
    sample: Sample
    flags: ContrastArguments
    correctness: Rubric
    temporal_patch_size: int

    def __call__(self, batches: Sequence[Sampled], step: StepContext) -> list[Scored]:
        """The micro-batches with their rewards and the bonus."""
        scored = self.score(batches, step)
        with step.meter.time("time/contrast_s"):
            means = self._shuffled_means([each.batch for each in batches], step)
            correct = self._correctness(batches, step)
        contrasted = []
        for each in scored:
            prompts, rows = len(each), len(each.rollout.texts)
            rewards = with_bonus(each.rewards, correct[:rows], means[:prompts], self.flags)
            contrasted.append(replace(each, rewards=rewards))
            correct, means = correct[rows:], means[prompts:]
        return contrasted

    def _shuffled_means(self, batches: Sequence[PromptBatch], step: StepContext) -> list[float | None]:
        """The mean correctness of each prompt's second group. None: it has no video, or the function no value."""
        sample = self.sample
        size = max(1, round(self.flags.share * sample.group_size))
        shuffled = [shuffled_prompts(batch, step.seed, self.temporal_patch_size) for batch in batches]
        encoded = sample.encode.of_step(step.policy, shuffled)
        with lost_together(sample.engine):
            again = step.drawing_for(NAME, *step.purpose)
            rollouts = sample.completions(encoded, size, sample.params, again)
        texts, columns = texts_and_columns(shuffled, rollouts)
        [values] = self.correctness.values(texts, columns, trainer_state=step.trainer_state)
        of_videos = []
        for start in range(0, len(values), size):
            known = [value for value in values[start : start + size] if value is not None]
            of_videos.append(sum(known) / len(known) if known else None)
        following = iter(of_videos)
        counts = [count for batch in batches for count in batch.videos_per_prompt]
        return [next(following) if count else None for count in counts]

    def _correctness(self, batches: Sequence[Sampled], step: StepContext) -> list[float | None]:
        """The correctness of each completion of the first groups. None: the function does not apply."""
        texts, columns = texts_and_columns([each.batch for each in batches], [each.rollout for each in batches])
        [values] = self.correctness.values(texts, columns, trainer_state=step.trainer_state)
        return values


def shuffled_prompts(batch: PromptBatch, seed: int, temporal_patch_size: int) -> PromptBatch:
    """Return the video prompts of a batch with the frames of each clip in random order.

    The frames take the times of the ordered ones: ids, grids and seconds stay as they are.

    Args:
        seed: of the run. The order is drawn by (seed, epoch, record, clip).
        temporal_patch_size: frames of a temporal patch.
    """
    part = batch.select([p for p, count in enumerate(batch.videos_per_prompt) if count])
    if not len(part):
        return part
    clips = part.pixel_values_videos.split(part.video_grid_thw.prod(-1).tolist())
    owners = [(p, k) for p, count in enumerate(part.videos_per_prompt) for k in range(count)]
    patches = []
    for (p, k), clip, grid in zip(owners, clips, part.video_grid_thw.tolist(), strict=True):
        order = random_order(grid[0] * temporal_patch_size, seed, part.epochs[p], part.records[p].id, k)
        patches.append(reorder_frames(clip, temporal_patch_size, order))
    return replace(part, pixel_values_videos=torch.cat(patches))


def with_bonus(
    rewards: RewardBatch,
    ordered: Sequence[float | None],
    shuffled: Sequence[float | None],
    flags: ContrastArguments,
) -> RewardBatch:
    """Return the rewards with the bonus as one more component. A completion without a reward gets no bonus.

    Args:
        ordered, shuffled: see ``qwenvl.rewards.functions.grounding.temporal_contrast``.
    """
    given = temporal_contrast(ordered, shuffled, flags.margin, flags.bonus)
    values = [None if total is None else value for value, total in zip(given, rewards.totals(), strict=True)]
    extra = torch.tensor([value or 0.0 for value in values], dtype=rewards.total.dtype)
    return replace(
        rewards,
        names=(*rewards.names, NAME),
        weights=(*rewards.weights, 1.0),
        components=[*rewards.components, values],
        total=rewards.total + extra,
    )


def random_order(frames: int, seed: int, epoch: int, record: str, clip: int) -> list[int]:
    """The numbers of the frames of a record's clip in random order, drawn by (seed, epoch, record, clip)."""
    order = list(range(frames))
    stable_random(seed, NAME, epoch, record, clip).shuffle(order)
    return order


def reorder_frames(patches: Tensor, per_patch: int, order: Sequence[int]) -> Tensor:
    """The patches of one clip, ``per_patch`` frames in each temporal patch, with its frames in the order given."""
    temporal = len(order) // per_patch
    frames = patches.reshape(temporal, len(patches) // temporal, 3, per_patch, -1).permute(0, 3, 1, 2, 4).flatten(0, 1)
    again = frames[list(order)].unflatten(0, (temporal, per_patch)).permute(0, 2, 3, 1, 4)
    return again.reshape(patches.shape)
