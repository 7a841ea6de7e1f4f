"""What is looked at while a run goes on."""

import pytest

from qwenvl.train.callbacks import SettingsError


def test_a_resumed_run_keeps_its_learning_rates(make_trainer, tmp_path):
    settings = {"save_strategy": "steps", "save_steps": 1, "learning_rate": 1e-3, "mm_projector_lr": 2e-3}
    make_trainer(**settings, max_steps=1).train()
    checkpoint = str(tmp_path / "run" / "checkpoint-1")
    for name, kept in (("learning_rate", "0.001"), ("mm_projector_lr", "0.002")):
        with pytest.raises(SettingsError, match=rf"keeps the learning rates of its checkpoint, {kept} among them"):
            make_trainer(**settings | {name: 5e-3}).train(resume_from_checkpoint=checkpoint)
    trainer = make_trainer(**settings)
    trainer.train(resume_from_checkpoint=checkpoint)
    assert trainer.state.global_step == 2


def test_a_rate_that_no_part_learns_by_does_not_keep_a_run_from_resuming(make_trainer, tmp_path):
    settings = {"save_strategy": "steps", "save_steps": 1, "tune_mm_llm": False, "tune_mm_mlp": True}
    settings |= {"mm_projector_lr": 2e-3}
    make_trainer(**settings, max_steps=1).train()
    trainer = make_trainer(**settings)
    trainer.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-1"))
    assert trainer.state.global_step == 2
