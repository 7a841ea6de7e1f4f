"""The whole command on a tiny model: what it asks, finds, prints and writes."""

import json
import shlex
import shutil
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForImageTextToText

from qwenvl.commands.evaluate import main
from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.evaluate.questions import BLOCK
from qwenvl.run_log.log import read_evaluation, read_samples
from qwenvl.types import TOTAL
from tests.evaluate.made import LETTERS
from tests.train.test_distributed import launch_ranks

SETTINGS = ("--use_cpu", "--generation_max_length", "6", "--base_interval", "0.5", "--seed", "3")


@pytest.fixture
def models(tiny_checkpoint, tmp_path) -> list[str]:
    """A model, an adapter on it, and the two merged."""
    base, adapter, merged = tiny_checkpoint(initializer_range=0.1), tmp_path / "adapter", tmp_path / "merged"
    lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    adapted = get_peft_model(AutoModelForImageTextToText.from_pretrained(base, dtype=torch.float32), lora)
    adapted.save_pretrained(adapter)
    shutil.copytree(base, merged)
    adapted.merge_and_unload().save_pretrained(merged)
    return [str(base), str(adapter), str(merged)]


def test_base_adapter_and_merged_model_are_compared_under_all_controls(models, tmp_path, capsys, never_at_full_size):
    scored = ["--reward_funcs", "format", LETTERS, "--pass_by", "letters", "--pass_at", "0.5", "--controls", "all"]
    out = tmp_path / "out"
    assert main([*models, "example", *SETTINGS, *scored, "--output_dir", str(out)]) == 0
    facts, samples, shown = read_evaluation(out), read_samples(out), capsys.readouterr().out
    assert [model["path"] for model in facts["models"]] == models and facts["ended"] is not None
    assert [model["base"] for model in facts["models"]] == [None, models[0], None]
    names = [model["name"] for model in facts["models"]]
    assert len({model["weights"] for model in facts["models"]}) == 3
    assert len({model["prompts_hash"] for model in facts["models"]}) == 1
    texts = {name: [each.completion for each in samples.values() if each.model == name] for name in names}
    assert texts["adapter"] == texts["merged"] != texts[names[0]]
    controls = ["none", "blank", "shuffled", "single_frame", "other_clip", "text_only"]
    assert facts["controls"] == controls
    # The example has three clips, an image and a record of text.
    asked = {each["control"]: each["records"] for each in facts["numbers"] if each["model"] == names[0]}
    videos = sum(bool(each.clips) for each in samples.values() if (each.control, each.model) == ("none", names[0]))
    assert asked["none"] == 5 and asked["blank"] == asked["text_only"] == 4
    assert asked["shuffled"] == asked["single_frame"] == videos
    by_hand = {}
    for each in samples.values():
        by_hand.setdefault((each.model, each.control), {})[each.doc_id] = {**each.rewards, TOTAL: each.total}
    for each in facts["numbers"]:
        own = by_hand[each["model"], each["control"]].values()
        for name in ("format", "letters", TOTAL):
            assert each["scores"][name]["mean"] == pytest.approx(sum(row[name] for row in own) / len(own))
    for each in facts["drops"]:
        full, less = by_hand[each["model"], "none"], by_hand[each["model"], each["control"]]
        expected = sum(full[n]["letters"] - less[n]["letters"] for n in less) / len(less)
        assert each["scores"]["letters"]["mean"] == pytest.approx(expected)
    difference, _ = [each for each in facts["differences"] if each["control"] == "none"]
    before, after = by_hand[names[0], "none"], by_hand[names[1], "none"]
    expected = sum(after[n]["letters"] - before[n]["letters"] for n in before) / 5
    assert difference["scores"]["letters"]["mean"] == pytest.approx(expected)
    assert difference["better"] + difference["equal"] + difference["worse"] == 5
    assert "Does it look?" in shown and f"{names[1]} - {names[0]}: letters" in shown
    assert Path(shlex.split(shown.splitlines()[-1].split("qwenvl report ")[1])[0]).resolve() == tmp_path / "out"


def test_servers_give_the_same_greedy_answers(tiny_checkpoint, fake, tmp_path, capsys, monkeypatch):
    """A server begins with other weights, and gets those of the model."""
    server, words = fake(initializer_range=0.1), [str(tiny_checkpoint(initializer_range=0.1)), "example", *SETTINGS]
    flags = ["--rollout_engine", "vllm_server", "--vllm_server", server.address, "--vllm_patience", "20"]
    for name, more in (("local", []), ("served", flags)):
        assert main([*words, *more, "--limit", "2", "--output_dir", str(tmp_path / name)]) == 0
    local, served = (read_samples(tmp_path / name) for name in ("local", "served"))
    assert {key: each.completion for key, each in served.items()} == {k: each.completion for k, each in local.items()}
    engine = read_evaluation(tmp_path / "served")["protocol"]["settings"]["rollout_engine"]
    assert len(served) == 2 and server.asked and engine == "vllm_server"
    monkeypatch.setattr(GRPOConfig, "world_size", 2)
    assert main([*words, *flags, "--output_dir", str(tmp_path / "out")]) == 2
    assert "--rollout_engine vllm_server evaluates in one process" in capsys.readouterr().err


def test_two_processes_share_the_records(tiny_checkpoint, make_clip, make_row, write_rows, tmp_path, capsys):
    make_clip("clip.mp4", 20)
    rows = [make_row(prompt=f"Which of {n} steps?", id=f"text-{n}") for n in range(BLOCK)]
    rows.append(make_row(prompt="<video>\nWhich steps?", video="clip.mp4", id="clip"))  # the second process's only one
    words = [str(tiny_checkpoint(initializer_range=0.1)), str(write_rows(rows))]
    words += ["--use_cpu", "--generation_max_length", "3", "--samples", "2", "--controls", "blank,text_only"]
    launch_ranks("evaluate", 2, [*words, "--output_dir", str(tmp_path / "two")])
    assert main([*words, "--output_dir", str(tmp_path / "one")]) == 0
    one, two = ((tmp_path / name / "samples.jsonl").read_text() for name in ("one", "two"))
    assert one == two and one.count("\n") == 2 * (BLOCK + 1 + 2)
    numbers = [json.loads((tmp_path / name / "evaluation.json").read_text()) for name in ("one", "two")]
    same = ("models", "protocol", "numbers", "drops", "left_out")
    assert [numbers[0][name] for name in same] == [numbers[1][name] for name in same]
    assert sorted(path.name for path in (tmp_path / "two").iterdir()) == ["evaluation.json", "samples.jsonl"]
