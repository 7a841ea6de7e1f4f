"""The settings: defaults that suit this work, and a reason for everything that is refused."""

import dataclasses
import inspect
import os
import re
import warnings
from collections import namedtuple
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from accelerate.utils import HfDeepSpeedConfig
from transformers import get_scheduler
from transformers.trainer_utils import SaveStrategy, SchedulerType

from qwenvl.config.grpo_config import (
    GRPOConfig,
    WarmupConfig,
    computes_in_bf16,
    decoding_workers,
    gathering_problem,
)
from qwenvl.config.settings import FLAG_GROUPS, TrainingSettings
from qwenvl.config.trainer_checks import recomputes_layers
from qwenvl.grpo.loss import LOSSES, objective_of
from qwenvl.option import all_options, row_of
from qwenvl.rollout.options import EngineOptions


@pytest.fixture
def make(tmp_path):
    """``make(**settings)`` -> GRPOConfig on a CPU, in a folder of the test's own."""
    return lambda **settings: GRPOConfig(**{"output_dir": str(tmp_path), "use_cpu": True, **settings})


def refusal(make, **settings) -> str:
    """The message of the ValueError that ``make`` raises."""
    with pytest.raises(ValueError) as error:
        make(**settings)
    return str(error.value)


NAMED_DEFAULTS = {
    "tune_mm_llm": True,
    "tune_mm_vision": False,
    "tune_mm_mlp": True,
    "mm_projector_lr": None,
    "vision_tower_lr": None,
    "grpo_alpha": 0.5,
    "grpo_beta": 0.1,
    "num_iterations": 1,
    "grpo_epsilon": None,
    "grpo_epsilon_high": None,
    "grpo_sample_size": 4,
    "format_reward_weight": 0.3,
    "accuracy_reward_weight": 0.7,
    "generation_temperature": 0.7,
    "generation_top_p": 0.9,
    "generation_max_length": 512,
    "base_interval": 2.0,
    "video_fps": None,
    "video_min_frames": 4,
    "video_max_frames": 8,
    "video_min_frame_pixels": 3136,
    "video_max_frame_pixels": 25088,
    "min_pixels": 12544,
    "max_pixels": 451584,
    "max_prompt_length": None,
    "attn_implementation": "auto",
    "lora_enable": False,
    "scale_rewards": "group",
    "advantage_estimator": "grpo",
    "loss_type": "grpo",
    "kl_estimator": "k3",
    "on_bad_sample": "error",
    "response_format": "think_answer",
    "remove_unused_columns": False,
}


def test_defaults_equal_the_documented_values(make):
    config = make()
    assert {name: getattr(config, name) for name in NAMED_DEFAULTS} == NAMED_DEFAULTS
    assert config.report_to == [] and config.dataloader_pin_memory is False


def test_some_defaults_depend_on_other_settings(make, recwarn):
    assert make().learning_rate == 1e-6
    assert make(lora_enable=True, learning_rate=3e-4).learning_rate == 3e-4
    config = make(lora_enable=True)
    copy = dataclasses.replace(config, grpo_beta=0.0)
    assert (copy.learning_rate, copy.grpo_beta, copy.bf16) == (1e-5, 0.0, False)
    config = make(load_best_model_at_end=True, eval_strategy="steps", eval_steps=5, save_steps=5)
    assert (config.metric_for_best_model, config.greater_is_better) == ("eval_total_reward", True)
    assert make(save_strategy="best", eval_strategy="steps").metric_for_best_model == "eval_total_reward"
    assert make().metric_for_best_model is None
    # One name in all versions of transformers.
    config = make(gradient_checkpointing=True)
    assert config.gradient_checkpointing is True and getattr(config, "activation_checkpointing", True) is True
    assert not make().gradient_checkpointing
    assert not [each for each in recwarn if "checkpointing" in str(each.message)]


def test_bf16_is_never_the_default_on_a_cpu_and_follows_the_device(tmp_path, make, monkeypatch):
    assert make().bf16 is False
    monkeypatch.delenv("ACCELERATE_MIXED_PRECISION", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for supported in (True, False):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation, supported=supported: supported)
        assert computes_in_bf16() is supported
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp16")
    assert not computes_in_bf16()


