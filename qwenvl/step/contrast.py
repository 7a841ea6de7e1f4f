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
from qwenvl.step.sample import SampleNow
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
    sample: SampleNow
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
        prompts_done = 0
        rows_done = 0
        for each in scored:
            prompts = slice(prompts_done, prompts_done + len(each))
            rows = slice(rows_done, rows_done + len(each.rollout.texts))
            prompts_done = prompts.stop
            rows_done = rows.stop
            rewards = with_bonus(each.rewards, correct[rows], means[prompts], self.flags)
            contrasted.append(replace(each, rewards=rewards))
        return contrasted

    def _shuffled_means(self, batches: Sequence[PromptBatch], step: StepContext) -> list[float | None]:
        """The mean correctness of each prompt's second group. None: it has none, or the function no value."""
        sample = self.sample
        size = max(1, round(self.flags.share * sample.group_size))
        shuffled = [shuffled_prompts(batch, step.seed, self.temporal_patch_size) for batch in batches]
        encoded = sample.encode.of_step(step.policy, shuffled)
        with lost_together(sample.engine):
            again = step.drawing_for(NAME, *step.purpose)
            rollouts = sample.completions(encoded, size, sample.params, again)
        texts, columns = texts_and_columns(shuffled, rollouts, self.correctness)
        [values] = self.correctness.values(texts, columns, trainer_state=step.trainer_state)
        of_sampled = []
        for start in range(0, len(values), size):
            known = [value for value in values[start : start + size] if value is not None]
            of_sampled.append(sum(known) / len(known) if known else None)

        means: list[float | None] = []
        next_sampled = iter(of_sampled)
        for batch in batches:
            for prompt in range(len(batch)):
                means.append(next(next_sampled) if has_an_order(batch, prompt) else None)
        return means

    def _correctness(self, batches: Sequence[Sampled], step: StepContext) -> list[float | None]:
        """The correctness of each completion of the first groups. None: the function does not apply."""
        texts, columns = texts_and_columns(
            [each.batch for each in batches], [each.rollout for each in batches], self.correctness
        )
        [values] = self.correctness.values(texts, columns, trainer_state=step.trainer_state)
        return values


def shuffled_prompts(batch: PromptBatch, seed: int, temporal_patch_size: int) -> PromptBatch:
    """Return the prompts of a batch whose frames have an order, with the frames of each clip in random order.

    The frames take the times of the ordered ones: ids, grids and seconds stay as they are.

    Args:
        seed: of the run. The order is drawn by (seed, epoch, record, clip).
        temporal_patch_size: frames of a temporal patch.
    """
    part = batch.select([prompt for prompt in range(len(batch)) if has_an_order(batch, prompt)])
    if not len(part):
        return part
    assert part.video_grid_thw is not None and part.pixel_values_videos is not None  # all of them have clips
    patches_per_clip = part.video_grid_thw.prod(-1).tolist()
    patches_of_clips = part.pixel_values_videos.split(patches_per_clip)
    unshuffled = iter(patches_of_clips)  # the clips of all prompts, in their order
    shuffled = []
    for record, epoch, clips in zip(part.records, part.epochs, part.frames, strict=True):
        for k, clip in enumerate(clips):
            order = random_order(clip.indices, seed, epoch, record.id, k)
            shuffled.append(reorder_frames(next(unshuffled), temporal_patch_size, order))
    return replace(part, pixel_values_videos=torch.cat(shuffled))


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


def has_an_order(batch: PromptBatch, prompt: int) -> bool:
    """Whether a prompt has a clip of several frames. A clip of one frame shows it twice."""
    return any(len(set(clip.indices)) > 1 for clip in batch.frames[prompt])


def random_order(indices: Sequence[int], seed: int, epoch: int, record: str, clip: int) -> list[int]:
    """The places of the frames of a record's clip in random order, drawn by (seed, epoch, record, clip).

    An order in which the clip looks as before is drawn again.

    Args:
        indices: the source frame at each place. The last one may be there twice.
    """
    order = list(range(len(indices)))
    draws = stable_random(seed, NAME, epoch, record, clip)
    draws.shuffle(order)
    while len(set(indices)) > 1 and [indices[place] for place in order] == list(indices):
        draws.shuffle(order)
    return order


def reorder_frames(patches: Tensor, per_patch: int, order: Sequence[int]) -> Tensor:
    """The patches of one clip with its frames in another order.

    Args:
        patches: patches x patch values. A patch has a square of ``per_patch`` frames, channel by channel.
        per_patch: frames of a temporal patch.
        order: F numbers of frames.
    """
    temporal = len(order) // per_patch
    spatial = len(patches) // temporal
    by_patch = patches.reshape(temporal, spatial, 3, per_patch, -1)  # the last: pixels of a square in one channel
    frames = by_patch.permute(0, 3, 1, 2, 4).flatten(0, 1)  # F x spatial x 3 x pixels
    reordered = frames[list(order)]
    again_by_patch = reordered.unflatten(0, (temporal, per_patch)).permute(0, 2, 3, 1, 4)
    return again_by_patch.reshape(patches.shape)
