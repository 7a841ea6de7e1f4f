"""GRPO on Qwen-VL video from top to bottom, without the Trainer. Read this file first.

    python scripts/grpo_loop.py --model Qwen/Qwen3-VL-4B-Instruct --data data/sop.json --output runs/loop

Group Relative Policy Optimization (arXiv:2402.03300). A step takes P prompts, each a question about a clip:

    1. frames       decode P clips, at their true times                       P samples
    2. features     run the frozen vision tower once per clip                 patches x width
    3. group        sample G completions per prompt from the policy           N = P * G completions of T tokens
    4. rewards      score them and compare each with its own group            A_n = (r_n - mean) / std, over the group
    5. loss         -A * ratio + beta * KL(policy || reference) per token, averaged over the step

The stages are those of ``qwenvl train`` (docs/architecture.md), and a test holds the gradient of this loop to the
trainer's. Each prompt and each frame is computed once for its whole group (docs/training.md).

Left out, and in ``qwenvl train``: other losses, several processes and GPUs, gradient accumulation and checkpointing,
LoRA and 4 bits, several steps on the same completions, a tower that learns, resume, evaluation, the run folder and its
report, vLLM, the parity check of sampler and trainer, numbers that are not finite, bad clips.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor

from qwenvl.data.collator import GRPOCollator
from qwenvl.data.dataset import GRPODataset, load_dataset
from qwenvl.grpo.advantages import group_advantages
from qwenvl.model.inputs import InputBuilder
from qwenvl.model.loading import apply_tuning, load_model, load_processor
from qwenvl.model.options import TuneOptions
from qwenvl.model.positions import position_rule
from qwenvl.model.reference import Reference
from qwenvl.model.sharing.shared_prefix import completion_logprobs
from qwenvl.model.vision_tower import accept_features, encode_vision
from qwenvl.rewards import build_rubric
from qwenvl.rollout.engine import SamplingParams
from qwenvl.rollout.local import SharedPrefixEngine
from qwenvl.step.encode import Encode, EncodeLooks
from qwenvl.step.meter import Meter
from qwenvl.step.processes import Processes
from qwenvl.step.sample import SampleNow
from qwenvl.step.score import Score
from qwenvl.step.types import Scored, StepContext
from qwenvl.types import PromptBatch


class Policy:
    """The model that learns, the frozen one that it began as, and the stage that samples completions from it."""

    def __init__(self, path: str, device: torch.device, group_size: int, params: SamplingParams):
        self.processor = load_processor(path)
        # Weights stay in float32, as a step of 1e-6 is less than the spacing of bfloat16. Products run in bfloat16.
        self.model = load_model(path, attn_implementation="sdpa", dtype=torch.float32).to(device)
        apply_tuning(self.model, TuneOptions())  # language model and merger learn, the tower is frozen
        self.reference = Reference(self.model)  # a copy of what learns. It shares the tower
        with self.reference.model() as frozen:
            accept_features(frozen)
        self.autocast: Callable[[], Any] = nullcontext
        if device.type == "cuda":
            self.autocast = partial(torch.autocast, "cuda", torch.bfloat16)
        encode = Encode(
            device=device,
            build_inputs=InputBuilder.of(position_rule(self.model.config), self.processor),
            encode_vision=encode_vision,
            autocast=self.autocast,
        )
        self.sample = SampleNow(
            encode=encode,
            engine=SharedPrefixEngine(self.processor.tokenizer, self.model),
            group_size=group_size,
            params=params,
            toolbox=None,
            looks=EncodeLooks(encode),
            processes=Processes(),
        )


def grpo_loss(
    policy: Policy, batch: PromptBatch, score: Score, alpha: float, beta: float, seed: int
) -> tuple[Tensor, Tensor, Scored]:
    """Steps 2 to 5 for P prompts. The loss has a gradient.

    Returns:
        The loss, the mean KL of a token, and the N completions with their rewards.
    """
    step = StepContext(policy=policy.model, wrapped=None, version=None, seed=seed, process=0, meter=Meter())

    # 2. features: what enters the merger takes the place of the pixels
    # 3. group: completion n belongs to prompt n // G
    sampled = policy.sample([batch], step)

    # 4. rewards: plain functions of the text and the record, compared within each group
    [scored] = score(sampled, step)
    rollout = scored.rollout
    advantages = group_advantages(scored.rewards.total, policy.sample.group_size).to(rollout.completion_ids.device)

    # 5. loss: log-probs N x T of the same tokens by the policy and by the reference
    mask = rollout.completion_mask
    logprobs_of = partial(
        completion_logprobs,
        prompts=scored.prompts,
        completion_ids=rollout.completion_ids,
        completion_mask=mask,
        temperature=policy.sample.params.temperature,
        logit_chunk_tokens=1024,
    )
    with policy.autocast():
        with policy.reference.model() as reference:
            ref_logprobs = logprobs_of(reference)
        logprobs = logprobs_of(policy.model)

    old_logprobs = logprobs.detach()  # one step per group: the old policy is the policy itself
    ratio = (logprobs - old_logprobs).exp()  # 1 on fresh completions, with the gradient of the log-prob
    log_ratio = ref_logprobs - logprobs
    kl = log_ratio.exp() - log_ratio - 1  # k3, arXiv:2402.03300, equation 4
    per_token = -alpha * advantages[:, None] * ratio + beta * kl
    loss = ((per_token * mask).sum(1) / mask.sum(1)).mean()  # mean over tokens, then over completions
    return loss, kl[mask].detach().mean(), scored


def batches(dataset: GRPODataset, collate: GRPOCollator, size: int, seed: int) -> Iterator[PromptBatch]:
    """Step 1, without end: P prompts at a time, each epoch in another order."""
    order, epoch = torch.Generator().manual_seed(seed), 0
    while True:
        for rows in torch.randperm(len(dataset), generator=order).split(size):
            yield collate([dataset.sample(dataset.record(row), epoch) for row in rows.tolist()])["prompts"]
        epoch += 1


def train(options: argparse.Namespace) -> None:
    """The loop."""
    device = torch.device("cuda" if torch.cuda.is_available() and not options.cpu else "cpu")
    params = SamplingParams(options.max_tokens, temperature=options.temperature)
    policy = Policy(options.model, device, options.group, params)
    policy.model.train()
    rubric = build_rubric(options.reward_funcs)
    score = Score(rubric)
    collate = GRPOCollator(policy.processor)
    dataset = load_dataset(options.data, check_record=rubric.check_record, ruler=collate.ruler)
    learning = [parameter for parameter in policy.model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(learning, lr=options.learning_rate, weight_decay=0.0)

    prompts = batches(dataset, collate, options.prompts, options.seed)
    for step, batch in zip(range(1, options.steps + 1), prompts, strict=False):
        loss, kl, scored = grpo_loss(policy, batch, score, options.alpha, options.beta, seed=options.seed + step)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(learning, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        reward, text = scored.rewards.total.nanmean().item(), scored.rollout.texts[0]
        print(f"step {step}: reward {reward:.3f}  kl {kl:.4f}  gradient {norm:.3f}  {text!r:.100}", flush=True)

    policy.model.save_pretrained(options.output)
    policy.processor.save_pretrained(options.output)


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The settings of a run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a checkpoint folder or a name on the hub")
    parser.add_argument("--data", required=True, help="records, as docs/data.md describes them")
    parser.add_argument("--output", default="runs/loop", help="folder of the trained model")
    parser.add_argument("--reward_funcs", nargs="+", default=["format", "accuracy"])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--prompts", type=int, default=1, help="P, prompts in a step")
    parser.add_argument("--group", type=int, default=8, help="G, completions per prompt")
    parser.add_argument("--max_tokens", type=int, default=256, help="tokens of a completion at most")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--alpha", type=float, default=0.5, help="weight of the policy term")
    parser.add_argument("--beta", type=float, default=0.1, help="weight of the KL term")
    parser.add_argument("--learning_rate", type=float, default=1e-6)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cpu", action="store_true", help="ignore a GPU")
    return parser.parse_args(argv)


if __name__ == "__main__":
    train(parse())