def rate_after(config, metrics: list[float]) -> float:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    schedule = get_scheduler(config.lr_scheduler_type, optimizer, scheduler_specific_kwargs=config.lr_scheduler_kwargs)
    for metric in metrics:
        schedule.step(metric)
    return optimizer.param_groups[0]["lr"]


def test_learning_rates_that_follow_the_reward_fall_when_the_reward_falls(make):
    def config(**options):
        every = {"eval_strategy": "steps", "eval_steps": 5, "lr_scheduler_type": "reduce_lr_on_plateau"}
        return make(**every, **options, lr_scheduler_kwargs={"patience": 0, "factor": 0.5})

    assert rate_after(config(), [0.1, 0.5, 0.9]) == 0.1
    assert rate_after(config(), [0.9, 0.5, 0.1]) == 0.025
    assert rate_after(config(metric_for_best_model="eval_loss"), [0.9, 0.5, 0.1]) == 0.1
    greedy = make(eval_strategy="steps", eval_steps=5, lr_scheduler_type="greedy")
    assert rate_after(greedy, [0.1 * n for n in range(30)]) > 0.1
    assert rate_after(greedy, [-0.1 * n for n in range(30)]) < 0.1
    asked = make(eval_strategy="steps", lr_scheduler_type="greedy", lr_scheduler_kwargs={"mode": "min"})
    assert asked.lr_scheduler_kwargs == {"mode": "min"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"loss_type": "grpo(dleta=4)"}, "--loss_type grpo has no argument 'dleta': did you mean delta?"),
        ({"loss_type": "cispo(delta=4)"}, "--loss_type cispo has no argument 'delta': it has off_policy_mask, "),
        (
            {"loss_type": "grpo(delta=4, dual_clip=3)", "num_iterations": 2},
            "--loss_type: delta and dual_clip bound the same",
        ),
        (
            {"importance_correction": "token_mask(max=-1)", "async_rollouts": 1},
            "--importance_correction: max must be at least 1, got -1",
        ),
        ({"loss_type": "grpo(delta=0.5)"}, "--loss_type: delta must be above 1, got 0.5"),
        ({"loss_type": "gspo(ratio=word)"}, "--loss_type: ratio must be one of token, sequence, sequence_token, "),
        ({"loss_type": "grpo(4)"}, "--loss_type grpo(4): expected name(argument=value, ...) with numbers"),
        ({"advantage_estimator": "gdpo(kl_in_reward=True)"}, "--advantage_estimator gdpo has no argument 'kl_in_re"),
        ({"filter_groups": "total(max_rounds=0)"}, "--filter_groups: max_rounds must be at least 1, got 0"),
    ],
    ids=str,
)
def test_a_wrong_argument_of_a_loss_estimator_or_filter_is_named_with_the_valid_ones(make, settings, message):
    assert refusal(make, **settings).startswith(message)


def test_arguments_of_losses_estimators_and_filters_reach_their_reader(make):
    bounds = objective_of(make(loss_type="dapo(delta=4)", num_iterations=2), 8).bounds
    assert (bounds.delta, bounds.dual_clip, bounds.epsilon_high) == (4, None, 0.28)
    assert objective_of(make(loss_type="dapo(dual_clip=3)", num_iterations=2), 8).bounds.dual_clip == 3
    cispo = objective_of(make(loss_type="cispo(bound=4, ratio=sequence)", num_iterations=2), 8)
    assert (cispo.bounds.cispo, cispo.ratio) == (4, "sequence")
    assert objective_of(make(loss_type="cispo"), 8).bounds.cispo == 5
    assert objective_of(make(kl_estimator="k2(unbiased=True)", num_iterations=2), 8).kl_unbiased
    assert objective_of(make(loss_type="gspo"), 8) == replace(LOSSES["gspo"], max_completion_length=8)
    assert make(advantage_estimator="rloo(kl_in_reward=True)").kl_in_reward and not make().kl_in_reward
    assert row_of(make(filter_groups="total(max_rounds=2)"), "filter_groups").arguments.max_rounds == 2
    assert row_of(make(filter_groups=True), "filter_groups").name == "" and row_of(make(), "filter_groups") is None


