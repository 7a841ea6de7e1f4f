"""The options of ``qwenvl probe`` itself, and what passes. All others are training's."""

from __future__ import annotations

from dataclasses import dataclass

from qwenvl.option import Options, option


@dataclass
class PassOptions(Options):
    """What is called a pass."""

    pass_by: str | None = option(
        None,
        "The reward that tells whether a completion passes, by its name, or total.",
        unset="the first of --reward_funcs that tells right from wrong: not one of form or length",
    )
    pass_at: float = option(1.0, "The least value of that reward with which a completion passes.")


@dataclass
class ProbeOptions(PassOptions):
    """What a probe takes, and what it calls a pass."""

    samples: int | None = option(
        None,
        "Completions per prompt, at least 2 and at least --grpo_sample_size.",
        unset="8, or --grpo_sample_size where that is more",
        least=2,
    )
    limit: int = option(
        200, "Most records to ask about, at least 1. They are a random sample, the same for the same --seed.", least=1
    )
    output_dir: str | None = option(
        None,
        "Folder for probe.json, the numbers, and rollouts, every completion with its rewards and the frames that it "
        "was sampled for.",
        unset="nothing is written",
    )
    json: bool = option(False, "Print the numbers as JSON in place of the table.")
