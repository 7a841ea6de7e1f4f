"""``--dry_run`` says what a run would do, and leaves nothing behind."""

from __future__ import annotations

import pytest
from transformers import AutoModelForImageTextToText

from qwenvl.commands.train import main
from qwenvl.data.collator import GRPOCollator
from qwenvl.data.dataset import load_dataset
from qwenvl.data.options import PromptOptions
from qwenvl.model.loading import load_processor, part_of


@pytest.fixture
def flags(tiny_checkpoint, sop_data, tmp_path):
    """Flags of a dry run on the mixed data set."""
    model, data = f"--model_name_or_path={tiny_checkpoint()}", f"--dataset_use={sop_data}"
    return [model, data, f"--output_dir={tmp_path}/out", "--use_cpu=True", "--base_interval=0.5", "--dry_run"]


def shown(capsys, *flags) -> dict[str, list[str]]:
    """The output of the command, by its titles."""
    main(list(flags))
    sections: dict[str, list[str]] = {}
    for line in capsys.readouterr().out.splitlines():
        if line.startswith("  "):
            sections[list(sections)[-1]].append(line.strip())
        else:
            sections[line] = []
    return sections


def test_a_dry_run_shows_settings_step_and_prompts_and_writes_nothing(
    flags, tiny_checkpoint, sop_data, tmp_path, capsys
):
    before = {path: path.read_bytes() for path in sop_data.parent.iterdir()}
    sections = shown(capsys, *flags, "--learning_rate=2e-5", "--gradient_accumulation_steps=3")
    changed = next(body for title, body in sections.items() if title.startswith("settings that you have set"))
    assert sorted(line.partition(": ")[0] for line in changed) == [  # and nothing that resolved itself
        *("base_interval", "dataset_use", "gradient_accumulation_steps", "learning_rate", "model_name_or_path"),
        *("output_dir", "use_cpu"),
    ]
    assert {"learning_rate: 2e-05", "gradient_accumulation_steps: 3"} <= set(changed)
    assert sections["rewards"] == ["format: weight 0.3", "accuracy: weight 0.7"]
    assert sections["one step"] == ["3 prompts, 4 completions each"]
    assert list(sections)[-1] == "This was a dry run: nothing was trained or written."
    assert list(tmp_path.iterdir()) == []
    assert {path: path.read_bytes() for path in sop_data.parent.iterdir()} == before

    model = AutoModelForImageTextToText.from_pretrained(tiny_checkpoint())
    counts = dict.fromkeys(("llm", "vision", "mlp"), 0)
    for name, parameter in model.named_parameters():
        counts[part_of(name)] += parameter.numel()
    llm, vision, mlp = counts.values()
    assert sections["parameters that learn"] == [
        f"llm: {llm:,} of {llm:,}",
        f"vision: 0 of {vision:,}",
        f"mlp: {mlp:,} of {mlp:,}",
        f"in all: {llm + mlp:,} of {llm + vision + mlp:,}, kept in float32",
    ]

    prompts = sections["prompts of the first of 8 records"]
    collator = GRPOCollator(load_processor(tiny_checkpoint()), PromptOptions())
    dataset = load_dataset(str(sop_data), base_interval=0.5)
    for index, line in enumerate(prompts):
        batch = collator([dataset[index]])["prompts"]
        tokens, frames = int(batch.attention_mask.sum()), len(batch.frames[0][0].indices)
        assert line.endswith(f"(id clip-{index}): {tokens} tokens, {frames} frames"), line
    assert len(prompts) == 4
