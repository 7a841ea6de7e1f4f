"""``qwenvl plan`` by running it: on a whole checkpoint, on a config.json alone, and where there is neither."""

import shutil

import pytest
from safetensors.torch import load_file

from qwenvl.commands.plan import main, plan_of, request_of
from qwenvl.plan.memory import fullest, reserved
from qwenvl.train.planning.case import case_of


@pytest.fixture
def flags(tiny_checkpoint, sop_data) -> list[str]:
    """Flags of a plan for the tiny checkpoint and the mixed data set."""
    return ["--model", str(tiny_checkpoint()), "--dataset_use", str(sop_data)]


def planned(*flags: str):
    return plan_of(*request_of(flags))


def test_a_plan_prints_lengths_memory_and_remedies(flags, capsys):
    assert main([*flags, "--grpo_sample_size", "8", "--gpu_memory", "0.0001"]) == 3
    out = capsys.readouterr().out
    assert "prompts of 8 records: " in out and "tokens (median)" in out and "It does not fit: " in out
    assert "Plan again with a smaller --grpo_sample_size or --lora_enable or --gpus 8 --engine zero3 to see" in out
    assert "--gradient_checkpointing True gives " in out and "it costs about a fifth more time" in out
    for part in ("weights", "optimizer", "reference", "activations", "in all"):
        assert f"\n  {part}" in out
    assert main([*flags, "--gpu_memory", "1"]) == 0
    assert planned(*flags).reserved <= 9 * 10**8


def test_a_run_fits_by_the_memory_that_pytorch_reserves(flags, capsys):
    """PyTorch reserves more than tensors take: 12.8 GB where 11.1 were planned, in the run that was compared."""
    peak = fullest(planned(*flags).phases).total
    assert 12.8e9 <= reserved(int(11.1e9)) <= 13e9
    between = 1.05 * peak / 0.9 / 1e9  # room for tensors, and not for what is reserved for them
    assert main([*flags, "--gpu_memory", str(between)]) == 3
    assert main([*flags, "--gpu_memory", str(1.2 * peak / 0.9 / 1e9)]) == 0
    assert "PyTorch reserves " in capsys.readouterr().out


def test_a_plan_has_the_prompt_lengths_and_the_case_of_the_run(flags, make_trainer):
    plan = planned(*flags, "--base_interval", "0.5", "--seed", "3", "--use_cpu")
    trainer = make_trainer(per_device_train_batch_size=8, max_steps=1)
    batch = next(iter(trainer.get_train_dataloader()))["prompts"]
    assert [length.tokens for length in plan.lengths] == sorted(batch.attention_mask.sum(1).tolist())
    args, job = trainer.args, plan.case[-1]
    args.per_device_train_batch_size, args.grpo_sample_size, args.generation_max_length = 1, job.group, job.length
    assert case_of(args, trainer.model, plan.lengths[-1]) == plan.case


def test_a_plan_counts_the_precision_and_the_checkpointing_of_the_run(flags):
    plain = planned(*flags).case[-1]
    assert (plain.stream, plain.checkpointing) == (4, False)
    with_adapter = [*flags, "--lora_enable"]
    assert planned(*with_adapter).case[-1].stream == 2  # in bfloat16
    assert planned(*with_adapter, "--fp16").case[-1].stream == 4
    for words in (["--gradient_checkpointing"], ["--activation_checkpointing"]):
        assert planned(*flags, *words).case[-1].checkpointing
    both = ["--gradient_checkpointing", "--activation_checkpointing", "False"]
    assert not planned(*flags, *both).case[-1].checkpointing


@pytest.mark.parametrize(
    ("optimizer", "arguments", "moments"),
    [
        *(("sgd", None, 0), ("sgd", "momentum=0.9", 1), ("sgd", "momentum=0", 0), ("sgd", "weight_decay=0.1", 0)),
        *(("rmsprop", "momentum=0.9, centered=True", 2), ("rmsprop", "centered=false", 0)),
    ],
)
def test_a_plan_counts_the_moments_that_arguments_of_the_optimizer_add(flags, optimizer, arguments, moments):
    given = [] if arguments is None else ["--optim_args", arguments]
    assert planned(*flags, "--optim", optimizer, *given).case[-1].further_moments == moments


