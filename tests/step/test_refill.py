"""Dynamic sampling: groups with equal rewards are replaced, and everything else stays what it was."""

import json
import math
from collections import defaultdict

import pytest
import torch

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.run_log.log import read_rollouts
from qwenvl.step.assemble import build_rewards
from qwenvl.step.groups import join_rewards, rewards_of_rows
from qwenvl.types import RewardBatch
from tests.train.conftest import letters, logged

FILTER = {"filter_groups": True, "check_parity": "every", "per_device_train_batch_size": 4}
ONE_ROUND = {**FILTER, "filter_groups": "total(max_rounds=1)"}


def nine_rounds(by: str = "total") -> dict:
    return {**FILTER, "filter_groups": f"{by}(max_rounds=9)"}


def spread(*known: str):
    """A reward that differs within the groups of these records and is 1 for all others."""

    def differs(completions, id, **columns):
        return [float(n % 3) if each in known else 1.0 for n, each in enumerate(id)]

    return differs


def groups_of(trainer) -> dict[int, list]:
    """For each step its groups of training, each a list of rows, in the order of the run folder."""
    steps = defaultdict(list)
    for row in read_rollouts(trainer.args.output_dir):
        if row.sample == 0:
            steps[row.step].append([])
        steps[row.step][-1].append(row)
    return steps


def is_equal(group) -> bool:
    return len({row.total for row in group}) == 1


def is_dropped(group) -> bool:
    (dropped,) = {row.dropped for row in group}
    return dropped


@pytest.mark.parametrize(
    "split",
    [
        {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 4, "top_entropy_quantile": 0.5}
        | {"entropy_coef": 0.01, "entropy_target": 3.0},
        {"per_device_train_batch_size": 3, "num_iterations": 2, "max_steps": 4},
        {"per_device_train_batch_size": 4, "shared_prefix": "off", "scale_rewards": "batch"}
        | {"advantage_estimator": "grpo(kl_in_reward=True)"},
    ],
    ids=str,
)
def test_a_step_is_filled_with_groups_that_differ(make_trainer, split):
    """Half of the records teach something. Whatever the split, the step has its size and its numbers."""
    good = ("clip-1", "clip-2", "text", "image")
    settings = {**FILTER, "filter_groups": "total(max_rounds=9)", **split}
    trainer = make_trainer(**settings, functions=[spread(*good)])
    trainer.train()
    places = trainer.args.per_device_train_batch_size * trainer.args.gradient_accumulation_steps
    rows = [row for row in logged(trainer) if "reward/total" in row]
    steps = groups_of(trainer)
    assert len(steps) == len(rows) == 2
    for row, (step, groups) in zip(rows, steps.items(), strict=True):
        assert row["step"] == step
        drawn = [group[0].record_id for group in groups]
        assert len(set(drawn)) == len(drawn), "no record twice in a step"
        kept, dropped = ([group for group in groups if is_dropped(group) == out] for out in (False, True))
        assert len(kept) == places
        # Four of the eight records are good, and nine rounds find them all.
        assert not any(map(is_equal, kept)) and all(map(is_equal, dropped)) and dropped
        assert all(each.advantage is None for group in dropped for each in group)
        assert all(max(abs(each.advantage) for each in group) > 0.5 for group in kept)
        assert row["filter/kept_frac"] == pytest.approx(len(kept) / len(groups))
        assert row["filter/unfilled_frac"] == 0 and 1 <= row["filter/rounds"] <= 9
        assert row["group/zero_std_frac"] == pytest.approx(len(dropped) / len(groups)), "as sampled"
        totals = [each.total for group in groups for each in group]
        assert row["reward/total"] == pytest.approx(sum(totals) / len(totals)), "as sampled"
        assert row["time/refill_s"] > 0
    parity = [row["parity/max"] for row in rows]
    assert max(parity) < 1e-3, "what is joined is what was sampled: ids, positions, pixels, completions"


