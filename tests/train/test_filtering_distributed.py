"""Dynamic sampling in several processes: they make rounds together."""

import json
from collections import defaultdict

from qwenvl.run_log.log import read_metrics
from tests.train.conftest import turns
from tests.train.test_distributed import launch


def test_two_processes_fill_their_steps_together(tiny_checkpoint, tmp_path):
    """Records with even numbers differ. In the first steps a process may be full while the other one is not."""
    rows = [{"id": f"text-{n}", "conversations": turns("What comes next? " + "step " * n, "(1)")} for n in range(8)]
    data, output = tmp_path / "texts.json", tmp_path / "run"
    data.write_text(json.dumps(rows))
    flags = {"filter_groups": "total(max_rounds=4)", "seed": 5, "per_device_train_batch_size": 2, "max_steps": 5}
    launch(2, tiny_checkpoint(initializer_range=0.1), data, output, how={"reward": "alike"}, **flags)
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
