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
from qwenvl.types import PromptBatch, RewardBatch

NAME = "temporal_contrast"


@dataclass(frozen=True)
class TemporalContrast:
    """The second groups of a run, and the bonus.

    Attributes:
        flags: share, margin and bonus.
        correctness: one function, which gives 1 for a correct completion.
        temporal_patch_size: frames of a temporal patch.
    """

    flags: ContrastArguments
    correctness: Rubric
    temporal_patch_size: int

    def group_size(self, ordered: int) -> int:
        """Completions with shuffled frames for each video prompt."""
        return max(1, round(self.flags.share * ordered))

    def shuffled(self, batch: PromptBatch, seed: int) -> PromptBatch:
        """Return the video prompts of a batch with the frames of each clip in random order.

        The frames take the times of the ordered ones: ids, grids and seconds stay as they are.

        Args:
            seed: of the run. The order is drawn by (seed, epoch, record, clip).
        """
        part = batch.select([p for p, count in enumerate(batch.videos_per_prompt) if count])
        if not len(part):
            return part
        clips = part.pixel_values_videos.split(part.video_grid_thw.prod(-1).tolist())
        owners = [(p, k) for p, count in enumerate(part.videos_per_prompt) for k in range(count)]
        patches = []
        for (p, k), clip, grid in zip(owners, clips, part.video_grid_thw.tolist(), strict=True):
            order = random_order(grid[0] * self.temporal_patch_size, seed, part.epochs[p], part.records[p].id, k)
            patches.append(reorder_frames(clip, self.temporal_patch_size, order))
        return replace(part, pixel_values_videos=torch.cat(patches))

    def add(
        self, rewards: RewardBatch, ordered: Sequence[float | None], shuffled: Sequence[float | None]
    ) -> RewardBatch:
        """Return the rewards with the bonus as one more component. A completion without a reward gets no bonus.

        Args:
            ordered, shuffled: see ``qwenvl.rewards.functions.grounding.temporal_contrast``.
        """
        given = temporal_contrast(ordered, shuffled, self.flags.margin, self.flags.bonus)
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