def test_good_groups_keep_their_place_and_the_loss_is_that_of_the_groups_in_the_batch(make_trainer):
    """The joined micro-batch has the log-probs of its groups alone, and only the replaced ones changed."""
    trainer = make_trainer(**nine_rounds(), functions=[spread("clip-1", "clip-2", "text", "image")])
    batch = next(iter(trainer.get_train_dataloader()))["prompts"]
    (experience,) = trainer.pipeline([batch], trainer.step_context()).experiences
    was_good = [record.id in ("clip-1", "clip-2", "text", "image") for record in batch.records]
    assert 0 < sum(was_good) < 4
    for before, after, good in zip(batch.records, experience.batch.records, was_good, strict=True):
        assert (before.id == after.id) == good
    together = trainer.logprobs.of_policy(trainer.model, experience).logprobs
    mask, rollout = experience.rollout.completion_mask, experience.rollout
    assert (together - rollout.logprobs)[mask].abs().max() < 1e-4
    for p, record in enumerate(experience.batch.records):
        single = trainer.data_collator([trainer.train_dataset[(experience.batch.epochs[p], record.index)]])["prompts"]
        inputs = trainer.answer.sample.encode.inputs(trainer.model, single)
        rows = slice(3 * p, 3 * p + 3)
        alone = trainer.logprobs.likelihood(trainer.model, inputs, rollout.completion_ids[rows], mask[rows]).logprobs
        torch.testing.assert_close(alone[mask[rows]], together[rows][mask[rows]], rtol=0, atol=2e-5)
        assert single.frames == [experience.batch.frames[p]]