def test_nothing_to_train_is_refused_but_not_with_lora(make):
    frozen = {"tune_mm_llm": False, "tune_mm_mlp": False, "tune_mm_vision": False}
    assert "nothing is trained" in refusal(make, **frozen)
    assert make(lora_enable=True, **frozen).lora_enable


@pytest.mark.parametrize(
    "settings",
    [
        {"vision_tower_lr": 1e-6},
        {"check_parity": "every", "lora_enable": True, "lora_dropout": 0.1},
        {"ref_model_mixup_alpha": 0.5},
        {"scale_rewards": "none", "advantage_estimator": "rloo"},
        {"loss_type": "grpo(delta=2)"},
        {"kl_estimator": "k3(unbiased=True)"},
        {"advantage_estimator": "grpo(kl_in_reward=True)", "grpo_beta": 0.0},
        {"grpo_epsilon": 0.3, "loss_type": "sapo", "num_iterations": 2},
        {"importance_correction": "token_mask"},
        {"on_nonfinite": "skip", "deepspeed": "zero2.json"},
        {"ds3_gather_for_generation": False},  # on one process, which has all weights
        {"logging_steps": 5, "logging_strategy": "epoch"},
        # of the Trainer
        {"label_smoothing_factor": 0.1},
        {"do_eval": True},
        {"average_tokens_across_devices": False},
        {"dataloader_drop_last": True, "num_iterations": 2},
        {"dataloader_persistent_workers": True},
        {"train_sampling_strategy": "group_by_length"},  # on one process, steps of one prompt
        {"eval_steps": 5, "eval_strategy": "epoch"},
        {"save_strategy": "best"},
        {"save_total_limit": 2, "save_strategy": "no"},
        {"fsdp_config": {"reshard_after_forward": True}, "fsdp": "false"},
        {"adam_beta1": 0.8, "optim": "sgd"},
        {"optim_args": "momentum=0.9"},
        {"warmup_steps": 10, "lr_scheduler_type": "constant"},
        {"gradient_checkpointing_kwargs": {"use_reentrant": False}},
        {
            "gradient_checkpointing_kwargs": {"use_reentrant": False},
            "activation_checkpointing_kwargs": {"use_reentrant": True},
            "gradient_checkpointing": True,
        },
        {"temporal_contrast": True, "async_rollouts": 1, "rollout_engine": "vllm_server", "vllm_server": ["here:1"]},
        {"project": "lids"},
        {"greater_is_better": True, "eval_strategy": "steps"},
        {"ddp_static_graph": True},
    ],
    ids=str,
)
def test_settings_without_effect_are_refused(make, settings):
    assert re.search(f"--{next(iter(settings))} .*(has no effect|cannot be used)", refusal(make, **settings))


