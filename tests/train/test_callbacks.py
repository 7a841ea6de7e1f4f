"""What is shown: one line of numbers, a warning about equal rewards."""

from types import SimpleNamespace

import pytest

from qwenvl.train.callbacks import EqualRewardsWarning, ProgressLine, SettingsError


def test_equal_rewards_are_warned_of_once(caplog):
    callback = EqualRewardsWarning()
    for share in [0.95] * 15 + [0.5] + [0.95] * 20:
        callback.on_log(None, None, None, logs={"group/zero_std_frac": share})
    callback.on_log(None, None, None, logs={"eval_total_reward": 0.5})
    assert not caplog.text
    for _ in range(30):
        callback.on_log(None, None, None, logs={"group/zero_std_frac": 1.0})
    assert caplog.text.count("equal rewards") == 1 and "--generation_temperature" in caplog.text


def test_the_line_shows_reward_kl_and_time_left(capsys):
    line = ProgressLine()
    state = SimpleNamespace(is_world_process_zero=True, max_steps=4, global_step=0)
    line.on_train_begin(None, state, None)
    # the last step is a second one on the same completions
    for step, logs in enumerate(({"reward/total": 0.25}, {"reward/total": 0.5}, {"loss/kl": 0.1}), start=1):
        state.global_step = step
        line.on_step_end(None, state, None)
        line.on_log(None, state, None, logs={"loss": 0.1, "kl": 0.0123 * step} | logs)
    line.on_log(None, state, None, logs={"eval_total_reward": 0.5, "eval_total_reward_ci95": 0.04})
    line.on_train_end(None, state, None)
    shown = capsys.readouterr()
    text = shown.err + shown.out
    assert "reward=0.500, kl=0.025" in text and "reward=0.500, kl=0.037" in text and "3/4" in text
    assert "step 3: eval_total_reward 0.500 +- 0.040" in text


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
