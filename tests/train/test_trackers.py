"""What real trackers keep of a run: numbers in four sections, and a table with pictures at each evaluation."""

import glob
import json
import os
import sqlite3

import pytest
import torch
from PIL import Image
from transformers.integrations import integration_utils

from qwenvl.report.curves import SECTIONS
from qwenvl.runlog import read_metrics, read_rollouts
from qwenvl.train.trackers import (
    GAP,
    HEIGHT,
    Answer,
    by_section,
    columns_of,
    frames_of,
    require_trackers,
    strip_of,
    unchanged_names,
)
from tests.train.display.test_completions import rollout


def test_a_tracker_that_is_not_installed_is_refused():
    with pytest.raises(ImportError, match="--report_to comet_ml: its package is not installed; pip install comet_ml"):
        require_trackers(["comet_ml", "tensorboard", "azure_ml"])


def test_names_have_the_sections_of_the_report():
    logs = {"reward/total": 1, "kl": 2, "time/data_wait_s": 3, "data/bad_samples": 4, "eval_total_reward": 5}
    assert by_section(logs | {"train_loss": 6, "total_flos": 7}) == {
        **{"learning/reward/total": 1, "stable/kl": 2, "fast/time/data_wait_s": 3, "data/bad_samples": 4},
        **{"learning/eval_total_reward": 5, "train_loss": 6, "total_flos": 7},
    }
    before = integration_utils.rewrite_logs({"loss": 1})
    with unchanged_names():
        assert integration_utils.rewrite_logs({"loss": 1}) == {"loss": 1}
    assert integration_utils.rewrite_logs({"loss": 1}) == before == {"train/loss": 1}


@pytest.fixture(scope="module")
def trackio_folder(tmp_path_factory):
    """Where trackio keeps runs: it reads the variable when it is imported."""
    folder = tmp_path_factory.mktemp("trackio")
    os.environ["TRACKIO_DIR"] = str(folder)
    from trackio.utils import TRACKIO_DIR

    return TRACKIO_DIR


def test_tensorboard_and_trackio_have_all_that_the_run_folder_has(make_trainer, trackio_folder, sop_data):
    import trackio
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    trainer = make_trainer(report_to=["tensorboard", "trackio"], eval_dataset_use=str(sop_data), eval_strategy="epoch")
    trainer.train()
    trainer.evaluate()  # training has ended, and with it the trackers
    trackio.finish()
    folder = trainer.args.output_dir
    (logs,) = {os.path.dirname(path) for path in glob.glob(f"{folder}/runs/**/events*", recursive=True)}
    events = EventAccumulator(logs, size_guidance={"tensors": 0, "images": 0}).Reload()
    tags = events.Tags()
    for row in read_metrics(folder):
        step = row.pop("step")
        for name, value in by_section(row).items():
            at = [each.value for each in events.Scalars(name) if each.step == step]
            assert pytest.approx(value, rel=1e-5, nan_ok=True) in at, name
    grouped = {tag.split("/")[0] for tag in tags["scalars"] if not tag.startswith(("train_", "total_flos"))}
    assert grouped == set(SECTIONS)
    evaluated = list(read_rollouts(folder, split="eval"))
    assert f"data/eval_completions/{evaluated[0].record_id}" in tags["images"]
    text = events.Tensors("data/eval_completions/text_summary")[-1].tensor_proto.string_val[0].decode()
    assert text.count("\n") == 1 + 8 and "&lt;answer&gt;" in text and "<answer>" not in text

    (base,) = trackio_folder.glob("qwenvl*.db")
    rows = [json.loads(each) for (each,) in sqlite3.connect(base).execute("select metrics from metrics order by id")]
    runs = {name for (name,) in sqlite3.connect(base).execute("select run_name from metrics")}
    assert len(runs) == 1 and runs == {trainer.args.run_name}, "the evaluation after training is of the same run"
    first = read_metrics(folder, "train")[0]
    assert rows[0]["learning/reward/total"] == pytest.approx(first["reward/total"])
    tables = [row["data/eval_completions"]["_value"] for row in rows if "data/eval_completions" in row]
    assert tables and [each["completion"] for each in tables[-1]] == [each.completion for each in evaluated[-8:]]
    pictures = [trackio_folder / "media" / each["frames"]["file_path"] for each in tables[-1]]
    assert Image.open(pictures[0]).width > Image.open(pictures[0]).height


def test_columns_are_of_one_type_and_without_frames_where_no_prompt_has_any():
    strip = Image.new("RGB", (30, 10))
    answers = [Answer(rollout(0, 0.5, "one \ud800"), strip), Answer(rollout(0, None, "two"), None)]
    columns = columns_of(answers, picture=lambda each: each.size)
    assert columns["frames"] == [(30, 10), (8, 8)] and columns["reward"] == [0.5, None]
    assert columns["completion"] == ["one \\ud800", "two"] and columns["rewards"][1] == "format 1, accuracy none"
    assert columns["question"][0] == "<video>\nWhich steps?"
    assert "frames" not in columns_of(answers[1:], picture=lambda each: each) and "frames" not in columns_of(answers)


def test_frames_are_those_that_the_processor_cut_into_patches(tiny_pair):
    _, processor = tiny_pair()
    frames = torch.randint(0, 256, (4, 3, 56, 84), dtype=torch.uint8)
    settings = {"do_resize": False, "do_rescale": False, "do_normalize": False, "do_sample_frames": False}
    made = processor.video_processor(videos=[frames], return_tensors="pt", **settings)
    patches, grid = made["pixel_values_videos"].to(torch.uint8), made["video_grid_thw"][0].tolist()
    assert torch.equal(frames_of(patches, grid, processor.image_processor), frames.permute(0, 2, 3, 1))


def test_a_strip_shows_what_the_prompt_has_side_by_side(make_trainer):
    trainer = make_trainer()
    by_id = {record.id: n for n, record in enumerate(trainer.train_dataset.records)}

    def strip(name: str) -> Image.Image | None:
        batch = trainer.data_collator([trainer.train_dataset[by_id[name]]])["prompts"]
        return strip_of(batch, trainer.data_collator.processor.image_processor)

    batch = trainer.data_collator([trainer.train_dataset[by_id["clip-0"]]])["prompts"]
    count = len(batch.frames[0][0].indices)
    shown = strip("clip-0")
    assert shown.height <= HEIGHT and (shown.width + GAP) % count == 0 and count > 1
    assert strip("text") is None
    red = strip("image")
    assert [abs(a - b) < 12 for a, b in zip(red.getpixel((5, 5)), (200, 30, 30), strict=True)] == [True] * 3
