"""Several optimizer steps on the same completions: what is done once, what each step is, and where a run may begin."""

import math

import pytest
import torch

from qwenvl.run_log.log import read_rollouts
from tests.train.conftest import caught_draws, caught_gradients, logged, with_kernels

# Eight records in steps of six: the second step of an epoch has two prompts in a micro-batch, and an empty one.
RAGGED = {"per_device_train_batch_size": 3, "gradient_accumulation_steps": 2}


def drawn_in(trainer) -> dict[int, list[tuple[int, str]]]:
    """(pass, record) of the prompts that were sampled for each step."""
    steps: dict[int, list[tuple[int, str]]] = {}
    for row in read_rollouts(trainer.args.output_dir):
        if row.split == "train" and row.sample == 0:
            steps.setdefault(row.step, []).append((row.epoch, row.record_id))
    return steps


def test_prompts_are_drawn_and_sampled_once_and_trained_on_twice(make_trainer, tmp_path):
    epochs = {"num_train_epochs": 2, "max_steps": -1, "include_num_input_tokens_seen": "all", **RAGGED}
    once = make_trainer(output_dir=str(tmp_path / "once"), **epochs)
    once.train()
    twice = make_trainer(output_dir=str(tmp_path / "twice"), num_iterations=2, **epochs)
    draws = caught_draws(twice)
    twice.train()

    assert once.state.global_step == 4 and twice.state.global_step == twice.state.max_steps == 8
    assert once.state.epoch == twice.state.epoch == 2.0
    assert [prompts for prompts, *_ in draws] == [6, 2, 6, 2]
    # The same records in the same order; rollouts are filed under the first of their two steps.
    assert drawn_in(twice) == {2 * step - 1: drawn for step, drawn in drawn_in(once).items()}
    rows = logged(twice)
    assert [row["epoch"] for row in rows] == [0.25 * step for step in range(1, 9)]
    assert [row["learning_rate"] for row in rows] == pytest.approx([1e-3 * (8 - step) / 8 for step in range(8)])
    for row in rows:
        new = row["step"] % 2 == 1
        for name in ("reward/total", "completion/length_mean", "prompt/tokens", "data/bad_samples", "time/sample_s"):
            assert (name in row) == new, name
        for name in ("ratio/mean", "ratio/clipped_low_frac", "ratio/clipped_high_frac"):
            assert (name in row) != new, name
        assert "kl" in row and "loss/policy" in row and "time/logp_s" in row
    assert "parity/max" in rows[0] and not any("parity/max" in row for row in rows[1:])
    tokens = [row["num_input_tokens_seen"] for row in rows]
    assert tokens[0::2] == tokens[1::2] == [row["num_input_tokens_seen"] for row in logged(once)]


