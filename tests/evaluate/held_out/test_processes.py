"""Several processes: the same samples as one."""

import json
from types import SimpleNamespace

from qwenvl.evaluate.held_out.asking import Asking
from qwenvl.evaluate.held_out.questions import BLOCK, Questions
from qwenvl.runlog.evaluation import SampleKey
from qwenvl.types import Record
from tests.train.test_distributed import launch_ranks


def test_two_processes_share_the_records(tiny_checkpoint, make_clip, make_row, write_rows, tmp_path, capsys):
    make_clip("clip.mp4", 20)
    rows = [make_row(prompt=f"Which of {n} steps?", id=f"text-{n}") for n in range(BLOCK)]
    rows.append(make_row(prompt="<video>\nWhich steps?", video="clip.mp4", id="clip"))  # the second process's only one
    words = [str(tiny_checkpoint(initializer_range=0.1)), str(write_rows(rows))]
    words += ["--use_cpu", "--generation_max_length", "6", "--samples", "2", "--controls", "blank,text_only"]
    launch_ranks("evaluate", 2, [*words, "--output_dir", str(tmp_path / "two")])
    launch_ranks("evaluate", 1, [*words, "--output_dir", str(tmp_path / "one")])
    one, two = ((tmp_path / name / "samples.jsonl").read_text() for name in ("one", "two"))
    assert one == two and one.count("\n") == 2 * (BLOCK + 1 + 2)
    numbers = [json.loads((tmp_path / name / "evaluation.json").read_text()) for name in ("one", "two")]
    same = ("models", "protocol", "numbers", "drops", "left_out")
    assert [numbers[0][name] for name in same] == [numbers[1][name] for name in same]
    assert sorted(path.name for path in (tmp_path / "two").iterdir()) == ["evaluation.json", "samples.jsonl"]


def test_what_is_not_done_is_dealt_out_evenly():
    count = 5 * BLOCK
    records = {n: Record(str(n), (), "", (), (), (), {}, str(n)) for n in range(count)}
    questions = Questions(records, {}, ("none",))
    done = {SampleKey("m", "none", n, 0) for n in [*range(BLOCK), *range(2 * BLOCK, 3 * BLOCK), count - 1]}
    done -= {SampleKey("m", "none", 2 * BLOCK, 0)}  # of the third block one is missing, which was left out
    dealt = [
        Asking("m", config, None, None, questions, 1, done, {("none", 2 * BLOCK)}).blocks()
        for config in (SimpleNamespace(process_index=n, world_size=2) for n in range(2))
    ]
    assert [[block[0] // BLOCK for block in blocks] for blocks in dealt] == [[1, 4], [3]]
