"""The Trainer's own settings: what it would take without effect, or only miss when a run is under way, is refused."""

import re
from types import SimpleNamespace

import pytest

from qwenvl.config.grpo_config import gathering_problem
from tests.config.conftest import refusal


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"save_total_limit": -1}, "must be at least 1, got -1: without the setting all checkpoints are kept"),
        ({"max_steps": -5}, "must be at least 1, got -5; -1, the default"),
        ({"seed": 2**32}, "must be at most 4294967295"),
        ({"optim_args": "momentum", "optim": "sgd"}, "must be name=value,name=value, got 'momentum'"),
    ],
    ids=str,
)
def test_values_without_a_meaning_are_refused(make, settings, expected):
    message = refusal(make, **settings)
    assert message.startswith(f"--{next(iter(settings))}") and expected in message


@pytest.mark.parametrize(
    "settings",
    [
        {"do_train": True},
        {"dataloader_persistent_workers": True},
        {"hub_strategy": "end"},
        {"adam_beta1": 0.8, "optim": "sgd"},
        {"optim_args": "momentum=0.9"},
        {"optim_target_modules": "all-linear"},
        {"warmup_steps": 10, "lr_scheduler_type": "constant"},
        {"lr_scheduler_kwargs": {"num_cycles": 1}, "lr_scheduler_type": "constant_with_warmup"},
        {"logging_steps": 5, "logging_strategy": "epoch"},
        {"eval_delay": 3},
        {"save_total_limit": 2, "save_strategy": "no"},
        {"gradient_checkpointing_kwargs": {"use_reentrant": False}},
    ],
    ids=str,
)
def test_settings_without_effect_are_refused(make, settings):
    assert re.match(f"--{next(iter(settings))} (has no effect|cannot be used)", refusal(make, **settings))


@pytest.mark.parametrize(
    "settings",
    [
        {"warmup_steps": 10, "lr_scheduler_type": "constant_with_warmup"},
        {"dataloader_persistent_workers": True, "dataloader_num_workers": 1},
        {"optim_args": "momentum=0.9", "optim": "sgd"},
        {"logging_steps": 5, "logging_strategy": "epoch", "eval_strategy": "steps"},  # evaluation goes by it too
        {"metric_for_best_model": "eval_format_reward", "eval_strategy": "steps"},
        {"gradient_checkpointing_kwargs": {"use_reentrant": False}, "gradient_checkpointing": True},
    ],
    ids=str,
)
def test_the_same_settings_with_effect_are_taken(make, settings):
    config = make(**settings)
    assert {name: getattr(config, name) for name in settings} == settings


def test_deepspeed_without_a_launcher_is_told_of_one(make, monkeypatch):
    for name in ("RANK", "AZUREML_EXPERIMENT_ID", "SM_TRAINING_ENV"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("qwenvl.config.checks.find_spec", lambda name: None)
    assert "--deepspeed needs a launcher, for one process too: put torchrun" in refusal(make, deepspeed="zero2.json")


@pytest.mark.parametrize(
    ("zero", "fsdp", "accelerate", "refused"),
    [
        (None, None, "false", True),
        (2, None, "false", True),
        (3, None, "false", False),
        (None, True, "false", False),
        (None, None, "true", False),
    ],
)
def test_layers_are_gathered_by_themselves_where_weights_are_split(monkeypatch, zero, fsdp, accelerate, refused):
    monkeypatch.setenv("ACCELERATE_USE_FSDP", accelerate)
    settings = SimpleNamespace(is_zero3=lambda: zero == 3)
    plugin = None if zero is None else SimpleNamespace(hf_ds_config=settings)
    config = SimpleNamespace(ds3_gather_for_generation=False, deepspeed_plugin=plugin, fsdp=fsdp)
    assert (gathering_problem(config) is not None) == refused
    config.ds3_gather_for_generation = True
    assert gathering_problem(config) is None
