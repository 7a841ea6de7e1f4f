"""The reference of a run: another checkpoint, one that moves with the policy, and how each is resumed."""

import json

import pytest
import torch
from transformers import AutoModelForImageTextToText, AutoProcessor

from qwenvl.demo.tiny import FAMILIES
from qwenvl.model.weight_files import REFERENCE
from qwenvl.run_log.log import read_metrics

SYNC = {"sync_ref_model": True, "ref_model_mixup_alpha": 0.5, "ref_model_sync_steps": 2, "grpo_beta": 2.0}


def kl(folder) -> list[float]:
    return [row["kl"] for row in read_metrics(folder) if "kl" in row]


def weights(model) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


@pytest.fixture(scope="session")
def other_checkpoint(tiny_checkpoint, tmp_path_factory):
    """The tiny model of the trainers with another last layer, beside its processor."""
    start, folder = tiny_checkpoint(initializer_range=0.1), tmp_path_factory.mktemp("other")
    model = AutoModelForImageTextToText.from_pretrained(start, dtype=torch.float32)
    with torch.no_grad():
        model.model.language_model.layers[-1].mlp.down_proj.weight.mul_(1.5)
    model.save_pretrained(folder)
    AutoProcessor.from_pretrained(start).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("settings", [{}, {"lora_enable": True, "lora_r": 4}], ids=["full", "lora"])
def test_another_checkpoint_is_the_reference_from_the_first_step_on(make_trainer, other_checkpoint, settings):
    trainer = make_trainer(ref_model_name_or_path=str(other_checkpoint), learning_rate=1e-2, **settings)
    expected = weights(AutoModelForImageTextToText.from_pretrained(other_checkpoint, dtype=torch.float32))
    trainer.train()
    assert kl(trainer.args.output_dir)[0] > 1e-3
    with trainer.reference.model() as reference:
        assert all(torch.equal(value, expected[name]) for name, value in weights(reference).items())


@pytest.mark.parametrize(
    ("family", "flags"),
    [
        *((family, {"tune_mm_llm": False}) for family in ("qwen2_5_vl", "qwen3_5_moe")),
        ("qwen2_5_vl", {"tune_mm_vision": True, "shared_prefix": "off"}),
        ("qwen3_5", {"tune_mm_mlp": False}),
        *(
            pytest.param(family, {"tune_mm_llm": False}, marks=pytest.mark.slow)
            for family in FAMILIES
            if family not in ("qwen2_5_vl", "qwen3_5_moe")
        ),
    ],
)
def test_linear_layers_that_are_kept_in_bfloat16_give_the_numbers_of_autocast(
    family, flags, tiny_checkpoint, make_trainer, monkeypatch, tmp_path
):
    """The frozen layers of the policy and the layers of the reference are smaller, and only they."""
    folder = tiny_checkpoint(family, initializer_range=0.1, tie_word_embeddings=False)
    trainers = {}
    for rounds in (False, True):
        with monkeypatch.context() as patch:
            if not rounds:
                patch.setattr("qwenvl.train.assemble.rounds_products", lambda args: False)
            output = str(tmp_path / str(rounds))
            trainers[rounds] = make_trainer(model=str(folder), bf16=True, grpo_beta=0.5, output_dir=output, **flags)
        trainers[rounds].train()
    plain, rounded = (dict(trainers[rounds].model.named_parameters()) for rounds in (False, True))
    assert {each.dtype for each in plain.values()} == {torch.float32}
    small = {name for name, each in rounded.items() if each.dtype == torch.bfloat16}
    matrices = {name for name, each in rounded.items() if each.dim() == 2 and name.endswith("proj.weight")}
    frozen = {name for name, each in rounded.items() if not each.requires_grad}
    assert matrices & frozen <= small <= frozen and ("lm_head.weight" in small) == ("lm_head.weight" in frozen)
    assert not any("norm" in name or "embed" in name for name in small)
    with trainers[True].reference.model() as reference:
        assert reference.lm_head.weight.dtype == torch.bfloat16
    for name, parameter in plain.items():
        expected = parameter.to(torch.bfloat16) if name in small else parameter
        assert torch.equal(rounded[name], expected), name
    numbers = [
        [{name: row[name] for name in ("loss", "kl", "entropy", "grad_norm")} for row in rows if "kl" in row]
        for rows in (read_metrics(tmp_path / "False"), read_metrics(tmp_path / "True"))
    ]
    assert numbers[0] == numbers[1] and len(numbers[0]) == 2


def test_a_killed_run_goes_on_with_the_reference_that_it_had(whole_and_resumed, tmp_path):
    """The run dies after a mixing that its checkpoint does not have, and after one that it has."""
    common = {"save_strategy": "steps", "save_steps": 1, "max_steps": 5, "learning_rate": 1e-2, **SYNC}
    whole, resumed = whole_and_resumed(killed=4, resumed_from=3, **common)
    with whole.reference.model() as ours, resumed.reference.model() as theirs:
        moved = weights(ours)
        assert all(torch.equal(value, moved[name]) for name, value in weights(theirs).items())
    assert kl(tmp_path / "whole") == kl(tmp_path / "cut") and max(kl(tmp_path / "cut")) > 1e-4
    lost = tmp_path / "cut" / "checkpoint-5" / REFERENCE
    lost.unlink()
    with pytest.raises(ValueError, match=rf"^{lost}: no such file; the newest older checkpoint that is whole is .*-4:"):
        resumed.train(resume_from_checkpoint=str(lost.parent))
    for name in ("model.safetensors", "optimizer.pt"):
        assert (lost.parent / name).is_file()


def test_a_reference_that_would_not_fit_or_not_move_is_refused(
    make_trainer, tiny_checkpoint, other_checkpoint, tmp_path
):
    def refusal(**settings) -> str:
        with pytest.raises(ValueError) as error:
            make_trainer(**settings)
        return str(error.value)

    another = tiny_checkpoint(initializer_range=0.1, texts=("other words",))
    assert "another vocabulary" in refusal(ref_model_name_or_path=str(another))
    adapters = tmp_path / "adapters"
    adapters.mkdir()
    (adapters / "adapter_config.json").write_text(json.dumps({}))
    assert "holds LoRA adapters" in refusal(ref_model_name_or_path=str(adapters))
    tower = tiny_checkpoint(initializer_range=0.1, seed=1)
    assert "its vision tower is not the policy's" in refusal(ref_model_name_or_path=str(tower))
    make_trainer(ref_model_name_or_path=str(tower), shared_prefix="off", max_steps=1).train()
