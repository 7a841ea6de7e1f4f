"""One training step: what the loss is, what its gradient is, and what a run leaves behind."""

import copy
import json
import math
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForImageTextToText, AutoProcessor, AutoTokenizer

from qwenvl import GRPOConfig, GRPOTrainer
from qwenvl.data.errors import RecordError
from qwenvl.grpo.advantages import group_advantages
from qwenvl.model.logprobs import completion_logprobs
from qwenvl.run_log.intervals import clustered_interval
from qwenvl.run_log.log import read_config, read_metrics, read_rollouts
from tests.train.conftest import caught_draws, caught_gradients, logged, with_kernels


def gradients_of_one_step(trainer):
    """Runs one optimizer step and returns what the optimizer was given."""
    steps = caught_gradients(trainer)
    trainer.train()
    return steps[0]


def first_batch(trainer):
    return next(iter(trainer.get_train_dataloader()))


def test_the_loss_is_a_mean_of_policy_and_kl_terms_over_tokens_then_completions(make_trainer):
    """-alpha * A * 1 + beta * k3 per token, mean over a completion's tokens, mean over completions."""
    trainer = make_trainer(grpo_alpha=0.8, grpo_beta=0.3, per_device_train_batch_size=2)
    inputs = first_batch(trainer)
    with torch.no_grad():
        for parameter in trainer.model.lm_head.parameters():  # away from the reference, so that the KL is not 0
            parameter.add_(torch.randn_like(parameter) * 0.02)
    loss = trainer.compute_loss(trainer.model, inputs).item()
    (experience,) = trainer.step.experiences
    rollout, n = experience.rollout, len(experience.rollout.texts)
    settings = {"temperature": 0.7, "logit_chunk_tokens": 64}
    batch = (experience.prompts, rollout.completion_ids, rollout.completion_mask)
    policy = completion_logprobs(trainer.model, *batch, **settings)
    with trainer.reference.model() as reference:
        frozen = completion_logprobs(reference, *batch, **settings)
    advantages = group_advantages(experience.rewards.total, 3)
    total = 0.0
    for row in range(n):
        tokens = rollout.completion_mask[row].nonzero()[:, 0].tolist()
        terms = []
        for t in tokens:
            d = (frozen[row, t] - policy[row, t]).item()
            terms.append(-0.8 * advantages[row].item() + 0.3 * (math.exp(d) - d - 1))
        total += sum(terms) / len(terms)
    assert loss == pytest.approx(total / n, rel=1e-4)
    assert abs(total / n) > 1e-3


@pytest.mark.parametrize(
    "settings",
    [{"scale_rewards": "batch"}, {"advantage_estimator": "reinforce_plus_plus"}],
    ids=str,
)
def test_gradient_accumulation_is_exact(make_trainer, tmp_path, settings):
    """The same four prompts as 1 x 4 and 4 x 1 micro-batches give the same gradient."""
    results = []
    for size in (4, 1):
        trainer = make_trainer(
            output_dir=str(tmp_path / f"run-{size}"),
            per_device_train_batch_size=size,
            gradient_accumulation_steps=4 // size,
            max_steps=1,
            max_grad_norm=0.0,
            **settings,
        )
        results.append(gradients_of_one_step(trainer))
    for other in results[1:]:
        assert other.keys() == results[0].keys()
        for name, gradient in other.items():
            torch.testing.assert_close(gradient, results[0][name], rtol=1e-4, atol=1e-7, msg=name)
    assert max(g.abs().max() for g in results[0].values()) > 1e-4


def test_fast_and_plain_paths_see_the_same_policy(make_trainer, caplog):
    """The same tokens, scored by the trainer that computes prompts once and by the one that does not."""
    fast = make_trainer(per_device_train_batch_size=4)
    plain = make_trainer(per_device_train_batch_size=4, shared_prefix="off")
    batch = first_batch(fast)["prompts"]
    (experience,) = fast.pipeline([batch], fast.step_context()).experiences
    ours = fast.logprobs.of_policy(fast.model, experience, "measured")
    with_pixels = replace(experience, prompts=plain.answer.sample.encode.build_inputs(batch))
    theirs = plain.logprobs.of_policy(plain.model, with_pixels, "measured")
    torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-5)
    reference = fast.logprobs.of_reference(experience)
    torch.testing.assert_close(reference, ours.logprobs, rtol=0, atol=1e-6)  # nothing is trained yet
    assert "computes its prompt again" not in caplog.text


