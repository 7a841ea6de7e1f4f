"""A disk that is really full: the last good checkpoint stays, and the message says what lacks."""

import json

import pytest

from tests.forked import forks
from tests.train.conftest import turns


def test_the_last_checkpoint_stays_on_a_full_disk(tiny_checkpoint, tmp_path):
    """A file system of 3 MB, which the second checkpoint fills."""
    context = forks()
    import ranks

    data, log, disk = tmp_path / "texts.json", tmp_path / "log", tmp_path / "disk"
    data.write_text(json.dumps([{"conversations": turns("What comes next?", "(1)")}] * 4))
    disk.mkdir()
    flags = "--use_cpu --max_steps 4 --generation_max_length 2 --grpo_sample_size 2 --save_steps 1 --display none"
    words = [f"--model_name_or_path={tiny_checkpoint()}", f"--dataset_use={data}", f"--output_dir={disk / 'run'}"]
    arguments = (str(log), str(disk), 3, [*words, *flags.split()])
    process = context.Process(target=ranks.on_a_small_disk, args=arguments)
    process.start()
    process.join(120)
    said = log.read_text()
    if "refused:" in said:
        pytest.skip(f"no file system can be mounted here: {said}")
    assert process.exitcode == 0, said
    assert "newest whole: checkpoint-1" in said and said.count("qwenvl train: no space left for") == 1
    assert "Traceback" not in said and f"; resume from {disk}/run/checkpoint-1 with --resume_from_checkpoint" in said
