"""Groups chosen and joined, by hand."""

import math

import pytest
import torch

from qwenvl.model.inputs import PromptInputs
from qwenvl.train.collect.scored import Scored, join_rewards
from qwenvl.types import PromptBatch, Record, RewardBatch, RolloutBatch

PATCH = 4  # values of a patch


def scored(lengths: list[int], tokens: list[int], images: list[int], first: int = 1, reward: str = "r") -> Scored:
    """P prompts of these lengths, each with as many images of 1 x 1 x 2 patches; two completions of these tokens each.

    The ids of prompt p are p + ``first``, those of its completions 10 times that.
    """
    width, longest = max(lengths, default=0), max(tokens, default=1)
    ids = torch.tensor([[0] * (width - n) + [p + first] * n for p, n in enumerate(lengths)]).view(len(lengths), width)
    names = [f"{p + first}" for p in range(len(lengths))]
    records = [Record(name, (), "", (), (), (), {}, f"data[{name}]") for name in names]
    count = sum(images)
    owners = [p + first for p, n in enumerate(images) for _ in range(2 * n)]
    pixels = torch.tensor(owners, dtype=torch.uint8)[:, None].expand(-1, PATCH) if count else None
    grid = torch.tensor([[1, 1, 2]] * count) if count else None
    batch = PromptBatch(
        records,
        [0] * len(lengths),
        [[]] * len(lengths),
        ids,
        (ids > 0).long(),
        pixel_values=pixels,
        image_grid_thw=grid,
        images_per_prompt=images,
        videos_per_prompt=[0] * len(lengths),
        fitted=[None] * len(lengths),
        opened_think=[False] * len(lengths),
    )
    positions = torch.arange(width).expand(3, len(lengths), -1)
    inputs = PromptInputs(
        ids, batch.attention_mask, positions, None if pixels is None else pixels.float(), grid, None, None, images,
        batch.videos_per_prompt,
    )  # fmt: skip
    rows = [(p, n) for p in range(len(lengths)) for n in tokens]
    completions = torch.tensor([[10 * (p + first)] * n + [0] * (longest - n) for p, n in rows]).view(len(rows), longest)
    rollout = RolloutBatch(
        completions,
        completions > 0,
        [f"{p + first}:{n}" for p, n in rows],
        ["stop"] * len(rows),
        logprobs=-completions.float(),
        entropies=completions.float() / 2,
    )
    values = [float(p + first) for p, _ in rows]
    rewards = RewardBatch((reward,), (1.0,), [list(values)], torch.tensor(values), {"seen": float(first)})
    return Scored(batch, inputs, rollout, rewards)


def test_groups_are_joined_and_chosen_with_all_that_is_theirs():
    parts = [scored([2, 4], [1, 3], [1, 0]), scored([], [], []), scored([3], [2, 1], [2], first=7)]
    joined = Scored.join(parts)
    assert len(joined) == 3
    chosen = joined.select([2, 0])
    assert [record.id for record in chosen.batch.records] == ["7", "1"]
    for prompts in (chosen.batch, chosen.prompts):
        assert prompts.input_ids.tolist() == [[7, 7, 7], [0, 1, 1]]
        assert prompts.attention_mask.tolist() == [[1, 1, 1], [0, 1, 1]]
        assert prompts.pixel_values[:, 0].tolist() == [7, 7, 7, 7, 1, 1] and len(prompts.image_grid_thw) == 3
        assert prompts.images_per_prompt == [2, 1]
    assert chosen.prompts.position_ids[0].tolist() == [[0, 1, 2], [1, 2, 3]]  # as they were among their neighbours
    assert chosen.rollout.texts == ["7:2", "7:1", "1:1", "1:3"]
    assert chosen.rollout.completion_ids.tolist() == [[70, 70, 0], [70, 0, 0], [10, 0, 0], [10, 10, 10]]
    assert torch.equal(chosen.rollout.completion_mask, chosen.rollout.completion_ids > 0)
    assert torch.equal(chosen.rollout.logprobs, -chosen.rollout.completion_ids.float())
    assert torch.equal(chosen.rollout.entropies, chosen.rollout.completion_ids.float() / 2)
    assert chosen.rewards.components == [[7.0, 7.0, 1.0, 1.0]] and chosen.rewards.total.tolist() == [7.0, 7.0, 1.0, 1.0]


def test_what_is_chosen_is_no_wider_than_it_needs():
    chosen = scored([2, 4], [1, 3], [0, 1]).select([0])
    assert chosen.batch.input_ids.tolist() == chosen.prompts.input_ids.tolist() == [[1, 1]]
    assert chosen.batch.pixel_values is chosen.prompts.pixel_values is None
    none = scored([2], [1, 1], [1]).select([])
    assert len(none) == len(none.prompts) == len(none.rollout.texts) == 0 and none.rollout.completion_ids.shape == (
        0,
        1,
    )


def test_metrics_are_means_by_rows():
    rewards = [
        RewardBatch(("r",), (1.0,), [[1.0, None]], torch.tensor([1.0, math.nan]), {"seen": 1.0, "only": 5.0}),
        RewardBatch(("r",), (1.0,), [[]], torch.zeros(0), {"seen": 9.0}),
        RewardBatch(("r",), (1.0,), [[0.0] * 6], torch.zeros(6), {"seen": 3.0}),
    ]
    joined = join_rewards(rewards)
    assert joined.metrics == {"seen": pytest.approx((2 * 1 + 6 * 3) / 8), "only": 5.0}
    assert joined.totals() == [1.0, None, *[0.0] * 6] and joined.components == [[1.0, None, *[0.0] * 6]]


def test_without_media_it_is_small_and_still_told_of():
    small = scored([2], [1, 3], [1]).without_media()
    assert small.batch.pixel_values is None and len(small.prompts) == 0 and small.rollout.texts == ["1:1", "1:3"]
