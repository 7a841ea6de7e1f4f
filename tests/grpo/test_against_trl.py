"""The losses, gradients, shares and advantages of a published library equal ours. Needs the extra ``bench``."""

import ast
import inspect
import textwrap
from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from accelerate import Accelerator

from qwenvl.grpo.advantages import group_advantages
from qwenvl.grpo.loss import LOSSES, LossInputs, StepCounts
from qwenvl.grpo.surrogates import RatioBounds, Weighting, completion_kl, entropy_floor

trl = pytest.importorskip("trl.trainer.grpo_trainer")

# TRL reads one number for epsilon_high and for the bound of cispo, and rounds the temperatures of sapo to float32.
BOUNDS = RatioBounds(epsilon=0.1, epsilon_high=0.25, cispo=0.25, sapo=(1.0, 1.25))
CASES = [  # loss, what has a ratio, settings of TRL, and a further term
    *((name, "token", {}, "") for name in ("grpo", "bnpo", "dapo", "dr_grpo", "cispo", "sapo", "vespo")),
    *((name, "sequence", {}, "") for name in ("grpo", "luspo", "sapo")),
    *((name, "token", {"delta": 1.4}, "") for name in ("grpo", "bnpo", "dapo", "dr_grpo")),
    ("grpo", "sequence", {"delta": 1.1}, ""),
    *((name, "token", {"use_bias_correction_kl": True}, "") for name in ("grpo", "dapo", "cispo", "sapo")),
    ("grpo", "sequence", {"use_bias_correction_kl": True}, ""),
    *(
        (name, "token", {}, term)
        for name in ("grpo", "bnpo", "dapo", "dr_grpo", "cispo", "sapo")
        for term in ("truncated", "off policy", "top entropy", "entropy bonus", "corrected sampler")
    ),
]


class TheirTrainer:
    """The part of TRL's trainer that its loss reads, with given log-probs. All else that the loss asks for is off."""

    get_gamma_weights = staticmethod(trl.GRPOTrainer.get_gamma_weights)
    get_off_policy_mask = staticmethod(trl.GRPOTrainer.get_off_policy_mask)
    get_high_entropy_mask = trl.GRPOTrainer.get_high_entropy_mask

    def __init__(self, logprobs, loss_type, level, beta, settings, entropies, **own):
        self.loss_type = loss_type
        self.epsilon_low, self.epsilon_high, self.beta = BOUNDS.epsilon, BOUNDS.epsilon_high, beta
        self.max_completion_length = 8
        self.importance_sampling_level, self.top_entropy_quantile = level, 1.0
        self.current_gradient_accumulation_steps = 1
        self.model = torch.nn.Identity()
        self.accelerator = Accelerator(cpu=True)
        shapes = {"vespo_k_pos": 2.0, "vespo_lambda_pos": 3.0, "vespo_k_neg": 3.0, "vespo_lambda_neg": 2.0}
        temperatures = {"sapo_temperature_pos": 1.0, "sapo_temperature_neg": 1.25}
        theirs = {"delta": None, "use_bias_correction_kl": False, "steps_per_generation": 1} | settings
        self.args = SimpleNamespace(**theirs, **shapes, **temperatures)
        self._metrics = {"train": defaultdict(list)}
        self._get_per_token_logps_and_entropies = lambda *args, **kwargs: (logprobs, entropies, None)
        vars(self).update(own)

    def __getattr__(self, name):
        return None


def drawn(mask):
    """Log-probs of policy and reference and our inputs, and the same for TRL, whose mask may be another."""
    generator = torch.Generator().manual_seed(7)
    draw = lambda: torch.randn(5, 6, generator=generator, dtype=torch.float64)
    old = draw() - 2
    logprobs, reference = (old + 0.4 * draw()).requires_grad_(), old + 0.4 * draw()
    advantages = torch.tensor([1.3, -0.7, 0.4, 0.0, -2.0], dtype=torch.float64)
    inputs = {
        "prompt_ids": torch.zeros(5, 1, dtype=torch.long),
        "prompt_mask": torch.ones(5, 1, dtype=torch.long),
        "completion_ids": torch.zeros(5, 6, dtype=torch.long),
        "completion_mask": mask.long(),
        "advantages": advantages,
        "old_per_token_logps": old,
        "ref_per_token_logps": reference,
        "num_items_in_batch": mask.sum(),
    }
    return LossInputs(logprobs, old, reference, advantages, mask), inputs


MASK = torch.arange(6) < torch.tensor([[6], [2], [1], [4], [5]])