@pytest.mark.parametrize(
    "settings",
    [
        {"vision_tower_lr": 1e-6, "tune_mm_vision": True, "lora_enable": True, "lora_r": 8, "lora_alpha": 16},
        {"loss_type": "gspo(ratio='sequence_token')", "kl_estimator": "k1(unbiased=True)", "num_iterations": 2},
        {"entropy_coef": 0.01, "entropy_target": 0.5},
        {"num_iterations": 3, "save_strategy": "best", "eval_strategy": "epoch"},
        {"train_sampling_strategy": "group_by_length", "per_device_train_batch_size": 2},
        {"warmup_steps": 10, "lr_scheduler_type": "constant_with_warmup"},
        {"dataloader_persistent_workers": True, "dataloader_num_workers": 1},
        {"optim_args": "momentum=0.9", "optim": "sgd"},
        {"logging_steps": 5, "logging_strategy": "epoch", "eval_strategy": "steps"},  # evaluation goes by it too
        {"gradient_checkpointing_kwargs": {"use_reentrant": False}, "gradient_checkpointing": True},
        {"project": "lids", "report_to": ["trackio"]},
        {"greater_is_better": False, "eval_strategy": "steps", "metric_for_best_model": "eval_total_reward_ci95"}
        | {"load_best_model_at_end": True, "eval_steps": 100},
    ],
    ids=str,
)
def test_the_same_settings_with_effect_are_taken(make, settings):
    config = make(**settings)
    assert {name: getattr(config, name) for name in settings} == settings


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"train_sampling_strategy": "batch_rebalance"}, "must be one of random, sequential, group_by_length"),
        ({"generation_top_k": 1}, "--generation_top_k 1 makes all completions of a group the same"),
        ({"stop_strings": ["</answer>", ""]}, "--stop_strings must be texts of at least one character"),
        ({"num_iterations": 3, "save_steps": 0.1}, "--save_steps 0.1: with --num_iterations above 1 give a number of"),
        ({"num_iterations": 3}, "--save_steps 100 is no multiple of --num_iterations 3: a checkpoint between"),
        ({"enable_jit_checkpoint": True}, "--enable_jit_checkpoint cannot be used: --save_on_signal saves"),
        ({"video_min_frames": 9}, "--video_min_frames 9 is above --video_max_frames 8"),
        ({"loss_type": "cisbo"}, "got 'cisbo'; did you mean cispo?"),
        ({"remove_unused_columns": True}, "--remove_unused_columns cannot be used: reward functions see every field"),
        ({"max_steps": 0}, "--max_steps must be at least 1, got 0; -1, the default"),
        ({"save_total_limit": -1}, "must be at least 1, got -1: without the setting all checkpoints are kept"),
        ({"optim_args": "momentum", "optim": "sgd"}, "must be name=value,name=value, got 'momentum'"),
        ({"optim_args": "momentun=0.9", "optim": "sgd"}, "--optim_args: sgd has no 'momentun': did you mean momentum?"),
        ({"reward_funcs": ["format", print]}, "--reward_funcs must be a list, each of it a string, got <built-in"),
        ({"reward_weights": [1, "2"]}, "--reward_weights must be a list, each of it a number, got '2' in it"),
        ({"auto_find_batch_size": True}, "--auto_find_batch_size cannot be used: steps of fewer prompts are another"),
        ({"optim_args": "momentum=x", "optim": "sgd"}, "--optim_args: momentum must be a number, got 'x'"),
        ({"log_level": "loud"}, "--log_level must be one of detail, debug, info, warning, error"),
        ({"torch_compile_mode": "fast"}, "--torch_compile_mode must be one of default, reduce-overhead"),
        ({"include_num_input_tokens_seen": "some"}, "must be no, all or non_padding, got 'some'"),
        ({"lr_scheduler_kwargs": "[1]"}, "must be a JSON mapping such as '{\"name\": 1}', got '[1]'"),
        (
            {"gradient_checkpointing_kwargs": "no", "gradient_checkpointing": True},
            "--gradient_checkpointing_kwargs must be a JSON mapping",
        ),
        (
            {"gradient_checkpointing_kwargs": {"use_reentrent": True}, "gradient_checkpointing": True},
            "checkpointing has no argument 'use_reentrent': did you mean use_reentrant?",
        ),
        ({"debug": "underflow_overflow"}, "--debug cannot be used: --on_nonfinite says which records"),
        ({"neftune_noise_alpha": 5.0}, "--neftune_noise_alpha cannot be used here: completions are sampled without"),
        ({"ddp_backend": "gloo"}, "--ddp_backend has no effect without several processes"),
        ({"optim": "stable_adamw"}, "--optim stable_adamw needs optimi: pip install torch-optimi"),
        ({"fsdp": True, "fsdp_config": "none.json"}, "--fsdp_config none.json: no such file; expected a JSON file"),
        ({"video_fps": 1.0, "base_interval": 1.0}, "say the same thing twice"),
        ({"format_reward_weight": 0.0, "accuracy_reward_weight": 0.0}, "both 0"),
    ],
    ids=str,
)
def test_values_out_of_range_are_refused_with_the_range(make, settings, expected):
    assert expected in refusal(make, **settings)


