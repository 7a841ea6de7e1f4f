"""The card beside a model: what it says is what the run was, and it may be somebody's own."""

import re
from concurrent.futures import Future
from pathlib import Path

import pytest
import torch
import yaml
from huggingface_hub import HfApi, ModelCard, RepoUrl
from transformers import AutoModelForImageTextToText, AutoProcessor

from qwenvl import GRPOConfig, GRPOTrainer
from qwenvl.data.prompt_settings import PromptSettings
from qwenvl.train.card import base_on_the_hub, write_card
from qwenvl.train.merge import merge
from tests.test_docs import blocks


def test_metadata_of_the_user_stays_and_that_of_peft_goes(tmp_path):
    path, base = tmp_path / "README.md", "Qwen/Qwen2.5-VL-3B-Instruct"
    tags = ["mine", "base_model:adapter:/home/me/model", "lora"]
    head = {"license": "mit", "base_model": "/home/me/model", "tags": tags}
    path.write_text(f"---\n{yaml.safe_dump(head)}---\n# Adapter\n")
    write_card(tmp_path, "# One", "/home/me/model", adapter=True, tags=("qwenvl",))
    data = ModelCard.load(path).data
    assert (data.license, data.tags, data.base_model) == ("mit", ["mine", "lora", "qwenvl"], None)
    write_card(tmp_path, "# Two", base, adapter=False, tags=("qwenvl",))
    data = ModelCard.load(path).data
    assert (data.tags, data.library_name, data.base_model_relation) == (["mine", "qwenvl"], "transformers", "finetune")
    assert base_on_the_hub(str(tmp_path)) == base and path.read_text().endswith("---\n\n# Two\n")


def settings_in(folder: Path) -> dict:
    """The settings that the card of a folder shows."""
    return yaml.safe_load(blocks(folder / "README.md", "yaml")[0])


def test_a_card_describes_the_run_and_its_evaluations(make_trainer, sop_data, tmp_path):
    """A run of two steps on the tiny model, with evaluations before and after it and a checkpoint after each step."""
    (tmp_path / "private").touch()
    trainer = make_trainer(
        eval_dataset_use=str(sop_data),
        eval_strategy="steps",
        eval_steps=1,
        eval_on_start=True,
        save_strategy="steps",
        save_steps=1,
        grpo_beta=0.2,
        dataset_catalog=str(tmp_path / "private"),
    )
    trainer.train()
    trainer.save_model()
    run = tmp_path / "run"
    card = (run / "README.md").read_text()
    data = ModelCard.load(run / "README.md").data
    base = trainer.prompt_settings.base_model
    assert f"Trained from `{base}` by GRPO with qwenvl: 2 optimizer steps, each of 1 prompt with 3 compl" in card
    assert "- Reward of a completion: 1 x `letters`." in card
    assert "- What learned: the language model, the merger." in card
    shown = settings_in(run)
    assert shown["grpo_beta"] == 0.2 and shown["base_interval"] == 0.5 and shown["learning_rate"] == 1e-3
    assert "dataset_catalog" not in shown and "private" not in card
    rows = {row["step"]: row for row in trainer.state.log_history if "eval_total_reward" in row}
    assert sorted(rows) == [0, 1, 2]
    for step in (0, 2):
        mean, half = (rows[step][name] for name in ("eval_letters_reward", "eval_letters_reward_ci95"))
        assert f"| eval | {step} | 8 |" in card and f"{mean:.3f} ± {half:.3f}" in card
    assert "| eval | 1 |" not in card, "of several evaluations the first and the last are shown"
    assert data.library_name == "transformers" and data.pipeline_tag == "video-text-to-text"
    assert data.base_model is None, "a folder means nothing to the hub"
    assert {"qwenvl", "grpo"} <= set(data.tags)


