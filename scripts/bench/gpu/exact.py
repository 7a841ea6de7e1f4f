"""Are the fast paths right in bfloat16? Their distance from float32 beside that of the plain path.

    python scripts/bench/gpu/exact.py --models 3b qwen3_vl_4b qwen3_5_4b --case 500,4,64

For each model: the sampler's log-probs against the trainer's (parity), then log-probs and gradients of the shared and
of the plain path, both in bfloat16, each against the plain path in float32. Rounding moves both: what tells is that
the shared path is not farther off than the plain one, a ratio of about 1.
"""

from __future__ import annotations

import argparse
import gc
from copy import deepcopy

import torch
from measure import add_common, keep
from shapes import NAMES, Wanted, make_step
from torch import Tensor, nn

from bench_model import LOGPROB_SETTINGS, Case, Step  # isort: skip  (found once shapes is loaded)
from qwenvl.grpo.diagnostics import logprob_gap
from qwenvl.model import logprobs
from qwenvl.model.inputs import PromptInputs
from qwenvl.model.loading import unwrap
from qwenvl.model.sharing import shared_prefix
from qwenvl.rollout.engine import SamplingParams
from qwenvl.rollout.shared_sampling import sample_shared


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=NAMES, default=["3b"])
    parser.add_argument("--case", default="500,4,64", metavar="P,G,C")
    parser.add_argument("--attention", nargs="+", default=["sdpa"], help="implementations of transformers")
    parser.add_argument("--no_gradients", action="store_true", help="for models whose float32 copy does not fit")
    add_common(parser)
    options = parser.parse_args()
    for name in options.models:
        for attention in options.attention:
            try:
                compare(name, attention, options)
            except (ImportError, torch.OutOfMemoryError) as error:  # the others are still worth a look
                keep(options, "exact", model=name, attention=attention, failed=str(error).splitlines()[0][:160])
            gc.collect()
            if options.device.type == "cuda":
                torch.cuda.empty_cache()


def compare(name: str, attention: str, options: argparse.Namespace) -> None:
    """One row for a model."""
    step = make_step(Wanted(name, options.device, attention=attention), Case.parse(options.case))
    row: dict[str, float] = parity(step)
    if not options.no_gradients:
        row |= distances(step)
    keep(options, "exact", model=name, attention=attention, case=options.case, **row)


def parity(step: Step) -> dict[str, float]:
    """How far the log-probs of the sampler are from those of the trainer, at the tokens that it drew."""
    step.model.eval()
    bare, params = unwrap(step.model), SamplingParams(step.case.length)
    pads = [bare.config.image_token_id, bare.config.video_token_id]  # drawn, they would be taken for pictures
    ids, drawn = sample_shared(bare, step.encoded, step.case.group, params, suppress=pads, end_ids=[], pad_id=0)
    mask = torch.ones_like(ids, dtype=torch.bool)
    with torch.no_grad():
        trained = shared_prefix.completion_logprobs(step.model, step.encoded, ids, mask, **LOGPROB_SETTINGS)
    largest, mean = logprob_gap(drawn.logprobs, trained, mask)
    return {"parity_max": largest, "parity_mean": mean, "spread": trained.std().item()}


def distances(step: Step) -> dict[str, float]:
    """Root mean square distances from float32 of log-probs, and relative ones of gradients, with their ratios."""
    step.model.train()
    shared = passed(step.model, step, shared_prefix.completion_logprobs, step.encoded)
    plain = passed(step.model, step, logprobs.completion_logprobs, step.prompts)
    wide = passed(deepcopy(step.model).float(), step, logprobs.completion_logprobs, step.prompts)
    far = {name: (one[0] - wide[0]).square().mean().sqrt().item() for name, one in (("s", shared), ("p", plain))}
    off = {name: relative(one[1], wide[1]) for name, one in (("s", shared), ("p", plain))}
    worst = max(
        relative({name: shared[1][name]}, wide[1]) / max(1e-3, relative({name: plain[1][name]}, wide[1]))
        for name in shared[1]
    )
    return {
        "logprobs_shared": far["s"],
        "logprobs_plain": far["p"],
        "logprobs_ratio": far["s"] / far["p"],
        "gradients_shared": off["s"],
        "gradients_plain": off["p"],
        "gradients_ratio": off["s"] / off["p"],
        "worst_parameter_ratio": worst,
    }


def passed(model: nn.Module, step: Step, path, prompts: PromptInputs) -> tuple[Tensor, dict[str, Tensor]]:
    """Log-probs, and the gradient of their weighted sum for every parameter that is trained."""
    drawn = path(model, prompts, step.completion_ids, step.mask, **LOGPROB_SETTINGS)
    (step.weights * drawn).mean().backward()
    grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return drawn.detach().float(), grads


def relative(grads: dict[str, Tensor], wide: dict[str, Tensor]) -> float:
    """The distance of gradients from those in float32, relative to the size of the latter, over all of ``grads``."""
    away = sum((grad.float() - wide[name]).square().sum().item() for name, grad in grads.items())
    size = sum(wide[name].square().sum().item() for name in grads)
    return (away / max(size, 1e-30)) ** 0.5


if __name__ == "__main__":
    main()
