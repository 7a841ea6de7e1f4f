"""``qwenvl plan`` by running it: on a whole checkpoint, on a config.json alone, and where there is neither."""

import json
import shutil

import pytest

from qwenvl.plan.remedies import remedies
from qwenvl.train.planning.command import lines, main, plan_of, request_of


def test_a_plan_says_lengths_memory_and_remedies(tiny_checkpoint, sop_data, capsys):
    flags = ["--model", str(tiny_checkpoint()), "--dataset_use", str(sop_data), "--grpo_sample_size", "8"]
    assert main([*flags, "--gpu_memory", "0.0001"]) == 3
    out = capsys.readouterr().out
    assert "prompts of 8 records: " in out and "tokens (median)" in out and "It does not fit: " in out
    assert "--gradient_checkpointing True" in out and "costs about a fifth more time" in out
    assert "which is still too much" in out
    for part in ("weights", "optimizer", "reference", "activations", "in all"):
        assert f"\n  {part}" in out


def test_the_numbers_are_those_of_the_table(tiny_checkpoint, sop_data, capsys):
    flags = ["--model", str(tiny_checkpoint()), "--dataset_use", str(sop_data), "--gpu_memory", "1"]
    assert main([*flags, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    plan = plan_of(request_of(flags))
    assert told["fits"] and told["peak"] == plan.made.peak <= told["room"] == 9 * 10**8
    assert told["peak"] == max(sum(parts.values()) for parts in told["memory"].values())
    assert told["remedies"] and all(each["peak"] < told["peak"] for each in told["remedies"])
    assert told["prompt_tokens"]["median"] <= told["prompt_tokens"]["p95"] <= told["prompt_tokens"]["largest"]
    assert any("fits" in line for line in lines(plan, request_of(flags).options))


def test_lengths_are_those_that_a_run_sees(tiny_checkpoint, sop_data, make_trainer):
    from qwenvl.train.planning.case import case_of

    flags = ["--model", str(tiny_checkpoint()), "--dataset_use", str(sop_data), "--base_interval", "0.5", "--seed", "3"]
    plan = plan_of(request_of([*flags, "--use_cpu"]))
    trainer = make_trainer(per_device_train_batch_size=8, max_steps=1)
    batch = next(iter(trainer.get_train_dataloader()))["prompts"]
    seen = sorted(batch.attention_mask.sum(1).tolist())
    assert [length.tokens for length in plan.lengths.each] == seen
    # The run itself gives the same case as its settings do without weights.
    args = trainer.args
    args.per_device_train_batch_size, args.grpo_sample_size = 1, plan.case.job.group
    args.generation_max_length = plan.case.job.length
    assert case_of(args, trainer.model, plan.lengths.at(1.0), on_host=True) == plan.case


def test_a_split_model_may_be_sampled_layer_by_layer(tiny_checkpoint, sop_data, capsys):
    flags = ["--model", str(tiny_checkpoint()), "--dataset_use", str(sop_data), "--gpus", "8", "--engine", "zero3"]
    flags += ["--grpo_beta", "0", "--rollout_token_budget", "1"]
    whole = plan_of(request_of(flags))
    layers = plan_of(request_of([*flags, "--ds3_gather_for_generation", "False"]))
    assert whole.case.weights == layers.case.weights
    of_sampling = [plan.made.peak_of(("prefill", "decoding")) for plan in (whole, layers)]
    weights = whole.case.weights
    assert of_sampling[0] - of_sampling[1] == weights.held - round(weights.held / 8) - weights.widest
    assert main([*flags[:-6], "--ds3_gather_for_generation", "False"]) == 2
    assert "no effect without --engine zero3 or fsdp" in capsys.readouterr().err
    for others in (["--compile_decoding"], ["--warmup"]):
        with pytest.raises(ValueError, match="--ds3_gather_for_generation"):
            request_of([*flags[:-4], *others, "--ds3_gather_for_generation", "False"])


def test_files_without_weights_are_enough(tiny_checkpoint, sop_data, tmp_path, capsys):
    whole = tiny_checkpoint("qwen3_5_moe")
    flags = ["--dataset_use", str(sop_data), "--gpu_memory", "1"]
    shutil.copy(whole / "config.json", tmp_path / "config.json")
    with pytest.raises(SystemExit):
        main(["--model", str(tmp_path), *flags])
    assert "no tokenizer.json beside its config.json" in capsys.readouterr().err
    shutil.copytree(whole, tmp_path, ignore=shutil.ignore_patterns("*.safetensors"), dirs_exist_ok=True)
    light, full = (plan_of(request_of(["--model", str(path), *flags])) for path in (tmp_path, whole))
    assert light == full


def test_a_name_that_the_hub_does_not_give(sop_data, monkeypatch, capsys):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(SystemExit) as end:
        main(["--model", "Qwen/Qwen2.5-VL-none", "--dataset_use", str(sop_data)])
    assert end.value.code == 2
    told = capsys.readouterr().err
    assert "--model Qwen/Qwen2.5-VL-none: no folder of this name" in told and "config.json and its processor" in told


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--gpus", "0"], "--gpus must be at least 1"),
        (["--device", "h100"], "--device: a plan computes memory alone"),
        (["--engine", "fsdp"], "--engine fsdp has no effect with --gpus 1"),
        (["--gpus", "8", "--deepspeed", "zero3.json"], "a plan takes --engine zero2, zero3 or fsdp"),
        (["--grpo_sample_size", "1"], "--grpo_sample_size must be at least 2"),
        (["--gpu_memry", "2"], "gpu_memry"),
    ],
)
def test_bad_flags_are_told(flags, told, tiny_checkpoint, sop_data, capsys):
    assert main(["--model", str(tiny_checkpoint()), "--dataset_use", str(sop_data), *flags]) == 2
    assert told in capsys.readouterr().err


def test_what_is_of_another_machine_can_be_planned(tiny_checkpoint, sop_data, tmp_path):
    """bfloat16, an optimizer of a package and several GPUs, none of which is here, from a settings file too."""
    file = tmp_path / "run.yaml"
    file.write_text(f"model_name_or_path: {tiny_checkpoint()}\ndataset_use: {sop_data}\noptim: adamw_8bit\n")
    request = request_of([str(file), "--gpus", "4", "--engine", "zero3"])
    job = plan_of(request).case.job
    assert (job.optimizer, job.engine, job.processes) == ("adamw_8bit", "zero3", 4)
    assert job.precision.products == 2 and not job.on_host
    plain = plan_of(request_of([str(file), "--bf16", "False"])).case.job
    assert plain.precision.products == 4
    adapted = plan_of(request_of([str(file), "--lora_enable", "--tune_mm_mlp", "False"]))
    assert adapted.case.job.precision.stream == 2 and adapted.case.job.reference == "adapter"
    assert not any("lora_enable" in each.settings for each in remedies(adapted.case))