@pytest.mark.parametrize(("reward", "kept", "rounds"), [(spread(), 0, 3), (letters, 1, 0)], ids=["none", "all"])
def test_where_no_group_is_replaced_the_run_is_that_without_the_flag(make_trainer, tmp_path, reward, kept, rounds):
    """No group differs, and no round finds others, or all groups differ."""
    common = {"functions": [reward], "per_device_train_batch_size": 2}
    plain = make_trainer(output_dir=str(tmp_path / "plain"), **common)
    plain.train()
    trainer = make_trainer(**FILTER | common)
    trainer.train()
    for (name, ours), theirs in zip(trainer.model.named_parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(ours, theirs), name
    rows = [row for row in read_rollouts(trainer.args.output_dir) if not row.dropped]
    assert rows == list(read_rollouts(plain.args.output_dir))
    assert kept or {row.advantage for row in rows} == {0.0}
    for row in logged(trainer):
        assert (row["filter/kept_frac"], row["filter/unfilled_frac"], row["filter/rounds"]) == (kept, 1 - kept, rounds)


def test_filter_groups_by_an_unknown_reward_is_refused(make_trainer):
    message = "--filter_groups accurate: no such reward in this run; give one of total"
    with pytest.raises(ValueError, match=message):
        make_trainer(filter_groups="accurate")
    with pytest.raises(ValueError, match=message):  # before anything is loaded, and in a dry run
        build_rewards(GRPOConfig(use_cpu=True, filter_groups="accurate"), None, None)


def test_bad_samples_are_counted_and_not_replaced(make_trainer, sop_data, tmp_path):
    rows = json.loads(sop_data.read_text())
    (tmp_path / "broken.mp4").write_bytes(b"this is no video")
    for n, row in enumerate(rows[:6]):
        row["video"] = str(sop_data.parent / row["video"]) if n % 2 else "broken.mp4"
    path = tmp_path / "some.json"
    path.write_text(json.dumps(rows[:7]))
    trainer = make_trainer(
        **FILTER | {"per_device_train_batch_size": 1, "filter_groups": "total(max_rounds=6)"},
        dataset_use=str(path),
        allow_outside_media=True,
        on_bad_sample="skip",
        functions=[spread("text")],
        max_steps=7,
    )
    trainer.train()
    rows = logged(trainer)
    assert len(rows) == 7 and all(math.isfinite(row["loss"]) for row in rows)
    groups = groups_of(trainer)
    trained = [group for each in groups.values() for group in each if not is_dropped(group)]
    assert len(trained) == 4, "three steps had no prompt"
    assert sum(row["data/bad_samples"] for row in rows) > 3, "those that rounds drew are counted too"
    assert len(trainer.journal.bad_samples) == 3


def test_temporal_contrast_is_part_of_the_total(make_trainer):
    """The bonus makes groups differ: ordered clips are right, and one completion of each is not."""

    def some_right(completions, id, **columns):
        return [0.0 if n % 3 else 1.0 for n in range(len(completions))]

    groups = {"filter_groups": "temporal_contrast(max_rounds=2)"}
    trainer = make_trainer(**FILTER | groups, temporal_contrast=True, functions=[some_right])
    trainer.train()
    for groups in groups_of(trainer).values():
        for group in groups:
            assert not is_equal(group) and {"some_right", "temporal_contrast"} == set(group[0].rewards)
            # The tiny model is never right: no bonus anywhere. Groups without video have none and go by their total.
            assert is_dropped(group) <= bool(group[0].clips)
    assert all(row["filter/rounds"] == 2 and "time/contrast_s" in row for row in logged(trainer))


def test_refills_are_counted_as_drawn(make_trainer, sop_data, tmp_path):
    rows = json.loads(sop_data.read_text())
    for name, chosen in (("texts", [{**rows[6], "id": f"text-{n}"} for n in range(6)]), ("other", rows[6:7])):
        (tmp_path / f"{name}.json").write_text(json.dumps(chosen))
    names = [f"{tmp_path}/{name}.json" for name in ("texts", "other")]
    trainer = make_trainer(**FILTER, dataset_use=",".join(names), functions=[spread("text-1")], max_steps=1)
    trainer.train()
    (row,) = logged(trainer)
    assert sum(row[f"dataset/{name}/drawn"] for name in names) == 7
    assert row["filter/rounds"] == 1, "after it no records are left"


def test_a_killed_and_resumed_run_draws_the_same_groups(whole_and_resumed):
    settings = {**FILTER, "per_device_train_batch_size": 2, "num_iterations": 2, "max_steps": 6}
    settings |= {"save_strategy": "steps", "save_steps": 4, "functions": [spread("clip-1", "clip-2", "text")]}
    whole, resumed = whole_and_resumed(killed=5, resumed_from=4, **settings)
    rows = [list(read_rollouts(trainer.args.output_dir)) for trainer in (whole, resumed)]
    assert rows[0] == rows[1] and any(row.dropped for row in rows[0] if row.step > 4)
    assert logged(whole, times=False) == logged(resumed, times=False)


def test_metrics_stay_with_the_rows_of_their_call():
    metrics = {"seen": [1.0, 1.0], "only": [5.0, 5.0]}
    rewards = [
        RewardBatch(("r",), (1.0,), [[1.0, None]], torch.tensor([1.0, math.nan]), metrics),
        RewardBatch(("r",), (1.0,), [[]], torch.zeros(0), {"seen": []}),
        RewardBatch(("r",), (1.0,), [[0.0] * 3], torch.zeros(3), {"seen": [3.0] * 3}),
    ]
    joined = join_rewards(rewards)
    assert joined.metrics == {"seen": [1.0, 1.0, 3.0, 3.0, 3.0], "only": [5.0, 5.0, None, None, None]}
    assert joined.totals() == [1.0, None, 0.0, 0.0, 0.0] and joined.components == [[1.0, None, 0.0, 0.0, 0.0]]
    assert rewards_of_rows(joined, [4, 0]).metrics == {"seen": [3.0, 1.0], "only": [None, 5.0]}


def test_what_functions_log_is_averaged_over_all_that_was_sampled(make_trainer):
    """Kept groups and dropped ones count as often as they were scored."""
    differs = spread("clip-1", "clip-2", "text", "image")

    def logs(completions, log_metric, **columns):
        values = differs(completions, **columns)
        for value in values:
            log_metric("same", value)
        return values

    split = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 4}
    trainer = make_trainer(**{**nine_rounds(), **split}, functions=[logs])
    trainer.train()
    rows = [row for row in logged(trainer) if "reward/total" in row]
    assert len(rows) == 2 and any(row["filter/kept_frac"] < 1 for row in rows)
    for row in rows:
        assert row["reward/logs/same"] == pytest.approx(row["reward/logs"], rel=1e-12)


def test_failed_rows_stay_with_their_groups():
    rewards = RewardBatch(
        names=("r",),
        weights=(1.0,),
        components=[[1.0, None, 0.0]],
        total=torch.tensor([1.0, math.nan, 0.0]),
        failed={"r": [False, True, False]},
    )
    parts = [rewards_of_rows(rewards, rows) for rows in ([1], [0, 2])]
    assert [part.failed for part in parts] == [{"r": [True]}, {"r": [False, False]}]
    assert join_rewards(parts).failed == {"r": [True, False, False]}
