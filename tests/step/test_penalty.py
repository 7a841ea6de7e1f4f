"""The KL in the reward: what it takes off, what is logged, and that the reference is asked once."""

import pytest
import torch

from qwenvl.grpo.advantages import group_advantages
from qwenvl.model.logprobs import completion_logprobs
from qwenvl.run_log.log import read_metrics, read_rollouts

BETA = 0.4


def test_advantages_compare_rewards_lowered_by_the_kl(make_trainer):
    """Four micro-batches, the policy away from the reference. One prompt has no rewards."""

    def letters(completions, **columns):
        return [None if n < 3 else sum(each.isalpha() for each in text) / 6 for n, text in enumerate(completions)]

    trainer = make_trainer(
        functions=(letters,),
        on_reward_error="skip",
        grpo_beta=BETA,
        advantage_estimator="reinforce_plus_plus(kl_in_reward=True)",
        per_device_train_batch_size=2,
        gradient_accumulation_steps=4,
        num_iterations=2,
        max_steps=2,
        learning_rate=1e-12,
    )
    with torch.no_grad():
        for parameter in trainer.model.lm_head.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    asked = []
    with trainer.reference.model() as reference:
        reference.lm_head.register_forward_hook(lambda *_: asked.append(True))
    trainer.train()
    assert len(asked) == 4  # once for each micro-batch, in two steps on them

    kl, totals, penalties = [], [], []
    for experience in trainer.step.experiences:
        rollout = experience.rollout
        batch = (experience.prompts, rollout.completion_ids, rollout.completion_mask)
        settings = {"temperature": 0.7, "logit_chunk_tokens": 64}
        with torch.no_grad():
            policy = completion_logprobs(trainer.model, *batch, **settings)
        with trainer.reference.model() as reference:
            frozen = completion_logprobs(reference, *batch, **settings)
        torch.testing.assert_close(experience.penalty.ref_logprobs, frozen, rtol=0, atol=1e-4)
        for row, mask in enumerate(rollout.completion_mask):
            kl.append(sum((policy[row, t] - frozen[row, t]).item() for t in mask.nonzero()[:, 0].tolist()))
        totals += experience.rewards.total.tolist()
        penalties += experience.penalty.amounts.tolist()
    assert penalties == pytest.approx([BETA * value for value in kl], abs=1e-4) and max(map(abs, kl)) > 0.05
    lowered = torch.tensor(totals).double() - torch.tensor(penalties).double()
    rows = list(read_rollouts(trainer.args.output_dir))
    expected = group_advantages(lowered, 3, estimator="reinforce_plus_plus")
    assert [row.advantage for row in rows] == pytest.approx(expected.tolist(), rel=1e-4, abs=1e-5)

    first, second = (row for row in read_metrics(trainer.args.output_dir) if "loss" in row)
    known = [total for total in totals if total == total]
    assert first["reward/total"] == pytest.approx(sum(known) / len(known), abs=1e-6)  # as the function gave them
    assert first["penalty/kl"] == pytest.approx(sum(kl) / len(kl), abs=1e-4)
    assert first["penalty/total"] == pytest.approx(lowered[~lowered.isnan()].mean().item(), abs=1e-4)
    assert first["loss/kl"] == 0 and first["kl"] > 0 and first["loss"] == pytest.approx(first["loss/policy"], abs=1e-6)
    assert second["kl"] == pytest.approx(first["kl"], rel=1e-4) and "penalty/kl" not in second


def test_an_engine_without_logprobs_is_refused(make_trainer):
    trainer = make_trainer(advantage_estimator="grpo(kl_in_reward=True)")
    draw = trainer.kernels.engine.draw

    def silent(*args, **more):
        rollout = draw(*args, **more)
        rollout.logprobs = None
        return rollout

    trainer.kernels.engine.draw = silent
    with pytest.raises(ValueError, match="kl_in_reward needs the log-probs of sampling"):
        trainer.train()
