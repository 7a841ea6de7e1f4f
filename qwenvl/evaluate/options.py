"""The options that belong to ``qwenvl probe``, ``evaluate`` and ``try`` alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from qwenvl.grpo.options import RECORD_VIEWS
from qwenvl.option import Options, option

CONTROL_NAMES = ("blank", "shuffled", "single_frame", "other_clip", "text_only")
LOOK_CONTROLS = ("no_look", "other_span")


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
    """The options of ``qwenvl probe`` itself."""

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


@dataclass
class EvaluateOptions(PassOptions):
    """The options of ``qwenvl evaluate`` itself."""

    samples: int = option(
        1,
        "Completions per prompt, at least 1. 1: the greedy one. More: sampled as in training, with mean and pass@k.",
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
        f"Evidence to take away from the same records: some of {', '.join(CONTROL_NAMES)}, with commas, or all of "
        f"these. Of looks (--tools) and of records with `evidence`: {', '.join(LOOK_CONTROLS)}, evidence. And what a "
        "teacher sees beyond the prompt, as --teacher_sees names it: frames(32), solution.",
        unset="none",
    )
    cluster_by: str | None = option(
        None,
        "Field of the records that says which of them depend on each other, such as the source of their clips. "
        "Intervals are drawn over its values.",
        unset="records that share a clip or image belong together",
    )
    procedure: str | None = option(
        None,
        "A file with the steps of a procedure in their order, one a line: list the records in whose answers a step is "
        "missing, out of order or not of the procedure.",
        unset="no such list",
    )
    output_dir: str | None = option(
        None,
        "Folder for evaluation.json, the numbers and the protocol, and samples.jsonl, every completion with its "
        "rewards and what was shown. An evaluation that was cut short there goes on.",
        unset="runs/evaluate/, and there a name made from the models and the data",
    )
    fresh: bool = option(False, "Begin anew where --output_dir holds another evaluation, or this one.")
    json: bool = option(False, "Print the numbers as JSON in place of the table.")

    @property
    def control_names(self) -> tuple[str, ...]:
        """The requested controls, in the order of the flag, each once."""
        names = CONTROL_NAMES if self.controls == "all" else (self.controls or "").split(",")
        return tuple(dict.fromkeys(each.strip() for each in names if each.strip()))

    def problems(self) -> Iterator[str]:
        known = (*CONTROL_NAMES, *LOOK_CONTROLS, *RECORD_VIEWS)
        names = self.control_names
        if "all" in names and len(names) > 1:
            yield "--controls: all stands alone; name the controls one by one"
            return
        for each in names:
            name, _, _ = each.partition("(")  # a view of records may have arguments
            if name not in known and ":" not in name:
                yield f"--controls {each}: no such control; expected some of {', '.join(known)}, or all"


@dataclass
class TryOptions(Options):
    """The options of ``qwenvl try`` itself."""

    n: int = option(
        1, "Answers, at least 1. 1: the greedy one. More: sampled as in training, at --generation_temperature.", least=1
    )
    solution: str | None = option(
        None,
        "What the rewards compare the answers with: a text, or a file that holds it.",
        unset="no rewards are shown",
    )
    choices: list[str] | None = option(
        None,
        "Options of the question, each a text: they stand below it with letters, as training has them, and the answer "
        "is a letter.",
        unset="the question has none, or holds them itself",
    )
    json: bool = option(False, "Print everything as JSON in place of text.")
