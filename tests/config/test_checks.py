"""The Trainer's own settings: what it would take without effect, or only miss when a run is under way, is refused."""

import re
from types import SimpleNamespace

import pytest

from qwenvl.config.grpo_config import gathering_problem
from tests.config.conftest import refusal

EVALUATED = {"eval_strategy": "steps", "eval_steps": 5, "save_steps": 5}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"save_total_limit": -1}, "must be at least 1, got -1: without the setting all checkpoints are kept"),
        ({"max_steps": -5}, "must be at least 1, got -5; -1, the default"),
        ({"warmup_steps": 1.5}, "must be whole, or below 1 for a share of all steps, got 1.5"),
        ({"seed": 2**32}, "must be at most 4294967295"),
        ({"log_level": "loud"}, "must be one of detail, debug, info"),
        ({"optim_args": "momentum", "optim": "sgd"}, "must be name=value,name=value, got 'momentum'"),
        ({"lr_scheduler_type": "cosine", "lr_scheduler_kwargs": {"speed": 1}}, "makes no schedule: "),
        ({"lr_scheduler_type": "cosine_with_min_lr"}, "--lr_scheduler_kwargs {} makes no schedule: "),
        (
            {"save_only_model": True, "load_best_model_at_end": True, "fsdp": True, **EVALUATED},
            "FSDP and DeepSpeed can't take it with --load_best_model_at_end",
        ),
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
        {"do_predict": True},
        {"dataloader_persistent_workers": True},
        {"dataloader_in_order": False},
        {"dataloader_multiprocessing_context": "spawn"},
        {"hub_strategy": "end"},
        {"hub_always_push": True},
        {"adam_beta1": 0.8, "optim": "sgd"},
        {"adam_epsilon": 1e-6, "optim": "adafactor"},
        {"optim_args": "momentum=0.9"},
        {"optim_target_modules": "all-linear"},
        {"warmup_steps": 10, "lr_scheduler_type": "constant"},
        {"lr_scheduler_kwargs": {"num_cycles": 1}, "lr_scheduler_type": "constant_with_warmup"},
        {"logging_steps": 5, "logging_strategy": "epoch"},
        {"eval_delay": 3},
        {"metric_for_best_model": "eval_total_reward"},
        {"greater_is_better": False},
        {"save_total_limit": 2, "save_strategy": "no"},
        {"save_only_model": True, "save_strategy": "no"},
        {"gradient_checkpointing_kwargs": {"use_reentrant": False}},
    ],
    ids=str,
)
def test_settings_without_effect_are_refused(make, settings):
    assert re.match(f"--{next(iter(settings))} (has no effect|cannot be used)", refusal(make, **settings))


@pytest.mark.parametrize(
    "settings",
    [
        {"save_total_limit": 1},
        {"warmup_steps": 0.1},
        {"warmup_steps": 10, "lr_scheduler_type": "constant_with_warmup"},
        {"dataloader_persistent_workers": True, "dataloader_num_workers": 1},
        {"optim_args": "momentum=0.9", "optim": "sgd"},
        {"logging_steps": 5, "logging_strategy": "epoch", "eval_strategy": "steps"},  # evaluation goes by it too
        {"eval_delay": 3, "eval_strategy": "steps"},
        {"metric_for_best_model": "eval_format_reward", "eval_strategy": "steps"},
        {"save_only_model": True, "load_best_model_at_end": True, **EVALUATED},
        {"gradient_checkpointing_kwargs": {"use_reentrant": False}, "gradient_checkpointing": True},
        {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr": 1e-7}},
        {"lr_scheduler_type": "warmup_stable_decay", "lr_scheduler_kwargs": {"num_decay_steps": 10}},
    ],
    ids=str,
)
def test_the_same_settings_with_effect_are_taken(make, settings):
    config = make(**settings)
    assert {name: getattr(config, name) for name in settings} == settings


@pytest.mark.parametrize(
    ("optimizer", "package"),
    [("adamw_bnb_8bit", "bitsandbytes"), ("lion_8bit", "bitsandbytes"), ("galore_adamw", "galore-torch")],
)
def test_an_optimizer_whose_package_is_missing_is_named(make, monkeypatch, optimizer, package):
    monkeypatch.setattr("qwenvl.config.checks.find_spec", lambda name: None)
    assert f"--optim {optimizer} needs " in refusal(make, optim=optimizer)
    assert f"pip install {package}, or take --optim adamw_torch" in refusal(make, optim=optimizer)
    assert make(optim="adafactor").optim == "adafactor"
    monkeypatch.setattr("qwenvl.config.checks.find_spec", lambda name: name)
    assert make(optim=optimizer).optim == optimizer


def test_a_paged_optimizer_needs_a_gpu_whose_memory_it_leaves(make, monkeypatch):
    monkeypatch.setattr("qwenvl.config.checks.find_spec", lambda name: name)
    told = "--optim paged_adamw_8bit has no effect on a CPU: there is no GPU to move states out of; take --optim adamw_"
    assert told in refusal(make, optim="paged_adamw_8bit")
    assert make(optim="adamw_8bit").optim == "adamw_8bit"
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert "has no effect on a CPU" in refusal(make, optim="paged_adamw_8bit")


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