@pytest.mark.parametrize("beta", [0.0, 0.3])
@pytest.mark.parametrize(("loss_type", "level", "settings", "term"), CASES, ids=str)
def test_loss_and_gradient_equal_those_of_trl(loss_type, level, settings, term, beta):
    mask = MASK & torch.tensor([[True], [False], [True], [True], [True]]) if term == "truncated" else MASK
    ours, inputs = drawn(mask)
    theirs = ours.logprobs.detach().clone().requires_grad_()
    generator = torch.Generator().manual_seed(3)
    entropies = torch.rand(5, 6, generator=generator, dtype=torch.float64).float()  # TRL rounds them to it
    their_entropies = entropies.clone().requires_grad_()
    sampler = ours.old_logprobs + 0.3 * torch.randn(5, 6, generator=generator, dtype=torch.float64)
    own, changes = {}, {}
    if term == "off policy":
        own, changes = {"off_policy_mask_threshold": 0.01}, {"weighting": Weighting(off_policy_threshold=0.01)}
    elif term == "top entropy":
        own = {"top_entropy_quantile": 0.3}
        ours = replace(ours, policy_mask=mask & (entropies >= entropy_floor(entropies[mask], 0.3)))
    elif term == "entropy bonus":
        own, changes = {"_entropy_bonus_enabled": True, "entropy_coef": 0.2}, {"entropy_coef": 0.2}
    elif term == "corrected sampler":
        own = {"use_vllm": True, "vllm_importance_sampling_correction": True}
        ratio = ((ours.old_logprobs - sampler) * mask).sum(-1, keepdim=True).exp()
        inputs["importance_sampling_ratio"] = ratio.masked_fill(ratio > 1.2, 0.0)
        changes = {"weighting": Weighting("sequence_mask", None, 1.2)}
        ours = replace(ours, sampler_logprobs=sampler)
    trainer = TheirTrainer(theirs, loss_type, level, beta, settings, their_entropies, **own)
    loss = trl.GRPOTrainer._compute_loss(trainer, trainer.model, inputs)
    loss.backward()

    objective = replace(
        LOSSES[loss_type],
        ratio=level,
        bounds=replace(BOUNDS, delta=settings.get("delta")),
        alpha=1.0,
        beta=beta,
        kl_unbiased=settings.get("use_bias_correction_kl", False),
        max_completion_length=8,
    )
    ours = replace(ours, entropies=entropies.requires_grad_(), ref_logprobs=ours.ref_logprobs if beta else None)
    counts = StepCounts(completions=5, tokens=int(mask.sum()))
    without = objective(replace(ours, policy_mask=None), counts).loss
    out = replace(objective, **changes)(ours, counts)
    assert term in ("", "truncated") or abs(out.loss.item() - without.item()) > 1e-3  # the term does something
    out.loss.backward()
    torch.testing.assert_close(out.loss, loss, rtol=1e-7 if "entropy" in term else 1e-12, atol=0)
    torch.testing.assert_close(ours.logprobs.grad, theirs.grad, rtol=1e-10, atol=1e-14)
    logged = trainer._metrics["train"]
    if term == "entropy bonus":
        torch.testing.assert_close(entropies.grad, their_entropies.grad, rtol=1e-6, atol=0)
    assert out.metrics["entropy"] == pytest.approx(logged["entropy"][0], rel=1e-6)
    if objective.limit == "clip" and level == "token":  # with one ratio a completion TRL counts completions, not tokens
        for name, their_name in (("clipped_low", "clip_ratio/low_mean"), ("clipped_high", "clip_ratio/high_mean")):
            assert out.metrics[f"ratio/{name}_frac"] == pytest.approx(logged[their_name][0], rel=1e-6)
    if beta and not objective.kl_unbiased:
        assert out.metrics["kl"] == pytest.approx(logged["kl"][0], rel=1e-6)


def computed_by(method, first, last, **names):
    """``advantages`` as the statements of a method compute them, from the first that names one thing to that another.

    They stand in the midst of a method that samples and scores too.
    """
    body = ast.parse(textwrap.dedent(inspect.getsource(method))).body[0].body
    begin, end = (next(n for n, each in enumerate(body) if word in ast.unparse(each)) for word in (first, last))
    statements = ast.Module(body[begin : end + 1], type_ignores=[])
    names |= inspect.getmodule(method).__dict__
    exec(compile(statements, method.__qualname__, "exec"), names)  # of the library that is compared with
    return names["advantages"]


# Four groups of three, three functions. One completion has no value of a function, another none at all.
SCORES = torch.rand(12, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64) * torch.tensor([1, 5, 0.1])
SCORES[1, 2], SCORES[4] = torch.nan, torch.nan
WEIGHTS = torch.tensor([0.7, 0.3, 2.0], dtype=torch.float64)


@pytest.mark.parametrize("estimator", ["grpo group", "grpo batch", "grpo none", "gdpo", "rloo"])
def test_advantages_equal_those_of_trl(estimator):
    name, _, scale = estimator.partition(" ")
    settings = SimpleNamespace(
        multi_objective_aggregation="normalize_then_sum" if name == "gdpo" else "sum_then_normalize",
        reward_weights=WEIGHTS,
        reward_funcs=[None] * 3,
        scale_rewards=scale,
        reward_clip_range=None,
        beta=0.3,
        normalize_advantages=False,
    )
    policy, reference = torch.randn(2, 12, 4, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    mask = torch.arange(4) < torch.arange(12)[:, None] % 4 + 1
    trainer, first = trl.GRPOTrainer, "multi_objective_aggregation"
    if name == "rloo":  # its KL is in the reward
        trainer, first = pytest.importorskip("trl.trainer.rloo_trainer").RLOOTrainer, "self.reward_weights"
    theirs = computed_by(
        trainer._generate_and_score_completions,
        first,
        "advantages = torch.nan_to_num",
        self=settings,
        rewards_per_func=SCORES.clone(),
        old_per_token_logps=policy,
        ref_per_token_logps=reference,
        completion_mask=mask,
        unscorable_mask=SCORES.isnan().all(dim=1),
        num_generations=3,
        device="cpu",
    )
    totals = (SCORES * WEIGHTS).nansum(dim=1).masked_fill(SCORES.isnan().all(dim=1), torch.nan)
    if name == "rloo":
        totals = totals - 0.3 * completion_kl(policy, reference, mask)
    ours = group_advantages(totals, 3, scale or "group", name, components=SCORES, weights=WEIGHTS.tolist())
    assert theirs[4] == 0 and theirs.abs().sum() > 1
    torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-14)  # TRL rounds n / (n - 1) to float32
