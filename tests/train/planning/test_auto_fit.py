"""``--auto_fit`` takes what changes no result, says it, and refuses a run that would not fit."""

import json

import pytest

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.plan.remedies import cheapest_way
from qwenvl.train.planning.auto_fit import fit_to_memory, room_of
from qwenvl.train.planning.case import case_of
from qwenvl.train.planning.plan import lengths_of, policy_without_weights
from qwenvl.train.train_grpo import main


@pytest.fixture
def settings(tiny_checkpoint, sop_data, tmp_path) -> dict:
    """Of a run of two prompts in a micro-batch."""
    return {
        "output_dir": str(tmp_path / "run"),
        "model_name_or_path": str(tiny_checkpoint(num_layers=4)),
        "dataset_use": str(sop_data),
        "per_device_train_batch_size": 2,
        "grpo_sample_size": 2,
        "generation_max_length": 6,
        "use_cpu": True,
    }


def case_with(settings: dict):
    args = GRPOConfig(**settings)
    policy = policy_without_weights(args)
    return case_of(args, policy, lengths_of(args, policy, 100).at(1.0), on_host=True)


def test_what_changes_nothing_is_taken_until_it_fits(settings):
    case = case_with(settings)
    least = cheapest_way(case, 1.0, automatic=True)[1].estimate().peak
    room = (case.estimate().peak + 2 * least) / 3
    args = GRPOConfig(**settings, auto_fit=True, fit_memory_gb=room / 1e9)
    fit_to_memory(args)
    assert args.auto_fitted and all(getattr(args, name) == value for name, value in args.auto_fitted.items())
    assert args.per_device_train_batch_size * args.gradient_accumulation_steps == 2
    policy = policy_without_weights(args)
    fitted = case_of(args, policy, lengths_of(args, policy, 100).at(1.0), on_host=True)
    assert fitted.estimate().peak <= room < case.estimate().peak


def test_nothing_is_changed_where_it_fits(settings, capfd):
    args = GRPOConfig(**settings, auto_fit=True)
    fit_to_memory(args)
    assert args.auto_fitted == {} and args.per_device_train_batch_size == 2 and not args.gradient_checkpointing
    assert "--auto_fit changes nothing: a step takes " in capfd.readouterr().err
    assert room_of(args) > 10**8


def test_what_would_not_fit_is_refused_with_what_helps(settings):
    args = GRPOConfig(**settings, auto_fit=True, fit_memory_gb=1e-6)
    with pytest.raises(ValueError, match="with all that changes nothing of what is learned:\n") as refused:
        fit_to_memory(args)
    said = str(refused.value)
    assert "\n  weights" in said and "\nWhat else helps:\n  --" in said and args.auto_fitted is None
    assert args.per_device_train_batch_size == 2


def test_the_command_writes_down_what_it_took(settings, tmp_path, capfd):
    case = case_with(settings)
    room = (case.estimate().peak + 2 * cheapest_way(case, 1.0, automatic=True)[1].estimate().peak) / 3
    flags = [f"--{name}={value}" for name, value in settings.items()]
    main([*flags, "--auto_fit", f"--fit_memory_gb={room / 1e9}", "--max_steps=1", "--save_strategy=no"])
    captured = capfd.readouterr()
    written = json.loads((tmp_path / "run" / "run.json").read_text())["config"]
    taken = written["auto_fitted"]
    assert taken and taken.items() <= written.items()
    flags = " ".join(f"--{name} {value}" for name, value in taken.items())
    assert f"--auto_fit takes {flags}: a step then takes " in captured.out + captured.err


def test_it_has_an_effect_or_is_refused(settings, make_trainer):
    with pytest.raises(ValueError, match="--fit_memory_gb has no effect without --auto_fit"):
        GRPOConfig(**settings, fit_memory_gb=3.0)
    with pytest.raises(ValueError, match="--auto_fit has no effect with --deepspeed and --fsdp"):
        GRPOConfig(**settings, auto_fit=True, fsdp=True)
    with pytest.raises(ValueError, match=r"call qwenvl\.train\.planning\.auto_fit\.fit_to_memory"):
        make_trainer(auto_fit=True)
