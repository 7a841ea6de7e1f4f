"""What an evaluation asked and got, with the frames as the model saw them: what trackers show as a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from PIL import Image
from torch import Tensor
from transformers import ProcessorMixin

from qwenvl.runlog import Rollout
from qwenvl.types import PromptBatch

PROMPTS = 8  # of an evaluation, the first ones: the same each time
FRAMES = 8  # of a prompt, spread over all that it has
HEIGHT = 112  # pixels of a frame, at most
GAP = 2  # pixels between two frames


@dataclass(frozen=True)
class Patches:
    """How pictures are cut into patches: pixels of a side, patches of a merged side, frames of a patch."""

    size: int
    merge: int
    temporal: int

    @classmethod
    def of(cls, processor: ProcessorMixin) -> Patches:
        """The patches that a processor makes."""
        image = processor.image_processor
        return cls(image.patch_size, image.merge_size, image.temporal_patch_size)

    def frames(self, patches: Tensor, grid: Sequence[int]) -> Tensor:
        """The frames of one clip: frames x height x width x 3, uint8. An image has as many equal ones as a patch.

        Args:
            patches: patches x values, uint8, as in ``PromptBatch``.
            grid: temporal patches, and patches of height and width.
        """
        time, height, width = grid
        merge, size = self.merge, self.size
        cut = patches.view(time, height // merge, width // merge, merge, merge, 3, self.temporal, size, size)
        whole = cut.permute(0, 6, 1, 3, 7, 2, 4, 8, 5)  # time in the front, colours at the end
        return whole.reshape(time * self.temporal, height * size, width * size, 3)


@dataclass(frozen=True)
class Answer:
    """One prompt of an evaluation with its first completion, and its frames side by side. None: it has none."""

    rollout: Rollout
    strip: Image.Image | None


@dataclass
class SeenAnswers:
    """Keeps the first prompts of each evaluation until they are shown.

    Attributes:
        patches: how the model's pictures are cut.
        answers: by the name of the evaluation.
    """

    patches: Patches
    answers: dict[str, list[Answer]] = field(default_factory=dict)

    def add(self, split: str, batch: PromptBatch, rows: Iterable[Rollout]) -> None:
        """The prompts of a batch and their completions, prompt by prompt."""
        kept = self.answers.setdefault(split, [])
        firsts = [row for row in rows if row.sample == 0]
        for p, row in enumerate(firsts[: PROMPTS - len(kept)]):
            kept.append(Answer(row, strip_of(batch.select([p]), self.patches)))

    def take(self) -> dict[str, list[Answer]]:
        """What was kept. It is forgotten."""
        taken, self.answers = self.answers, {}
        return taken


def strip_of(prompt: PromptBatch, patches: Patches) -> Image.Image | None:
    """Frames and images of a batch of one prompt, side by side, as the model saw them but smaller."""
    pictures: list[Tensor] = []
    for values, grids, still in (
        (prompt.pixel_values, prompt.image_grid_thw, True),
        (prompt.pixel_values_videos, prompt.video_grid_thw, False),
    ):
        if values is not None and grids is not None:
            parts = values.cpu().split(grids.prod(-1).tolist())
            for part, grid in zip(parts, grids.tolist(), strict=True):
                pictures += list(patches.frames(part, grid))[: 1 if still else None]
    if not pictures:
        return None
    count = min(FRAMES, len(pictures))
    places = torch.linspace(0, len(pictures) - 1, count).round().int().tolist()
    shown = [Image.fromarray(pictures[place].numpy()) for place in places]
    for picture in shown:
        picture.thumbnail((10 * HEIGHT, HEIGHT))
    strip = Image.new("RGB", (sum(each.width + GAP for each in shown) - GAP, max(each.height for each in shown)))
    x = 0
    for picture in shown:
        strip.paste(picture, (x, 0))
        x += picture.width + GAP
    return strip