def test_evaluations_may_have_different_rewards(tiny_checkpoint, tmp_path):
    """A judge that is gone, or records without it, cost a cell of the card and no checkpoint."""

    def row(kind: str) -> dict:
        return {"id": kind, "prompt": f"Say {kind}.", "solution": kind, "kind": kind}

    def left(completions, kind, **columns):
        return [float(len(text)) if each == "left" else None for text, each in zip(completions, kind, strict=True)]

    def right(completions, kind, **columns):
        return [float(len(text)) if each == "right" else None for text, each in zip(completions, kind, strict=True)]

    settings = {"max_steps": 1, "eval_strategy": "steps", "eval_steps": 1, "save_steps": 1, "use_cpu": True}
    sampling = {"grpo_sample_size": 2, "generation_max_length": 4}
    args = GRPOConfig(str(tmp_path / "run"), **settings, **sampling, disable_tqdm=True)
    trainer = GRPOTrainer(
        str(tiny_checkpoint()),
        args,
        [row("left"), row("right")],
        eval_dataset={"one": [row("left")], "two": [row("right")]},
        reward_funcs=[left, right],
    )
    trainer.train()
    trainer.save_model()
    for folder in ("run", "run/checkpoint-1"):
        card = (tmp_path / folder / "README.md").read_text()
        assert "| evaluation | step | prompts | total | left | right |" in card
        [one] = [line for line in card.splitlines() if line.startswith("| eval_one | 1 | 1 |")]
        [two] = [line for line in card.splitlines() if line.startswith("| eval_two | 1 | 1 |")]
        assert one.endswith(" | – |") and two.split(" | ")[4] == "–"


@pytest.mark.parametrize("kind", ["whole", "adapter", "merged"])
def test_the_code_of_a_card_runs_on_the_weights_beside_it(make_trainer, make_clip, tmp_path, monkeypatch, capsys, kind):
    """The snippet as it stands but for the clip's name and a shorter answer, with plain transformers and peft."""
    trainer = make_trainer(max_steps=1, lora_enable=kind != "whole", learning_rate=0.1)
    trainer.train()
    trainer.save_model()
    folder = tmp_path / "run"
    if kind == "merged":
        folder = tmp_path / "whole"
        merge(tmp_path / "run", folder)
    data = ModelCard.load(folder / "README.md").data
    assert data.library_name == ("peft" if kind == "adapter" else "transformers")
    assert ("lora" in data.tags) == (kind == "adapter")
    clip = make_clip("clip.mp4", 20)
    monkeypatch.chdir(folder)
    [code] = [block for block in blocks(Path("README.md"), "python") if "read_clip" in block]
    code = code.replace('"clip.mp4"', repr(str(clip))).replace("max_new_tokens=512", "max_new_tokens=4")
    names = {"__name__": "card"}
    exec(compile(code, "README.md", "exec"), names)
    assert capsys.readouterr().out.endswith("\n")
    ids = torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        expected = trainer.model(input_ids=ids).logits
        torch.testing.assert_close(names["model"](input_ids=ids).logits, expected, atol=1e-4, rtol=1e-4)
        base = AutoModelForImageTextToText.from_pretrained(trainer.prompt_settings.base_model)
        assert (base(input_ids=ids).logits - expected).abs().max() > 1e-2


def test_a_push_to_the_hub_has_our_card(make_trainer, tmp_path, monkeypatch):
    pushed: list[str] = []

    def upload(*hub, folder_path, **kwargs):
        pushed.append((Path(folder_path) / "README.md").read_text())
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def create(*hub, **kwargs):
        return RepoUrl("https://huggingface.co/org/sop")

    monkeypatch.setattr(HfApi, "create_repo", create)
    monkeypatch.setattr(HfApi, "upload_folder", upload)
    for name, fake in (("create_repo", create), ("upload_folder", upload)):  # where older versions look for them
        monkeypatch.setattr(f"transformers.trainer.{name}", fake, raising=False)
    trainer = make_trainer(max_steps=1, lora_enable=True, push_to_hub=True, save_strategy="steps", save_steps=1)
    trainer.train()  # pushes its checkpoint
    trainer.push_to_hub()
    early, late = pushed[0], pushed[-1]
    assert early.count("## Inputs") == late.count("## Inputs") == 1
    for text in (early, late):
        data = ModelCard(text).data
        assert text.count("## Training\n") == 1 and "grpo" in data.tags
        assert data.library_name == "peft"


def test_a_checkpoint_and_the_model_make_the_inputs_of_training(make_trainer, tmp_path):
    trainer = make_trainer(max_steps=1, save_strategy="steps", save_steps=1, lora_enable=True, video_max_frames=6)
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
        assert re.match(r"\n+# \S+, trained by GRPO\n\n## Training", card.partition("\n---\n")[2])
