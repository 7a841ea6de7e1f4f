"""Dynamic sampling and difficulty in several processes: they make rounds together and share their pass rates."""

import json
from collections import Counter, defaultdict

from qwenvl.data.difficulty import Difficulty
from qwenvl.data.options import DifficultyArguments
from qwenvl.data.order import EpochSampler, Part
from qwenvl.runlog import read_metrics, read_rollouts
from tests.train.conftest import turns
from tests.train.test_distributed import launch


def test_two_processes_fill_their_steps_together_and_draw_by_the_same_pass_rates(tiny_checkpoint, tmp_path):
    """Records with even numbers differ. In the first steps a process may be full while the other one is not."""
    rows = [{"id": f"text-{n}", "conversations": turns("What comes next? " + "step " * n, "(1)")} for n in range(8)]
    data, output = tmp_path / "texts.json", tmp_path / "alike"
    data.write_text(json.dumps(rows))
    flags = {"filter_groups": "total(max_rounds=4)", "difficulty_band": "total(high=0.99)", "seed": 5}
    launch(2, tiny_checkpoint(initializer_range=0.1), data, output, per_device_train_batch_size=2, max_steps=5, **flags)
    ranks = [
        [json.loads(line) for line in (output / "rollouts" / f"rank-{rank}.jsonl").read_text().splitlines()]
        for rank in (0, 1)
    ]
    groups = [defaultdict(list), defaultdict(list)]
    for process, rank in zip(groups, ranks, strict=True):
        for row in rank:
            if row["sample"] == 0:
                process[row["step"]].append((row["record_id"], row["dropped"]))
    log = [row for row in read_metrics(output) if "loss" in row]
    assert [row["step"] for row in log] == [1, 2, 3, 4, 5]
    unequal = 0
    for row in log:
        sampled = [process[row["step"]] for process in groups]
        kept = [[name for name, dropped in own if not dropped] for own in sampled]
        assert [len(own) for own in kept] == [2, 2], "each process keeps the size of its step"
        assert all(len(set(own)) == len(own) for own in sampled), "no record twice in a step"
        good = sum(int(name[-1]) % 2 == 0 for own in sampled for name, _ in own)
        assert row["filter/kept_frac"] * sum(map(len, sampled)) == good
        unequal += len(sampled[0]) != len(sampled[1])
        assert row["filter/rounds"] == int(row["filter/rounds"]) <= 4
    assert unequal, "one process took part in a round with nothing"
    # Pass rates are those of all completions of both processes.
    totals = defaultdict(list)
    times = Counter()
    for row in read_rollouts(output):
        totals[row.where].append(row.total)
        times[row.where] += row.sample == 0
    known = [json.loads(line) for line in (output / "difficulty.jsonl").read_text().splitlines()]
    assert {row["where"]: row["drawn"] for row in known} == dict(times) and len(known) == 8
    assert all(row["pass_rate"] == sum(totals[row["where"]]) / len(totals[row["where"]]) for row in known)
    assert [row["outside"] for row in known] == [False, True] * 4
    # The second epoch begins with step 3. Both processes draw it by what both have seen in the first.
    difficulty = Difficulty(DifficultyArguments(high=0.99))
    for row in read_rollouts(output):
        if row.sample == 0 and row.step < 3:
            difficulty.add(0, int(row.record_id[-1]), [1.0 if int(row.record_id[-1]) % 2 else 1 / 3])
    order = EpochSampler([Part("texts", 8)], seed=5, difficulty=difficulty)
    order.set_epoch(1)
    keys = list(order)
    assert sum(index % 2 for _, index in keys) <= 1, "what is always right is drawn less"
    for process, expected in zip(ranks, (keys[:2], keys[2:4]), strict=True):
        drawn = {(row["epoch"], int(row["record_id"][-1])) for row in process if row["step"] == 3}
        assert set(expected) <= drawn
