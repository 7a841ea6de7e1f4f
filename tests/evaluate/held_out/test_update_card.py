"""``--update_card`` of the whole command: the numbers of the folder stand in the card of the model."""

import shutil
from pathlib import Path

from huggingface_hub import ModelCard

from qwenvl.evaluate.held_out.command import main
from qwenvl.runlog.evaluation import read_evaluation
from qwenvl.train.card.document import Metadata, write_card


def test_the_card_of_a_model_gets_the_numbers(tiny_checkpoint, tmp_path, capsys):
    model, out = tmp_path / "run", tmp_path / "out"
    shutil.copytree(tiny_checkpoint(initializer_range=0.1), model)
    write_card(model, "# Run\n", {}, Metadata("run", "transformers"))
    flags = ["--use_cpu", "--generation_max_length", "4", "--limit", "2", "--controls", "blank", "--update_card"]
    assert main([str(model), "example", *flags, "--output_dir", str(out)]) == 0
    assert f"wrote the numbers into {model / 'README.md'}" in capsys.readouterr().err
    [found] = [each for each in read_evaluation(out)["numbers"] if each["control"] == "none"]
    card = ModelCard.load(Path(model) / "README.md")
    assert {each.metric_type: each.metric_value for each in card.data.eval_results} == {
        name: round(interval["mean"], 4) for name, interval in found["scores"].items()
    }
    assert "drop by blank" in card.content