def test_equal_rewards_give_no_policy_gradient(make_trainer):
    trainer = make_trainer(functions=[lambda completions, **columns: [1.0] * len(completions)], max_steps=1)
    gradients = gradients_of_one_step(trainer)
    assert all(gradient.abs().max() < 1e-9 for gradient in gradients.values())
    assert read_metrics(trainer.args.output_dir)[0]["group/zero_std_frac"] == 1.0


def test_a_run_leaves_metrics_rollouts_and_settings(make_trainer):
    trainer = make_trainer(max_steps=3, per_device_train_batch_size=2)
    trainer.train()
    rows = logged(trainer)
    assert [row["step"] for row in rows] == [1, 2, 3]
    names = {
        "loss", "grad_norm", "entropy", "reward/total", "reward/std", "reward/letters", "kl", "group/zero_std_frac",
        "completion/length_mean", "completion/length_max", "completion/truncated_frac", "prompt/tokens",
        "prompt/frames", "time/sample_s", "time/reward_s", "time/logp_s", "time/backward_s",
    }  # fmt: skip
    assert names <= rows[0].keys()
    assert not [name for name in rows[0] if name.startswith("dataset/") or name == "data/fitted_prompts"]
    assert rows[0]["parity/max"] < 1e-3 and "parity/max" not in rows[1]
    assert rows[0]["kl"] == pytest.approx(0, abs=1e-6) and rows[2]["kl"] > 0
    rollouts = list(read_rollouts(trainer.args.output_dir, step=1))
    assert len(rollouts) == 6 and {r.sample for r in rollouts} == {0, 1, 2}
    by_record = {r.record_id: r for r in rollouts}
    for rollout in by_record.values():
        assert rollout.total == pytest.approx(rollout.rewards["letters"])
        assert rollout.where.endswith("]") and rollout.solution.startswith("<answer>")
    settings = read_config(trainer.args.output_dir)
    assert settings["config"]["grpo_sample_size"] == 3 and "transformers" in settings["versions"]


@pytest.mark.parametrize("lora", [False, True])
def test_a_saved_model_loads_with_plain_transformers(make_trainer, tmp_path, lora):
    trainer = make_trainer(lora_enable=lora, max_steps=1)
    trainer.train()
    trainer.save_model(str(tmp_path / "saved"))
    loaded = AutoModelForImageTextToText.from_pretrained(tmp_path / "saved", dtype=torch.float32)
    assert AutoProcessor.from_pretrained(tmp_path / "saved").video_processor is not None
    inputs = trainer.answer.sample.encode.build_inputs(first_batch(trainer)["prompts"])
    with torch.no_grad():
        call = {"input_ids": inputs.input_ids, "position_ids": inputs.position_ids, **inputs.vision()}
        expected = trainer.model.eval()(**call).logits
        torch.testing.assert_close(loaded.eval()(**call).logits, expected, rtol=0, atol=1e-5)


def test_a_killed_and_resumed_run_is_the_same_run(make_trainer, whole_and_resumed, tmp_path):
    common = {"max_steps": 6, "save_steps": 3, "save_strategy": "steps", "per_device_train_batch_size": 2}
    whole, resumed = whole_and_resumed(killed=5, resumed_from=3, **common)
    rows, again = logged(whole, times=False), logged(resumed, times=False)
    assert [row["step"] for row in again] == [1, 2, 3, 4, 5, 6]
    assert rows == again
    assert [r.completion for r in read_rollouts(tmp_path / "whole")] == [
        r.completion for r in read_rollouts(tmp_path / "cut")
    ]
    assert any(not torch.equal(p, q) for p, q in zip(whole.model.parameters(), base_model(make_trainer), strict=False))


def test_a_run_with_drafts_resumes_with_its_history(whole_and_resumed, tiny_checkpoint, tmp_path):
    # A model of strong weights at a low temperature repeats itself, so that drafts are right now and then.
    common = {"max_steps": 6, "save_steps": 3, "save_strategy": "steps", "per_device_train_batch_size": 2}
    common |= {"model": str(tiny_checkpoint(initializer_range=0.25)), "generation_temperature": 0.3}
    whole, resumed = whole_and_resumed(killed=5, resumed_from=3, draft_tokens=3, generation_max_length=24, **common)
    rows, again = logged(whole, times=False), logged(resumed, times=False)
    assert rows == again and all(row["sampling/tokens_per_forward"] >= 1 for row in rows)
    assert any(0 < row.get("sampling/accepted_frac", 0) < 1 for row in rows), "drafts of both kinds"
    assert [r.completion for r in read_rollouts(tmp_path / "whole")] == [
        r.completion for r in read_rollouts(tmp_path / "cut")
    ]
    file = tmp_path / "cut" / "checkpoint-6" / "drafts_0.json"
    file.write_text("{}")
    with pytest.raises(ValueError, match=r"drafts_0\.json: expected completions that drafts are taken from"):
        resumed.pipeline.sample.load(file.parent)


