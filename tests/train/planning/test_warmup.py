"""``qwenvl plan --warmup``: targets in the place of completions, and the flags of a warm-up."""


import pytest

from qwenvl.demo.tiny import make_processor
from qwenvl.train.planning.case import TargetSizes, case_of, target_sizes
from qwenvl.train.planning.command import lines, main, plan_of, request_of
from qwenvl.train.planning.full_memory import case_of_step
from qwenvl.train.warmup.config import WarmupConfig
from qwenvl.train.warmup.trainer import WarmupTrainer
from qwenvl.types import Record

TEMPLATE = "<think>It is easy to see.</think><answer>{solution}</answer>"


@pytest.fixture
def flags(tiny_checkpoint, sop_data):
    return ["--warmup", "--model", str(tiny_checkpoint()), "--dataset_use", str(sop_data), "--gpu_memory", "1"]


def test_the_case_is_that_of_the_warm_up_itself(flags, tiny_checkpoint, sop_data, tmp_path):
    settings = {"target_template": TEMPLATE, "gradient_accumulation_steps": 3, "max_steps": 1}
    plan = plan_of(request_of([*flags, "--use_cpu", *(f"--{name}={value}" for name, value in settings.items())]))
    args = WarmupConfig(str(tmp_path), dataset_use=str(sop_data), use_cpu=True, report_to="none", **settings)
    trainer = WarmupTrainer(tiny_checkpoint(), args)
    drawn = trainer.data_collator([trainer.train_dataset[number] for number in range(8)])
    targets = TargetSizes(len(drawn["target_ids"]) // 8, drawn["target_ids"].shape[1])
    assert plan.lengths.at(1.0).tokens == drawn["prompts"].attention_mask.sum(1).max()
    assert plan.case == case_of(args, trainer.model, plan.lengths.at(1.0), on_host=True, targets=targets)
    assert plan.case == case_of_step(trainer)  # what is told where its memory is full
    assert (plan.case.job.warmup, plan.case.job.samples, plan.case.job.reference) == (True, False, "none")


def test_a_warm_up_is_told(flags, capsys):
    assert main(flags) == 0
    told = capsys.readouterr().out
    assert "vision" in told and "1 target of " in told and "sampling" not in told and "reference" not in told
    request = request_of([*flags, "--json"])
    assert any("fits" in line for line in lines(plan_of(request), request.options))


def test_flags_of_the_other_kind_of_run(flags, tmp_path, capsys):
    assert main([*flags, "--grpo_beta", "0"]) == 2
    assert "--grpo_beta has no effect in a warm-up" in capsys.readouterr().err
    assert main([*flags[1:], "--min_reward", "0.5"]) == 2
    assert "unknown flag min_reward; qwenvl warmup and qwenvl plan --warmup have it" in capsys.readouterr().err
    shared = tmp_path / "run.yaml"  # one file for the warm-up and the training that follows
    shared.write_text("grpo_beta: 0\nlora_enable: True\ntune_mm_mlp: False\n")
    assert plan_of(request_of([str(shared), *flags])).case.job.rank > 0


def test_targets_are_counted_with_their_ends():
    class Said:
        """Targets as those of a run: some prompts have several."""

        def of(self, record, opened_think):
            return ["a longer text"] if record.id == "0" else ["b", "c d"]

    records = [Record(str(n), (), "7", (), (), (), {}, f"data.json[{n}]") for n in range(2)]
    tokenizer = make_processor("qwen2_5_vl").tokenizer
    ruler = type("Ruler", (), {"processor": type("Processor", (), {"tokenizer": tokenizer})})
    assert target_sizes(records, Said(), ruler) == (2, len(tokenizer("a longer text")["input_ids"]) + 1)
