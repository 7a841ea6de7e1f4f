"""Sections and metadata put into a card that may be somebody's own."""

import logging

import yaml
from huggingface_hub import EvalResult, ModelCard

from qwenvl.train.card.document import Metadata, hub_name, read_metadata, write_card

OURS = Metadata("sop", "transformers", "Qwen/Qwen2.5-VL-3B-Instruct", tags=("qwenvl",))


def test_sections_give_way_to_newer_ones_and_the_rest_stays(tmp_path):
    path = tmp_path / "README.md"
    path.write_text("---\nlicense: mit\ntags:\n- mine\n---\n\n# Ours\n\nBy hand.\n")
    write_card(tmp_path, "# unused\n", {"inputs": "## Inputs\n\n\\1 one", "training": "## Training"}, OURS)
    first = path.read_text()
    assert "# Ours\n\nBy hand.\n\n<!-- inputs: written by qwenvl -->\n## Inputs\n\n\\1 one\n" in first
    write_card(tmp_path, "# unused\n", {"inputs": "## Inputs\n\n\\1 one", "training": "## Training"}, OURS)
    assert path.read_text() == first
    write_card(tmp_path, "# unused\n", {"inputs": "two", "training": ""}, OURS)
    later = path.read_text()
    assert "two" in later and "## Inputs" not in later and "## Training" not in later and "By hand." in later
    data = ModelCard.load(path).data
    assert (data.license, data.tags, data.base_model) == ("mit", ["mine", "qwenvl"], "Qwen/Qwen2.5-VL-3B-Instruct")
    assert data.base_model_relation == "finetune"


def test_results_are_those_of_the_hub_and_may_be_kept(tmp_path):
    result = EvalResult(
        task_type="video-text-to-text",
        dataset_type="held-out",
        dataset_name="sop",
        metric_type="accuracy_reward",
        metric_value=0.5,
    )
    write_card(tmp_path, "# New\n", {}, Metadata("sop", "peft", adapter=True, results=[result]))
    assert ModelCard.load(tmp_path / "README.md").data.eval_results[0].metric_value == 0.5
    write_card(tmp_path, "# New\n", {}, Metadata("sop", "transformers", results=None))
    assert read_metadata(tmp_path)["model-index"][0]["name"] == "sop"
    write_card(tmp_path, "# New\n", {}, Metadata("sop", "transformers"))
    assert "model-index" not in read_metadata(tmp_path)


def test_a_head_that_is_no_yaml_is_left_and_told_of(tmp_path, caplog):
    path = tmp_path / "README.md"
    path.write_text("---\ntags: [mine\n---\n# Ours\n")
    with caplog.at_level(logging.WARNING):
        write_card(tmp_path, "", {"inputs": "## Inputs"}, OURS)
    assert path.read_text().startswith("---\ntags: [mine\n---\n\n# Ours\n") and "## Inputs" in path.read_text()
    assert "README.md: its metadata is left as it is" in caplog.text
    assert read_metadata(tmp_path) == {}


def test_what_peft_says_of_a_folder_is_not_said_to_the_hub(tmp_path):
    head = {
        "base_model": "/home/me/model",
        "library_name": "peft",
        "tags": ["base_model:adapter:/home/me/model", "lora"],
    }
    (tmp_path / "README.md").write_text(f"---\n{yaml.safe_dump(head)}---\n# Adapter\n")
    write_card(tmp_path, "", {}, Metadata("sop", "peft", adapter=True, tags=("qwenvl",)))
    data = ModelCard.load(tmp_path / "README.md").data
    assert data.base_model is None and data.tags == ["lora", "qwenvl"]


def test_names_on_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "sop").mkdir(parents=True)
    assert hub_name("Qwen/Qwen2.5-VL-3B-Instruct") == "Qwen/Qwen2.5-VL-3B-Instruct"
    assert [hub_name(path) for path in ("runs/sop", "/abs/olute", "./here", "name", "a/b/c")] == [None] * 5