def test_a_run_of_experts_resumes_too(whole_and_resumed, tiny_checkpoint, tmp_path):
    model = str(tiny_checkpoint("qwen3_5_moe", initializer_range=0.1))
    common = {"model": model, "max_steps": 3, "save_strategy": "steps", "save_steps": 1, "lora_enable": True}
    whole_and_resumed(killed=2, resumed_from=1, **common)
    rows = [[(r.step, r.completion, r.rewards) for r in read_rollouts(tmp_path / name)] for name in ("whole", "cut")]
    assert rows[0] == rows[1] and {step for step, *_ in rows[0]} == {1, 2, 3}


def base_model(make_trainer):
    return [copy.deepcopy(p) for p in make_trainer().model.parameters()]


def test_evaluation_samples_once_and_has_intervals(make_trainer, sop_data):
    trainer = make_trainer(eval_dataset_use=str(sop_data), functions=None, per_device_eval_batch_size=3)
    draws = caught_draws(trainer)
    metrics = trainer.evaluate()
    assert [prompts for prompts, *_ in draws] == [3, 3, 2]
    rows = list(read_rollouts(trainer.args.output_dir, split="eval"))
    assert len(rows) == 8 and all(row.split == "eval" and row.advantage is None for row in rows)
    for name in ("format", "accuracy", "total"):
        values = [row.total if name == "total" else row.rewards[name] for row in rows]
        assert metrics[f"eval_{name}_reward"] == pytest.approx(sum(values) / 8)
        assert metrics[f"eval_{name}_reward_n"] == 8
        assert metrics[f"eval_{name}_reward_ci95"] >= 0
    assert trainer.evaluate() | {} and [r.completion for r in rows] == [
        r.completion for r in list(read_rollouts(trainer.args.output_dir, split="eval"))[8:]
    ]


def test_evaluation_of_several_samples_counts_prompts_once(make_trainer, sop_data):
    trainer = make_trainer(eval_dataset_use=str(sop_data), eval_sample_size=3)
    metrics = trainer.evaluate()
    rows = list(read_rollouts(trainer.args.output_dir, split="eval"))
    means = [sum(r.total for r in rows[n : n + 3]) / 3 for n in range(0, 24, 3)]
    assert metrics["eval_total_reward"] == pytest.approx(sum(means) / 8)
    found = clustered_interval(means)
    assert metrics["eval_total_reward_ci95"] == pytest.approx((found.high - found.low) / 2)


def test_a_field_that_a_step_lacks_is_none_and_one_that_all_records_lack_is_refused(
    make_trainer, sop_data, monkeypatch, capsys
):
    rows = json.loads(sop_data.read_text())
    rows[2]["station"] = "north"
    mixed = sop_data.parent / "mixed.json"
    mixed.write_text(json.dumps(rows))
    seen = []

    def near(completions, station):
        seen.append(set(station))
        return [float(len(text) % 2) for text in completions]

    steps = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 1, "max_steps": len(rows)}
    make_trainer(dataset_use=str(mixed), functions=[near], **steps).train()
    assert len(seen) == len(rows) and sorted(map(str, seen)) == ["{'north'}", *["{None}"] * (len(rows) - 1)]
    with pytest.raises(RecordError, match=r'sop\.json: reward "near" needs the column .station., which no record'):
        make_trainer(functions=[near])
    with pytest.raises(RecordError, match=r"sop\.json: reward"):
        make_trainer(dataset_use=str(mixed), eval_dataset_use=str(sop_data), functions=[near])
    monkeypatch.setattr("qwenvl.data.records.record_file.are_all_read", lambda records: False)
    make_trainer(functions=[near])  # of a large file others may have it
    assert "sop.json: reward \"near\" needs the column 'station'" in capsys.readouterr().err
    monkeypatch.undo()
    elsewhere = sop_data.parent / "elsewhere.json"  # whose records go to the other function
    elsewhere.write_text(json.dumps([{**row, "reward": "accuracy"} for row in json.loads(sop_data.read_text())]))
    make_trainer(dataset_use=str(mixed), eval_dataset_use=str(elsewhere), functions=[near, "accuracy"]).evaluate()


def test_parity_stops_a_trainer_that_sees_other_frames(make_trainer):
    trainer = make_trainer(max_steps=1)
    kernel = trainer.kernels.likelihood

    def blind(model, prompts, *completions, **settings):
        if prompts.pixel_values_videos is not None:
            prompts = replace(prompts, pixel_values_videos=torch.zeros_like(prompts.pixel_values_videos))
        return kernel(model, prompts, *completions, **settings)

    with_kernels(trainer, likelihood=blind)
    with pytest.raises(RuntimeError, match="do not see the same prompt"):
        trainer.train()


