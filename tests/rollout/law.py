"""The distribution that tokens must have, and whether drawn ones do."""

from collections import Counter

import torch
from scipy.stats import chi2

from qwenvl.model.positions import first_positions
from qwenvl.rollout.next_token import logits_processors

SETTINGS = [
    {"temperature": 1.0},
    {"temperature": 0.7, "top_p": 0.9},
    {"temperature": 1.3, "top_k": 8},
    {"temperature": 1.0, "min_p": 0.02},
    {"temperature": 1.0, "repetition_penalty": 1.3},
]


@torch.no_grad()
def probabilities(model, prompt, before, params, banned):
    """The distribution of the token behind a prompt and ``before``, by a plain forward, without the ``banned`` ones."""
    row = prompt.followed_by(type(prompt).of_text(torch.tensor([before]))) if before else prompt
    own = first_positions(prompt.position_ids, 1)
    positions = torch.cat([prompt.position_ids, (own + torch.arange(len(before))).expand(3, 1, -1)], dim=-1)
    ids = row.input_ids
    logits = model(input_ids=ids, position_ids=positions).logits[:, -1].float()
    return logits_processors(params, banned)(ids, logits).softmax(-1)[0].double()


def assert_law(counts: Counter, expected: torch.Tensor):
    """Chi-square of counted tokens. Tokens that are expected fewer than ten times are counted together."""
    total = counts.total()
    frequent = [token for token in range(len(expected)) if expected[token] * total >= 10]
    observed = [counts[token] for token in frequent]
    wanted = [float(expected[token]) * total for token in frequent]
    if total - sum(wanted) > 10:
        observed.append(total - sum(observed))
        wanted.append(total - sum(wanted))
    assert not [token for token in counts if expected[token] == 0], "tokens that cannot be drawn"
    assert len(wanted) > 2, "too few tokens to compare"
    statistic = sum((seen - mean) ** 2 / mean for seen, mean in zip(observed, wanted, strict=True))
    assert chi2.sf(statistic, len(wanted) - 1) > 1e-4