@pytest.mark.parametrize(
    ("settings", "flag", "expected"),
    [
        ({"push_to_hub": "False"}, "--push_to_hub", "True or False"),
        ({"max_steps": 1.5}, "--max_steps", "an integer"),
        ({"max_steps": None}, "--max_steps", "an integer"),
        ({"weight_decay": "0.1"}, "--weight_decay", "a number"),
        ({"save_total_limit": True}, "--save_total_limit", "an integer or None"),
        ({"gradient_checkpointing": "no"}, "--gradient_checkpointing", "True or False or None"),
        ({"save_strategy": "step"}, "--save_strategy", "did you mean steps"),
        ({"lr_scheduler_kwargs": {"nope": 1}, "lr_scheduler_type": "cosine"}, "--lr_scheduler_kwargs", "nope"),
        (
            {"lr_scheduler_kwargs": {"num_cycles": "x"}, "lr_scheduler_type": "cosine"},
            *("--lr_scheduler_kwargs {'num_cycles': 'x'}", "could not convert"),
        ),
        ({"lr_scheduler_type": "cosine_with_min_lr"}, "--lr_scheduler_type cosine_with_min_lr", "min_lr"),
        ({"output_dir": "runs/\udcff"}, "--output_dir", "UTF-8"),
        ({"dataset_use": "d\udcff.json"}, "--dataset_use", "UTF-8"),
        ({"report_to": ["none", "tensorboard"]}, "--report_to none tensorboard", "stand alone"),
    ],
)
def test_a_setting_of_the_trainer_that_it_cannot_use_is_refused(make, settings, flag, expected):
    message = refusal(make, **settings)
    assert flag in message and expected in message


def test_settings_of_the_trainer_may_be_objects_of_transformers_and_paths(make, tmp_path):
    config = make(output_dir=tmp_path, lr_scheduler_type=SchedulerType.COSINE, save_strategy=SaveStrategy.NO)
    assert config.lr_scheduler_type == "cosine" and config.output_dir == str(tmp_path)


def test_an_unknown_setting_is_refused_with_the_name_that_exists(make):
    with pytest.raises(TypeError, match="GRPOConfig: unknown flag grpo_sampl_size; near: grpo_sample_size"):
        make(grpo_sampl_size=4)
    with pytest.raises(TypeError, match="GRPOConfig: unknown flag num_generations; use --grpo_sample_size"):
        make(num_generations=True)


def test_every_flag_has_help_and_a_home_in_the_config():
    known = {each.name for each in dataclasses.fields(GRPOConfig)}
    names = [each.name for group in FLAG_GROUPS for each in dataclasses.fields(group)]
    assert len(names) == len(set(names)), "a flag stands in two groups"
    assert set(names) <= known
    for group in FLAG_GROUPS:
        for each in all_options(group):
            assert each.metadata["help"].endswith("."), each.name


def test_fsdp_is_a_switch_in_a_settings_file_too(tmp_path):
    for value, meant in (("true", True), ("False", False), (True, True), (None, None)):
        assert GRPOConfig(str(tmp_path), use_cpu=True, fsdp=value).fsdp is meant


def test_a_correction_is_for_engines_with_weights_of_their_own(make, monkeypatch):
    monkeypatch.setattr(EngineOptions, "engine_has_own_weights", True)
    make(importance_correction="sequence_mask(min=0.5)", loss_type="grpo(off_policy_mask=0.1)")
    message = refusal(make, importance_correction="token_mask(min=1, max=1)")
    assert message == "--importance_correction: min must be below max, 1, got 1"
    message = refusal(make, importance_correction="token_mask", loss_type="vespo")
    assert "--importance_correction cannot be used with --loss_type vespo" in message


