"""What a run leaves for whoever loads its model: the processor, its settings, and a section of the card."""

import pytest
import torch
from transformers import AutoProcessor

from qwenvl.data.options import FrameOptions, PromptOptions
from qwenvl.data.saved_processor import PromptSettings
from qwenvl.demo.tiny import make_processor
from qwenvl.train.card.run_card import inputs_section

SETTINGS = PromptSettings(FrameOptions(base_interval=0.5), PromptOptions(), "org/base", "Be brief.", "Q: {prompt}")


@pytest.mark.parametrize("lora", [False, True])
def test_a_checkpoint_and_the_model_make_the_inputs_of_training(make_trainer, tmp_path, lora):
    trainer = make_trainer(max_steps=1, save_strategy="steps", save_steps=1, lora_enable=lora, video_max_frames=6)
    trainer.train()
    trainer.save_model()
    sample = trainer.train_dataset[0]
    batch = trainer.data_collator([sample])["prompts"]
    for folder in (tmp_path / "run", tmp_path / "run" / "checkpoint-1"):
        processor = AutoProcessor.from_pretrained(folder)
        inputs = processor(
            text=[processor.apply_chat_template(sample.chat, add_generation_prompt=True)],
            videos=[sample.videos[0].frames],
            return_tensors="pt",
        )
        assert torch.equal(inputs["input_ids"], batch.input_ids)
        assert torch.equal(inputs["video_grid_thw"], batch.video_grid_thw)
        assert processor.video_processor.max_frames == 6
        assert PromptSettings.load(folder).frames.video_max_frames == 6
        card = (folder / "README.md").read_text()
        assert "- Frames: 2 per second of a clip, 4 to 6 in all" in card and card.count("## Inputs") == 1
        assert ("PEFT" in card) == lora, "what peft writes of an adapter stays"


def test_the_card_says_where_frames_are_taken():
    processor = make_processor("qwen3_vl")
    assert "4 to 8 in all, evenly from the first to the last." in inputs_section(SETTINGS, processor)
    change = PromptSettings(FrameOptions(frame_sampler="change"), PromptOptions())
    assert "4 to 8 in all, half of them evenly and half where the picture changes (`" in inputs_section(
        change, processor
    )


def test_the_frames_are_those_of_the_data_set(make_trainer, sop_data):
    from qwenvl.data.dataset import load_dataset

    dataset = load_dataset(str(sop_data), video_fps=4.0, video_max_frames=2, video_min_frames=1)
    trainer = make_trainer(datasets=[dataset], dataset_use=None)
    assert trainer.processing_class.video_processor.fps == 4.0
    assert trainer.processing_class.video_processor.max_frames == 2


def test_the_difference_of_whole_clips_is_said_where_there_is_one():
    section = inputs_section(SETTINGS, make_processor("qwen2_5_vl"))
    assert "Be brief." in section and "Q: {prompt}" in section and "One difference is left" not in section
    assert "`generate` of transformers places the text" in section
    of_qwen3 = inputs_section(SETTINGS, make_processor("qwen3_vl"))
    assert "Frames below 3,136 pixels" in of_qwen3 and "`generate`" not in of_qwen3
