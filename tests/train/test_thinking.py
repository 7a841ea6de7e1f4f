"""Checkpoints whose prompts end inside a think block: training, evaluation and preview make the same prompt."""

import json

import pytest
import torch
from transformers import AutoProcessor

from qwenvl.commands.data import main as data_command
from qwenvl.commands.preview import main as preview_command
from qwenvl.evaluate.models import model_source
from qwenvl.evaluate.protocol import model_facts, settings_otherwise
from qwenvl.evaluate.respondent import collator_of
from qwenvl.evaluate.settings import config_for
from qwenvl.run_log.log import read_config

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


@pytest.mark.parametrize(
    ("arguments", "opened"),
    [(None, True), ({"enable_thinking": False}, False)],
    ids=["with thinking", "without thinking"],
)
def test_rewards_learn_whether_the_prompt_opens_the_think_block(
    make_trainer, thinking_checkpoint, sop_data, arguments, opened
):
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


def test_the_arguments_of_the_template_are_recorded_and_used_again(make_trainer, thinking_checkpoint):
    """Given arguments count, and those that the template set. A template of another default changes nothing."""
    processor = AutoProcessor.from_pretrained(thinking_checkpoint)
    default = "{%- if effort is not defined %}{%- set effort = 'EFFORT' %}{%- endif %}"
    plain = "{% if ids %}ids{% endif %}{{ effort }}" + processor.chat_template
    processor.chat_template = default.replace("EFFORT", "medium") + plain
    processor.save_pretrained(thinking_checkpoint)
    trainer = make_trainer(model=str(thinking_checkpoint), max_steps=1, chat_template_kwargs={"enable_thinking": False})
    trainer.train()
    trainer.save_model()
    run, set_ones = trainer.args.output_dir, {"effort": "medium", "enable_thinking": False}
    assert read_config(run)["config"]["template_arguments"] == set_ones | {"ids": None}
    with open(f"{run}/prompt_settings.json") as file:
        assert json.load(file)["prompts"]["chat_template_kwargs"] == set_ones
    processor = AutoProcessor.from_pretrained(run)
    processor.chat_template = default.replace("EFFORT", "low") + plain
    processor.save_pretrained(run)
    model = model_source(run)
    config = config_for(model, ["--use_cpu"])  # as qwenvl evaluate, try, label and serve have it
    collator, sample = collator_of(config), trainer.train_dataset[0]
    assert torch.equal(collator([sample])["prompts"].input_ids, trainer.data_collator([sample])["prompts"].input_ids)
    assert model_facts(model, config, collator)["template_arguments"] == set_ones | {"ids": None}
    assert settings_otherwise(run, config) == []


def test_preview_and_check_take_the_arguments_of_the_template(thinking_checkpoint, sop_data, tmp_path, capsys):
    common = [str(sop_data), "--model", str(thinking_checkpoint)]
    for arguments, end in (([], "&lt;think&gt;\n</pre>"), (QUICKLY, "&lt;/think&gt;\n</pre>")):
        assert preview_command([*common, *arguments, "--out", str(tmp_path / "page.html")]) == 0
        page = (tmp_path / "page.html").read_text()
        assert page.count(end) == 8
        assert f"&#34;enable_thinking&#34;: {'false' if arguments else 'null'}}}" in page.replace("&quot;", "&#34;")
    lengths = []
    for arguments in ([], QUICKLY):
        capsys.readouterr()
        data_command(["check", *common, *arguments, "--json"])
        lengths.append(json.loads(capsys.readouterr().out)["prompt_tokens"]["max"])
    assert lengths[1] > lengths[0]