def test_deepspeed_without_a_launcher_is_refused_with_the_launcher(make, monkeypatch):
    for name in ("RANK", "AZUREML_EXPERIMENT_ID", "SM_TRAINING_ENV"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("qwenvl.config.checks.find_spec", lambda name: None)
    assert "--deepspeed needs a launcher, for one process too: put torchrun" in refusal(make, deepspeed="zero2.json")


def test_layers_are_gathered_by_themselves_where_weights_are_split(monkeypatch):
    zero2, zero3 = (
        SimpleNamespace(hf_ds_config=HfDeepSpeedConfig({"zero_optimization": {"stage": stage}})) for stage in (2, 3)
    )
    for zero, fsdp, accelerate, refused in (
        (None, None, "false", True),
        (zero2, None, "false", True),
        (zero3, None, "false", False),
        (None, True, "false", False),
        (None, None, "true", False),
    ):
        monkeypatch.setenv("ACCELERATE_USE_FSDP", accelerate)
        config = SimpleNamespace(ds3_gather_for_generation=False, deepspeed_plugin=zero, fsdp=fsdp)
        assert (gathering_problem(config) is not None) == refused
        assert gathering_problem(SimpleNamespace(**vars(config) | {"ds3_gather_for_generation": True})) is None


@pytest.mark.parametrize(
    ("cuda", "cores", "processes", "shared_gb", "expected"),
    [
        (True, 16, 1, 64, 2),
        (True, 16, 8, 64, 1),  # two cores for each process: one is left
        (True, 8, 8, 64, 0),
        (True, 16, 1, 0.064, 0),  # what Docker gives
        (True, 16, 2, 3, 0),
        (False, 16, 1, 64, 0),
    ],
)
def test_decoding_overlaps_where_the_machine_has_room_for_it(cuda, cores, processes, shared_gb, expected, monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(cores)), raising=False)
    monkeypatch.setattr("qwenvl.config.grpo_config.SHARED_MEMORY", Path())
    monkeypatch.setattr("shutil.disk_usage", lambda path: namedtuple("Usage", "free")(shared_gb * 1e9))
    assert decoding_workers(cuda) == expected


def test_a_number_of_decoding_processes_that_is_given_counts(make, monkeypatch):
    monkeypatch.setattr("qwenvl.config.grpo_config.decoding_workers", lambda cuda: 2)
    assert (make().dataloader_num_workers, make(dataloader_num_workers=0).dataloader_num_workers) == (2, 0)


def test_gradient_checkpointing_kwargs_reach_the_newer_name_of_the_setting():
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        settings = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}}
        config = GRPOConfig(use_cpu=True, **settings)
    newer = getattr(config, "activation_checkpointing_kwargs", config.gradient_checkpointing_kwargs)
    assert newer == {"use_reentrant": True}


def test_numbers_of_numpy_become_those_of_python(make):
    """Scripts compute them: ``for rate in np.logspace(-6, -5, 3)``. The card and the log know none of them."""
    rates = np.logspace(-6, -5, 2)
    config = make(
        learning_rate=rates[0],
        grpo_beta=np.float32(0.5),
        max_steps=np.int64(3),
        reward_funcs=["format", "accuracy"],
        reward_weights=list(rates),
        tune_mm_mlp=np.bool_(False),
    )
    found = (config.learning_rate, config.grpo_beta, config.max_steps, config.tune_mm_mlp, *config.reward_weights)
    assert found == pytest.approx((1e-6, 0.5, 3, False, 1e-6, 1e-5), rel=1e-15)
    assert [type(each) for each in found] == [float, float, int, bool, float, float]


def test_either_name_of_checkpointing_decides(make):
    """The newer one of transformers comes first, where both are given."""
    for settings, expected in (
        ({}, False),
        ({"gradient_checkpointing": True}, True),
        ({"activation_checkpointing": True}, True),
        ({"gradient_checkpointing": True, "activation_checkpointing": False}, False),
    ):
        assert recomputes_layers(TrainingSettings(**settings)) is expected
        if all(hasattr(make(), name) for name in settings):  # older versions of transformers have the first one alone
            assert recomputes_layers(make(**settings)) is expected


@pytest.mark.parametrize("kind", [GRPOConfig, WarmupConfig])
def test_editors_see_every_setting_with_its_help(kind):
    shown = inspect.signature(kind).parameters
    assert list(shown) == [each.name for each in fields(kind) if each.init]
    assert shown["video_max_frames"].default == kind("run", use_cpu=True).video_max_frames
    assert "\n    video_max_frames: " in kind.__doc__ and "\n    learning_rate: " in kind.__doc__
    assert kind.__doc__.index("Example:") < kind.__doc__.index("\nArgs:\n")
