"""The options of ``qwenvl evaluate`` itself. Those of data, prompts, sampling and rewards are training's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from qwenvl.evaluate.options import PassOptions
from qwenvl.option import Options, option

CONTROL_NAMES = ("blank", "shuffled", "single_frame", "other_clip", "text_only")


@dataclass
class EvaluateOptions(PassOptions, Options):
    """What an evaluation takes, takes away and tells apart."""

    samples: int = option(
        1,
        "Completions per prompt, at least 1. 1: the greedy one. More: sampled as in training, with their mean, pass@k "
        "and majority vote.",
        least=1,
    )
    limit: int | None = option(
        None,
        "Most records to ask about, at least 1: a random sample, the same for the same --seed.",
        unset="all",
        least=1,
    )
    controls: str | None = option(
        None,
        f"Evidence to take away from the same records: some of {', '.join(CONTROL_NAMES)}, with commas, or all.",
        unset="none",
    )
    strata: str | None = option(
        None,
        "What to tell records apart by, separated by commas: dataset, actions (how many the solution names), duration "
        "(seconds between first and last frame shown), or a field of the records, also one within another (meta.view).",
        unset="dataset where there are several",
    )
    cluster_by: str | None = option(
        None,
        "Field of the records that says which of them depend on each other, such as the source of their clips. "
        "Intervals are drawn over its values.",
        unset="records that share a clip or image belong together",
    )
    output_dir: str | None = option(
        None,
        "Folder for evaluation.json, the numbers and the protocol, and samples.jsonl, every completion with its "
        "rewards and what was shown. An evaluation that was cut short there goes on.",
        unset="runs/evaluate/, and there a name made from the models and the data",
    )
    fresh: bool = option(False, "Begin anew where --output_dir holds another evaluation, or this one.")
    update_card: bool = option(
        False,
        "Write the numbers, controls and protocol into the model card (README.md) of each MODEL whose folder has one, "
        "in the place of those of an earlier evaluation.",
    )
    json: bool = option(False, "Print the numbers as JSON in place of the table.")

    @property
    def wanted_controls(self) -> tuple[str, ...]:
        """The controls by name, in the order given."""
        return CONTROL_NAMES if self.controls == "all" else _listed(self.controls)

    @property
    def wanted_strata(self) -> tuple[str, ...] | None:
        """What records are told apart by. None where it was not said."""
        return None if self.strata is None else _listed(self.strata)

    def problems(self) -> Iterator[str]:
        for name in ("controls", "strata"):
            given = _listed(getattr(self, name))
            if repeated := [each for each in given if given.count(each) > 1]:
                yield f"--{name} names {repeated[0]} twice"
        for each in self.wanted_controls:
            if each not in CONTROL_NAMES:
                yield f"--controls {each}: no such control; there are {', '.join(CONTROL_NAMES)}"


def _listed(text: str | None) -> tuple[str, ...]:
    return tuple(each.strip() for each in (text or "").split(",") if each.strip())
