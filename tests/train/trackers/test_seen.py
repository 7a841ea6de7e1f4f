"""Frames come back from patches as they went in, and each evaluation keeps its first prompts."""

import torch
from PIL import Image

from qwenvl.train.trackers.seen import GAP, HEIGHT, PROMPTS, Patches, SeenAnswers, strip_of
from tests.train.display.test_completions import rollout


def test_frames_are_those_that_the_processor_cut_into_patches(tiny_pair):
    _, processor = tiny_pair()
    frames = torch.randint(0, 256, (4, 3, 56, 84), dtype=torch.uint8)
    settings = {"do_resize": False, "do_rescale": False, "do_normalize": False, "do_sample_frames": False}
    made = processor.video_processor(videos=[frames], return_tensors="pt", **settings)
    patches = Patches.of(processor)
    shown = patches.frames(made["pixel_values_videos"].to(torch.uint8), made["video_grid_thw"][0].tolist())
    assert torch.equal(shown, frames.permute(0, 2, 3, 1))


def test_a_strip_shows_what_the_prompt_has_side_by_side(make_trainer):
    trainer = make_trainer()
    patches = Patches.of(trainer.data_collator.processor)
    by_id = {record.id: n for n, record in enumerate(trainer.train_dataset.records)}

    def strip(name: str) -> Image.Image | None:
        return strip_of(trainer.data_collator([trainer.train_dataset[by_id[name]]])["prompts"], patches)

    batch = trainer.data_collator([trainer.train_dataset[by_id["clip-0"]]])["prompts"]
    count = len(batch.frames[0][0].indices)
    shown = strip("clip-0")
    assert shown.height <= HEIGHT and (shown.width + GAP) % count == 0 and count > 1
    assert strip("text") is None
    red = strip("image")
    assert [abs(a - b) < 12 for a, b in zip(red.getpixel((5, 5)), (200, 30, 30), strict=True)] == [True] * 3


def test_the_first_prompts_of_each_evaluation_are_kept_until_they_are_taken():
    seen = SeenAnswers(Patches(14, 2, 2))
    batch = type("Batch", (), {"select": lambda self, rows: self, "pixel_values": None, "image_grid_thw": None})()
    batch.pixel_values_videos = batch.video_grid_thw = None
    rows = [rollout(sample, 0.5, f"answer {p}") for p in range(3) for sample in range(2)]
    for _ in range(4):
        seen.add("eval", batch, rows)
    taken = seen.take()
    assert [each.rollout.completion for each in taken["eval"]] == [f"answer {p % 3}" for p in range(PROMPTS)]
    assert seen.take() == {}
