"""The whole command: what it writes, refuses, and leaves alone."""

import json
import re
import shutil

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForImageTextToText, AutoProcessor

from qwenvl.cli import main as qwenvl
from qwenvl.data.prompt_settings import PromptSettings


@pytest.fixture
def adapter_run(make_trainer, tmp_path):
    """A run with LoRA on a warmed-up model of its own folder, and a checkpoint in it."""
    trainer = make_trainer(
        max_steps=1, lora_enable=True, tune_mm_vision=True, learning_rate=0.1, save_strategy="steps", save_steps=1
    )
    trainer.train()
    trainer.save_model()
    return trainer


def test_a_merged_folder_holds_the_whole_model_and_loads_with_plain_transformers(adapter_run, tmp_path, capsys):
    out = tmp_path / "made" / "whole"
    assert qwenvl(["merge", str(tmp_path / "run"), "--out", str(out)]) == 0
    base = adapter_run.prompt_settings.base_model
    assert (
        capsys.readouterr().out
        == f"wrote {out}: {base} with {tmp_path / 'run'} folded in; it loads with plain transformers\n"
    )
    sample = adapter_run.train_dataset[0]
    processor = AutoProcessor.from_pretrained(out)
    text = processor.apply_chat_template(sample.chat, add_generation_prompt=True)
    inputs = processor(text=[text], videos=[sample.videos[0].frames], return_tensors="pt")
    batch = adapter_run.data_collator([sample])["prompts"]
    assert torch.equal(inputs["input_ids"], batch.input_ids) and torch.equal(
        inputs["video_grid_thw"], batch.video_grid_thw
    )
    plain = AutoModelForImageTextToText.from_pretrained(base)
    with torch.no_grad():
        of_base = plain(**inputs).logits
        expected = PeftModel.from_pretrained(plain, tmp_path / "run")(**inputs).logits
        found = AutoModelForImageTextToText.from_pretrained(out)(**inputs).logits
    assert (of_base - expected).abs().max() > 1e-2
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    assert PromptSettings.load(out) == PromptSettings.load(tmp_path / "run")
    assert processor.chat_template == AutoProcessor.from_pretrained(tmp_path / "run").chat_template
    made = json.loads((out / "generation_config.json").read_text())
    assert made["eos_token_id"] == plain.generation_config.eos_token_id
    assert "## Merged" in (out / "README.md").read_text() and not (out / "adapter_config.json").exists()
    assert [path.name for path in out.parent.iterdir()] == ["whole"], "nothing unfinished is left beside it"


def test_an_adapter_of_another_library_takes_the_processor_of_its_base(tiny_checkpoint, tmp_path, capsys):
    base = tiny_checkpoint(initializer_range=0.1)
    model = AutoModelForImageTextToText.from_pretrained(base)
    get_peft_model(model, LoraConfig(target_modules=["q_proj"])).save_pretrained(tmp_path / "adapter")
    moved = tmp_path / "moved"
    shutil.copytree(base, moved)
    config = tmp_path / "adapter" / "adapter_config.json"
    config.write_text(config.read_text().replace(str(base), "/gone/base"))
    with pytest.raises(SystemExit):
        qwenvl(["merge", str(tmp_path / "adapter"), "--out", str(tmp_path / "whole")])
    assert "/gone/base: no such folder" in (told := capsys.readouterr().err) and "give --base" in told
    assert not (tmp_path / "whole").exists()
    assert qwenvl(["merge", str(tmp_path / "adapter"), "--out", str(tmp_path / "whole"), "--base", str(moved)]) == 0
    assert AutoProcessor.from_pretrained(tmp_path / "whole").chat_template


def test_a_used_output_folder_and_a_missing_or_torn_adapter_are_refused(adapter_run, tmp_path, capsys):
    shutil.copytree(tmp_path / "run" / "checkpoint-1", tmp_path / "torn")
    weights = tmp_path / "torn" / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    for adapter, out, message in (
        ("run", "run", r"--out .*run: holds something already; give a folder that is new or empty"),
        ("none", "new", r"none: no adapter in it \(adapter_config.json\); expected the folder of a finished run with"),
        ("torn", "new", "adapter_model.safetensors: cut short"),
        ("run/adapter_config.json", "new", "adapter_config.json: a file; expected the folder of an adapter"),
    ):
        with pytest.raises(SystemExit) as ended:
            qwenvl(["merge", str(tmp_path / adapter), "--out", str(tmp_path / out)])
        told = capsys.readouterr().err.strip().splitlines()[-1]
        assert ended.value.code == 2 and re.match("qwenvl merge: .*" + message, told), told
        assert not (tmp_path / "new").exists()
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    with pytest.raises(SystemExit):
        qwenvl(["merge", str(tmp_path / "run"), "--out", str(tmp_path / "link")])
    assert f"link: is a link; give the folder itself, {tmp_path / 'empty'}" in capsys.readouterr().err