@pytest.mark.parametrize("loss", ["grpo", "bnpo"])
def test_without_an_update_both_iterations_have_the_gradient_of_one(make_trainer, sop_data, tmp_path, loss):
    """The ratio is then 1 in the second step too; the ragged one at the end of the epoch is no other."""

    def gradients(name: str, **options) -> list[dict[str, torch.Tensor]]:
        trainer = make_trainer(output_dir=str(tmp_path / name), max_grad_norm=0.0, loss_type=loss, **RAGGED, **options)
        steps = caught_gradients(trainer)
        trainer.train()
        return steps

    once = gradients("once", max_steps=2)
    # Evaluating between the two changes nothing.
    evaluated = {"eval_strategy": "steps", "eval_steps": 1, "eval_dataset_use": str(sop_data)}
    twice = gradients("twice", max_steps=4, num_iterations=2, check_parity="every", **evaluated)
    assert len(once) == 2 and len(twice) == 4
    for step, found in enumerate(twice):
        expected = once[step // 2]
        assert found.keys() == expected.keys()
        assert max(gradient.abs().max() for gradient in expected.values()) > 1e-4
        for name, gradient in found.items():
            if step % 2 == 0:
                assert torch.equal(gradient, expected[name]), name
            torch.testing.assert_close(gradient, expected[name], rtol=1e-5, atol=1e-8, msg=name)


def test_the_loss_of_the_second_iteration_clips_the_ratio(make_trainer):
    """From the log-probs that were computed and the advantages in the run folder, by the formula."""
    settings = {"num_iterations": 2, "grpo_epsilon": 0.05, "grpo_epsilon_high": 0.1, "learning_rate": 5e-3}
    trainer = make_trainer(per_device_train_batch_size=4, grpo_alpha=0.8, grpo_beta=0.3, stop_strings=["e"], **settings)
    passes, compute = [], trainer.kernels.likelihood
    with_kernels(trainer, likelihood=lambda *args, **more: passes.append(compute(*args, **more)) or passes[-1])
    trainer.logprobs.parity.probe = lambda *_: None  # whose passes are not those of the loss
    trainer.train()
    old, reference, policy = (each.logprobs.detach() for each in passes)  # the reference is not run again

    losses, ratios, low, high = [], [], 0, 0
    for n, row in enumerate(read_rollouts(trainer.args.output_dir)):
        terms = []
        for t in range(row.tokens):
            r, d = math.exp(policy[n, t] - old[n, t]), (reference[n, t] - policy[n, t]).item()
            gain = min(r * row.advantage, min(max(r, 0.95), 1.1) * row.advantage)
            terms.append(-0.8 * gain + 0.3 * (math.exp(d) - d - 1))
            ratios.append(r)
            low += r < 0.95 and row.advantage < 0
            high += r > 1.1 and row.advantage > 0
        losses.append(sum(terms) / len(terms))
    last = logged(trainer)[-1]
    assert last["step"] == 2 and len(losses) == 12 and low > 0 and high > 0
    assert last["loss"] == pytest.approx(sum(losses) / 12, rel=1e-4)
    assert last["ratio/mean"] == pytest.approx(sum(ratios) / len(ratios), rel=1e-5)
    assert last["ratio/clipped_low_frac"] == pytest.approx(low / len(ratios))
    assert last["ratio/clipped_high_frac"] == pytest.approx(high / len(ratios))


def test_a_run_killed_between_two_iterations_resumes_the_same(whole_and_resumed):
    """All completions have an entropy below the target: each time the weight of the bonus grows by 0.005."""
    common = {"max_steps": 8, "num_iterations": 2, "save_strategy": "steps", "save_steps": 2, **RAGGED}
    whole, resumed = whole_and_resumed(killed=5, resumed_from=4, entropy_coef=0.1, entropy_target=100.0, **common)
    rows = logged(whole, times=False)
    assert rows == logged(resumed, times=False) and drawn_in(whole) == drawn_in(resumed)
    weights = [0.1, 0.1, 0.105, 0.105, 0.11, 0.11, 0.115, 0.115]
    assert [row["entropy_coef"] for row in rows] == pytest.approx(weights, rel=1e-12)
    for row in rows:
        assert row["loss/entropy"] == pytest.approx(-row["entropy_coef"] * row["entropy"], rel=1e-5)


def test_a_checkpoint_between_two_iterations_is_refused(make_trainer, tmp_path):
    steps = {"max_steps": 3, "save_strategy": "steps", "save_steps": 2, "output_dir": str(tmp_path / "run")}
    make_trainer(**steps, num_iterations=2).train()  # its end, too, is saved
    going_on = make_trainer(output_dir=steps["output_dir"], max_steps=6, save_strategy="no", num_iterations=2)
    message = r"checkpoint of step 3 can't be resumed with --num_iterations 2: .* whose step is a multiple of 2"
    with pytest.raises(ValueError, match=message):
        going_on.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-3"))


def test_no_checkpoint_is_saved_between_steps_on_the_same_completions(make_trainer, tmp_path):
    """Where the servers are lost during an evaluation: it could not be resumed, and the one before would be deleted."""
    trainer = make_trainer(num_iterations=2, max_steps=4)
    trainer.create_optimizer_and_scheduler(4)
    trainer.state.global_step = 3
    trainer.save_last_step()
    assert not (tmp_path / "run" / "checkpoint-3").exists()
    trainer.state.global_step = 2
    trainer.save_last_step()
    assert (tmp_path / "run" / "checkpoint-2").is_dir()
