"""The order of training by ``--train_sampling_strategy``."""

import copy
import json

import pytest
from accelerate.data_loader import BatchSamplerShard
from torch.utils.data import BatchSampler

from qwenvl.run_log.log import read_metrics, read_rollouts
from qwenvl.step.assemble import build_sampler
from tests.train.conftest import turns

MIXED = [n * 7 % 17 for n in range(1, 17)]  # the numbers from 1 to 16


@pytest.fixture
def uneven(sop_data, tmp_path) -> str:
    """Sixteen prompts of text, of 1 to 16 repetitions of a word, and two with clips; in mixed order."""
    rows = json.loads(sop_data.read_text())
    texts = [{"id": f"text-{n}", "conversations": turns("step " * n, "(1)")} for n in MIXED]
    clips = [row | {"video": str(sop_data.parent / row["video"])} for row in rows[:2]]
    path = tmp_path / "uneven.json"
    path.write_text(json.dumps(texts[:8] + clips + texts[8:]))
    return str(path)


def drawn_in(trainer) -> dict[int, list[str]]:
    steps: dict[int, list[str]] = {}
    for row in read_rollouts(trainer.args.output_dir):
        if row.sample == 0:
            steps.setdefault(row.step, []).append(row.record_id)
    return steps


def settings(data: str, **more) -> dict:
    return {"dataset_use": data, "allow_outside_media": True, "per_device_train_batch_size": 2, "max_steps": 9, **more}


def test_steps_hold_prompts_of_like_length_and_less_is_padded(make_trainer, uneven, tmp_path):
    padding = {}
    for strategy in ("random", "group_by_length"):
        options = settings(uneven, train_sampling_strategy=strategy, output_dir=str(tmp_path / strategy))
        trainer = make_trainer(**options)
        trainer.train()
        lengths = {
            record.id: trainer.data_collator([trainer.train_dataset[n]])["prompts"].input_ids.shape[1]
            for n, record in enumerate(trainer.train_dataset.records)
        }
        steps = drawn_in(trainer)
        assert sorted(name for names in steps.values() for name in names) == sorted(lengths)
        for row in read_metrics(trainer.args.output_dir)[:9]:
            pair = [lengths[name] for name in steps[row["step"]]]
            assert row["prompt/padding_frac"] == pytest.approx(1 - sum(pair) / (2 * max(pair)), abs=1e-6)
        padding[strategy] = sum(abs(lengths[a] - lengths[b]) for a, b in steps.values())
        if strategy == "group_by_length":
            for names in ([*steps[1], *steps[2]], [*steps[3], *steps[4]]):  # a pool is 18 // (4 * 2) = 2 steps
                one, other = sorted([lengths[n] for n in names[:2]]), sorted([lengths[n] for n in names[2:]])
                assert one[1] <= other[0] or other[1] <= one[0]
    assert padding["group_by_length"] < padding["random"]


def test_processes_draw_every_record_once_between_them(make_trainer):
    """Eight records in steps of six: the second step has two, and empty places."""
    trainer = make_trainer(per_device_train_batch_size=3)
    two = copy.copy(trainer.args)
    two.__class__ = type("TwoProcesses", (type(two),), {"world_size": 2})
    order = BatchSampler(build_sampler(trainer.train_dataset, two, 3, trainer.data_collator), 3, drop_last=False)
    shares = [list(BatchSamplerShard(order, 2, process)) for process in range(2)]
    assert [len(share) for share in shares] == [2, 2]
    drawn = [key for share in shares for batch in share for key in batch if key is not None]
    assert sorted(drawn) == [(0, index) for index in range(8)]


def test_evaluation_keeps_its_order(make_trainer, uneven, sop_data):
    options = settings(uneven, train_sampling_strategy="group_by_length", eval_dataset_use=str(sop_data))
    trainer = make_trainer(**options)
    trainer.evaluate()
    seen = [row.record_id for row in read_rollouts(trainer.args.output_dir, split="eval")]
    assert seen == [record.id for record in trainer.eval_dataset.records]


def test_sequential_draws_records_in_their_order(make_trainer, sop_data):
    trainer = make_trainer(train_sampling_strategy="sequential", max_steps=3)
    trainer.train()
    assert list(drawn_in(trainer).values()) == [["clip-0"], ["clip-1"], ["clip-2"]]
