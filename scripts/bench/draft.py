"""Sampling with drafts and without, side by side in one run: tokens per forward, CPU seconds, seconds.

    python -m qwenvl.cli demo --output_dir runs/demo                # once: the demo whose training is done again
    python scripts/bench/draft.py --demo runs/demo --draft_tokens 4 8
    python scripts/bench/draft.py --tasks free random               # these need no demo

Every step of the demo's GRPO training samples its prompts with each setting in turn, by the same weights, and trains on
what the last setting drew. *free* is a tiny model of strong random weights that writes long completions of its own, and
*random* one of weak weights, whose next token is close to any: the worst case, in which no draft is right. Both sample
the same prompts several times, as steps do, and are not trained.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from qwenvl.demo.tiny import make_model, make_processor
from qwenvl.model.inputs import PromptInputs
from qwenvl.rollout.drafts import Drafter, DraftLengths
from qwenvl.rollout.engine import SamplingParams
from qwenvl.rollout.local import SharedPrefixEngine


@dataclass(frozen=True)
class Sampling:
    """The cost of one sampling of a step."""

    cpu: float
    seconds: float
    per_forward: float


class SideBySide(SharedPrefixEngine):
    """Samples with each of ``settings`` in turn where it learns, and else without drafts.

    Attributes:
        settings: most tokens of a draft, 0 for none.
        found: for each setting, one sampling for each step.
    """

    settings: tuple[int, ...] = (0, 4)
    found: dict[int, list[Sampling]]

    def __init__(self, tokenizer, model, **limits):
        super().__init__(tokenizer, model, **limits)
        self.drafter = Drafter(DraftLengths(max(self.settings)))
        self.own = {most: Drafter(DraftLengths(most)) for most in self.settings if most}

    def draw(self, model, prompts, group_size, params, seed, conversations=None):
        trains = self.drafter.is_learning
        order = self.settings if trains else (0,)
        switched = self.drafter
        for most in order:
            self.drafter = self.own.get(most)
            cpu, start = time.process_time(), time.perf_counter()
            if self.drafter is None:
                rollout = super().draw(model, prompts, group_size, params, seed, conversations)
                per_forward = 1.0
            else:
                with self.drafter.learning():
                    rollout = super().draw(model, prompts, group_size, params, seed, conversations)
                counts = self.drafter.take_counts()
                per_forward = counts.tokens / max(1, counts.forwards)
            spent = Sampling(time.process_time() - cpu, time.perf_counter() - start, per_forward)
            if trains:
                self.found.setdefault(most, []).append(spent)
        self.drafter = switched
        return rollout


def demo(folder: Path, settings: tuple[int, ...], steps: int | None) -> dict[int, list[Sampling]]:
    """The demo's training, from its warmed-up model."""
    from qwenvl.step import kernels
    from qwenvl.train import train_grpo

    SideBySide.settings, SideBySide.found = settings, {}
    kernels.SharedPrefixEngine = SideBySide
    config = yaml.safe_load((folder / "train.yaml").read_text()) | {"output_dir": str(folder / "draft_bench")}
    config |= {"save_strategy": "no", "eval_on_start": False, "overwrite_output_dir": True}
    if steps:
        config["max_steps"] = steps
    file = folder / "draft_bench.yaml"
    file.write_text(yaml.safe_dump(config))
    train_grpo.main(["--config", str(file)])
    return SideBySide.found


def untrained(
    settings: tuple[int, ...], steps: int, strength: float, tokens: int, width: int, vocabulary: int
) -> dict[int, list[Sampling]]:
    """The same four prompts of text in each step, by a model of random weights."""
    SideBySide.settings, SideBySide.found = settings, {}
    processor = make_processor("qwen2_5_vl")
    model = make_model(
        "qwen2_5_vl",
        processor,
        hidden_size=width,
        num_layers=4,
        initializer_range=strength,
        vocabulary=vocabulary,
    )
    model.requires_grad_(False)
    ids = torch.randint(0, 250, (4, 200), generator=torch.Generator().manual_seed(0))
    prompts = PromptInputs.of_text(ids)
    engine = SideBySide(processor.tokenizer, model)
    params = SamplingParams(tokens, temperature=1.0 if strength < 0.1 else 0.7)
    for step in range(steps):
        with engine.drafter.learning():
            engine.draw(model, prompts, 8, params, step)
    return SideBySide.found


def report(task: str, found: dict[int, list[Sampling]], behind: int) -> None:
    """Prints medians over the steps behind the first ``behind``, and the first step's tokens per forward."""
    print(f"\n{task}: {len(next(iter(found.values())))} steps, medians from step {behind + 1} on")
    print("| draft_tokens | tokens a forward, step 1 | later | CPU s of sampling | of that without | seconds |")
    print("|---|---|---|---|---|---|")
    plain = statistics.median(each.cpu for each in found[0][behind:])
    for most, samplings in found.items():
        later = samplings[behind:]
        per_forward = statistics.median(each.per_forward for each in later)
        cpu = statistics.median(each.cpu for each in later)
        seconds = statistics.median(each.seconds for each in later)
        cells = [f"{most}", f"{samplings[0].per_forward:.2f}", f"{per_forward:.2f}", f"{cpu:.3f}"]
        print(f"| {' | '.join([*cells, f'{cpu / plain:.2f}', f'{seconds:.3f}'])} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--tasks", nargs="+", choices=("demo", "free", "random"), default=["demo", "free", "random"])
    parser.add_argument("--demo", type=Path, default=Path("runs/demo"), help="folder of a finished demo [%(default)s]")
    parser.add_argument("--draft_tokens", type=int, nargs="+", default=[4, 8], help="settings beside 0 [4 8]")
    parser.add_argument("--steps", type=int, help="of the demo [as many as it has]")
    parser.add_argument("--repeats", type=int, default=12, help="steps of the other tasks [%(default)s]")
    parser.add_argument("--tokens", type=int, default=128, help="of their completions [%(default)s]")
    parser.add_argument("--width", type=int, default=256, help="of their models [%(default)s]")
    parser.add_argument("--vocabulary", type=int, default=151_936, help="of their models, random rows [%(default)s]")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    settings = (0, *options.draft_tokens)
    for task in options.tasks:
        if task == "demo":
            if not (options.demo / "train.yaml").is_file():
                parser.error(f"--demo {options.demo}: no train.yaml; make one with qwenvl demo --output_dir FOLDER")
            found = demo(options.demo.resolve(), settings, options.steps)
        else:
            strength = 0.25 if task == "free" else 0.02
            found = untrained(
                settings,
                steps=options.repeats,
                strength=strength,
                tokens=options.tokens,
                width=options.width,
                vocabulary=options.vocabulary,
            )
        report(task, found, behind=4)


if __name__ == "__main__":
    main()
