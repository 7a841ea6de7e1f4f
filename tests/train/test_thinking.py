"""Checkpoints whose prompts end inside a think block: training, evaluation and preview make the same prompt."""

import json

import pytest
from transformers import AutoProcessor

from qwenvl.doctor.commands import main as data_command
from qwenvl.doctor.preview_command import main as preview_command

THINKS = """
{%- if add_generation_prompt -%}<think>
{% if enable_thinking is defined and not enable_thinking %}</think>
{% endif %}{% endif -%}"""
QUICKLY = ["--chat_template_kwargs", '{"enable_thinking": false}']


@pytest.fixture
def thinking_checkpoint(tiny_checkpoint, tmp_path):
    """A folder like that of a hybrid thinking checkpoint; it thinks unless it is told not to."""
    import shutil

    folder = shutil.copytree(tiny_checkpoint("qwen3_5", initializer_range=0.1), tmp_path / "thinking")
    processor = AutoProcessor.from_pretrained(folder)
    processor.chat_template += THINKS
    processor.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(("arguments", "opened"), [(None, True), ({"enable_thinking": False}, False)])
def test_rewards_are_told_in_training_and_evaluation(make_trainer, thinking_checkpoint, sop_data, arguments, opened):
    seen, ends = [], []

    def reward(completions, opened_think, **columns):
        seen.extend(opened_think)
        return [float(len(text)) for text in completions]

    trainer = make_trainer(
        model=str(thinking_checkpoint),
        functions=[reward],
        max_steps=1,
        eval_dataset_use=str(sop_data),
        chat_template_kwargs=arguments,
    )
    trainer.train()
    trainer.evaluate()
    assert len(seen) == 3 + 8 and set(seen) == {opened}
    for dataset in (trainer.train_dataset, trainer.eval_dataset):
        ids = trainer.data_collator([dataset[0]])["prompts"].input_ids[0]
        ends.append(trainer.processing_class.tokenizer.decode(ids))
    assert all(text.endswith("<think>\n" if opened else "<think>\n</think>\n") for text in ends)


def test_preview_and_check_take_the_arguments(thinking_checkpoint, sop_data, tmp_path, capsys):
    common = [str(sop_data), "--model", str(thinking_checkpoint)]
    for arguments, end in (([], "&lt;think&gt;\n</pre>"), (QUICKLY, "&lt;/think&gt;\n</pre>")):
        assert preview_command([*common, *arguments, "--out", str(tmp_path / "page.html")]) == 0
        assert (tmp_path / "page.html").read_text().count(end) == 8
    lengths = []
    for arguments in ([], QUICKLY):
        capsys.readouterr()
        data_command(["check", *common, *arguments, "--json"])
        lengths.append(json.loads(capsys.readouterr().out)["prompt_tokens"]["max"])
    assert lengths[1] > lengths[0]
