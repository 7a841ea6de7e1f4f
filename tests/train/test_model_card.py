"""What a run leaves for whoever loads its model: the processor, its settings, and a card that says so."""

from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from huggingface_hub import HfApi
from transformers import AutoProcessor

from qwenvl.data.options import FrameOptions, PromptOptions
from qwenvl.data.saved_processor import PromptSettings
from qwenvl.demo.tiny import make_processor
from qwenvl.train.model_card import describe_inputs, inputs_section

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


def test_the_frames_are_those_of_the_data_set(make_trainer, sop_data):
    from qwenvl.data.dataset import load_dataset

    dataset = load_dataset(str(sop_data), video_fps=4.0, video_max_frames=2, video_min_frames=1)
    trainer = make_trainer(datasets=[dataset], dataset_use=None)
    assert trainer.processing_class.video_processor.fps == 4.0
    assert trainer.processing_class.video_processor.max_frames == 2


def test_an_earlier_section_gives_way_and_the_rest_of_the_card_stays(tmp_path):
    (tmp_path / "README.md").write_text("# Ours\n\nBy hand.\n")
    processor = make_processor("qwen2_5_vl")
    describe_inputs(tmp_path, SETTINGS, processor)
    first = (tmp_path / "README.md").read_text()
    assert first.startswith("# Ours\n\nBy hand.\n\n<!-- inputs")
    assert "Be brief." in first and "Q: {prompt}" in first
    describe_inputs(tmp_path, SETTINGS, processor)
    assert (tmp_path / "README.md").read_text() == first
    describe_inputs(tmp_path, PromptSettings(FrameOptions(base_interval=4.0), PromptOptions()), processor)
    later = (tmp_path / "README.md").read_text()
    assert "0.25 per second" in later and later.count("## Inputs") == 1 and "Be brief." not in later


def test_the_difference_of_whole_clips_is_said_where_there_is_one():
    assert "One difference is left" not in inputs_section(SETTINGS, whole_clips=False)
    assert "Frames below 3,136 pixels" in inputs_section(SETTINGS, whole_clips=True)


@pytest.mark.parametrize("lora", [False, True])
def test_a_push_to_the_hub_keeps_our_section_in_the_trainers_card(make_trainer, tmp_path, monkeypatch, lora):
    pushed: list[str] = []

    def upload(*hub, folder_path, **kwargs):
        pushed.append((Path(folder_path) / "README.md").read_text())
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def create(*hub, **kwargs):
        return SimpleNamespace(repo_id="org/sop")

    monkeypatch.setattr(HfApi, "create_repo", create)
    monkeypatch.setattr(HfApi, "upload_folder", upload)
    for name, fake in (("create_repo", create), ("upload_folder", upload)):  # where older versions look for them
        monkeypatch.setattr(f"transformers.trainer.{name}", fake, raising=False)
    trainer = make_trainer(max_steps=1, lora_enable=lora, push_to_hub=True, save_strategy="steps", save_steps=1)
    trainer.train()  # pushes its checkpoint
    trainer.push_to_hub()
    early, late = pushed[0], pushed[-1]
    assert early.count("## Inputs") == late.count("## Inputs") == 1
    assert "Training hyperparameters" in late, "what the Trainer writes of a run stays"