def test_a_plan_says_where_it_has_measured_a_sample_of_the_records(flags, monkeypatch, capsys):
    monkeypatch.setattr("qwenvl.train.planning.case.RECORDS", 5)
    assert main([*flags, "--gpu_memory", "1"]) == 0
    out = capsys.readouterr().out
    assert "prompts of 5 records: " in out
    assert "a random sample: 3 further records were not measured. --max_prompt_length bounds their prompts" in out


def test_the_engine_of_a_plan_stands_for_that_of_a_settings_file(flags, tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("deepspeed: scripts/deepspeed/zero3.json\n")
    assert planned(*flags, "--config", str(file), "--gpus", "2", "--engine", "zero3").case[-1].engine == "zero3"
    with pytest.raises(ValueError, match="a plan takes --engine zero2, zero3 or fsdp"):
        planned(*flags, "--config", str(file), "--gpus", "2")


def test_a_teacher_takes_the_memory_of_a_second_model(flags, tiny_checkpoint):
    """Its weights, in bfloat16, are there in every phase. Offloaded, they are there while its pass runs."""
    path = tiny_checkpoint(num_layers=3)
    size = 2 * sum(each.numel() for each in load_file(path / "model.safetensors").values())
    alone, stays, leaves = (
        {each.name: each for each in planned(*flags, *words).phases}
        for words in ([], ["--teacher", str(path)], ["--teacher", f"{path}(offload=True)"])
    )
    for name, phase in alone.items():
        assert stays[name].total == phase.total + size and leaves[name] == phase
    assert stays["log-probs of the teacher"] == leaves["log-probs of the teacher"]
    assert leaves["log-probs of the teacher"].parts["teacher"] == size


def test_files_without_weights_are_enough(tiny_checkpoint, sop_data, tmp_path, capsys):
    whole = tiny_checkpoint("qwen3_5_moe")
    flags = ["--dataset_use", str(sop_data), "--gpu_memory", "1"]
    shutil.copy(whole / "config.json", tmp_path / "config.json")
    with pytest.raises(SystemExit):
        main(["--model", str(tmp_path), *flags])
    assert "no tokenizer.json in it" in capsys.readouterr().err
    shutil.copytree(whole, tmp_path, ignore=shutil.ignore_patterns("*.safetensors"), dirs_exist_ok=True)
    light, full = (planned("--model", str(path), *flags) for path in (tmp_path, whole))
    assert light == full


def test_an_unknown_model_without_the_hub_is_refused_with_the_download_command(sop_data, monkeypatch, capsys):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(SystemExit) as end:
        main(["--model", "Qwen/Qwen2.5-VL-none", "--dataset_use", str(sop_data)])
    assert end.value.code == 2
    told = capsys.readouterr().err
    assert "Qwen/Qwen2.5-VL-none: no such folder, not in the cache, and HF_HUB_OFFLINE is set" in told
    assert "hf download Qwen/Qwen2.5-VL-none --local-dir FOLDER" in told and len(told.strip().splitlines()) == 2


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--gpus", "0"], "--gpus must be at least 1"),
        (["--device", "h100"], "unknown flag --device"),
        (["--engine", "fsdp"], "--engine fsdp has no effect with --gpus 1"),
        (["--gpus", "8", "--deepspeed", "zero3.json"], "a plan takes --engine zero2, zero3 or fsdp"),
        (["--stop_below_loss", "0.5"], "unknown flag stop_below_loss; qwenvl warmup has it"),
    ],
)
def test_unknown_flags_and_flags_without_effect_are_refused_by_name(flags, told, tiny_checkpoint, sop_data, capsys):
    assert main(["--model", str(tiny_checkpoint()), "--dataset_use", str(sop_data), *flags]) == 2
    assert told in capsys.readouterr().err


def test_a_precision_an_optimizer_and_gpus_that_this_machine_lacks_can_be_planned(tiny_checkpoint, sop_data, tmp_path):
    """bfloat16, an optimizer of a package and several GPUs, none of which is here, from a settings file too."""
    file = tmp_path / "run.yaml"
    file.write_text(f"model_name_or_path: {tiny_checkpoint()}\ndataset_use: {sop_data}\noptim: adamw_8bit\n")
    job = planned(str(file), "--gpus", "4", "--engine", "zero3").case[-1]
    assert (job.optimizer, job.engine, job.processes) == ("adamw_8bit", "zero3", 4)
    assert job.products == 2
    assert planned(str(file), "--bf16", "False").case[-1].products == 4
    adapted = planned(str(file), "--lora_enable", "--tune_mm_mlp", "False").case[-1]
    assert adapted.stream == 2 and adapted.reference == "adapter"