def test_bad_samples_are_skipped_counted_and_listed(make_trainer, sop_data, tmp_path, caplog):
    rows = json.loads(sop_data.read_text())[:3]
    for n, row in enumerate(rows):
        row["video"] = str(sop_data.parent / row["video"]) if n else "broken.mp4"
    (tmp_path / "broken.mp4").write_bytes(b"this is no video")
    path = tmp_path / "some.json"
    path.write_text(json.dumps(rows))
    options = {"dataset_use": str(path), "allow_outside_media": True}
    with pytest.raises(Exception, match=r"some.json\[0\] .*broken.mp4"):
        make_trainer(**options, max_steps=3).train()
    trainer = make_trainer(**options, max_steps=6, on_bad_sample="skip")
    trainer.train()
    rows = logged(trainer)
    assert sum(row["data/bad_samples"] for row in rows) == 2  # once in each of two epochs
    assert all(math.isfinite(row["loss"]) for row in rows)
    assert "1 record left out" in caplog.text and "broken.mp4" in caplog.text
    assert {r.record_id for r in read_rollouts(trainer.args.output_dir)} == {"clip-1", "clip-2"}


def test_own_learning_rates_reach_the_optimizer(make_trainer):
    trainer = make_trainer(mm_projector_lr=5e-4, tune_mm_vision=True, vision_tower_lr=2e-4)
    trainer.create_optimizer()
    rates = {id(p): group["lr"] for group in trainer.optimizer.param_groups for p in group["params"]}
    for name, parameter in trainer.model.named_parameters():
        expected = 5e-4 if "merger" in name else 2e-4 if ".visual." in name else 1e-3
        assert rates[id(parameter)] == expected, name
    trainer.train()
    rates = [row["learning_rate"] for row in logged(trainer)]
    assert rates == [1e-3, 5e-4]  # that of --learning_rate, falling


def test_a_frozen_part_does_not_move(make_trainer):
    trainer = make_trainer(tune_mm_llm=False)
    before = copy.deepcopy(trainer.model.state_dict())
    trainer.train()
    moved = {name for name, value in trainer.model.state_dict().items() if not torch.equal(value, before[name])}
    assert moved and all("merger" in name for name in moved)


def test_flags_name_rewards_with_arguments_weights_and_plugins(make_trainer, tmp_path):
    plugin = tmp_path / "mine.py"
    plugin.write_text(
        "from qwenvl.rewards import reward\n\n\n"
        '@reward("short")\n'
        "def short(completions, *, scale=3.0, **columns):\n"
        "    return [scale / (1 + len(c)) for c in completions]\n"
    )
    named = ["short(scale=1.0)", "repetition(n_grams=2)"]
    flags = {"reward_funcs": named, "reward_weights": [2.0, 0.5], "external_plugins": [str(plugin)]}
    trainer = make_trainer(functions=None, max_steps=1, **flags)
    trainer.train()
    for rollout in read_rollouts(trainer.args.output_dir):
        expected = 2.0 / (1 + len(rollout.completion)) + 0.5 * rollout.rewards["repetition"]
        assert rollout.total == pytest.approx(expected, rel=1e-4)


def test_a_tokenizer_in_the_place_of_the_processor_is_refused(tiny_checkpoint, sop_data, tmp_path):
    args = GRPOConfig(output_dir=str(tmp_path / "run"), use_cpu=True)
    tokenizer = AutoTokenizer.from_pretrained(tiny_checkpoint())
    with pytest.raises(TypeError, match="processing_class: expected the processor of a Qwen-VL model"):
        GRPOTrainer(str(tiny_checkpoint()), args, str(sop_data), processing_class=tokenizer)


def test_a_model_in_half_precision_needs_no_flag_to_pass_the_parity_check(make_trainer, tiny_checkpoint):
    model = AutoModelForImageTextToText.from_pretrained(tiny_checkpoint(initializer_range=0.1), dtype=torch.bfloat16)
    trainer = make_trainer(model=model, max_steps=1, check_parity="every")
    trainer.train()
    assert trainer.state.global_step == 1


def test_a_setting_that_no_reward_reads_is_refused(make_trainer):
    with pytest.raises(ValueError, match="--response_format has no effect: only format and strict_format read it"):
        make_trainer(response_format="answer_only")
    make_trainer(response_format="answer_only", functions=["strict_format"])
