"""The options of the rewards: which functions, with which weights, and what single functions are told."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from qwenvl.option import Options, option, was_set

ResponseFormat = Literal["think_answer", "answer_only"]
BoxUnits = Literal["same", "thousandths"]
Aggregation = Literal["sum", "normalize_then_sum"]
OnError = Literal["error", "skip"]


@dataclass
class FunctionSettings(Options):
    """What single functions of the table can be told. Lengths are in completion tokens."""

    response_format: ResponseFormat = option(
        "think_answer",
        "What the format reward asks for. think_answer: a <think> pair, then an <answer> pair. answer_only: one "
        "<answer> pair and no thinking.",
    )
    accuracy_by_name: bool = option(
        True,
        "Let accuracy read an answer without (k) numbers by the names of the prompt's numbered list, where the list is "
        "unambiguous. docs/rewards.md has the rule.",
    )
    correctness_func: str = option(
        "accuracy", "Reward that tells cosine, length_window and judge which completions are correct: those it gives 1."
    )
    cosine_max_len: int | None = option(None, "Length T at which cosine ends. Unset: generation_max_length.", least=1)
    cosine_min_len_value_correct: float = option(1.0, "cosine of a correct completion of length 0.")
    cosine_max_len_value_correct: float = option(0.5, "cosine of a correct completion of length T.")
    cosine_min_len_value_wrong: float = option(-0.5, "cosine of a wrong completion of length 0.")
    cosine_max_len_value_wrong: float = option(0.0, "cosine of a wrong completion of length T.")
    repetition_n_grams: int = option(3, "Words in a row that repetition compares, at least 1.", least=1)
    repetition_max_penalty: float = option(-1.0, "repetition of a text that says one thing only, at most 0.", most=0)
    soft_overlong_max_len: int | None = option(
        None, "Length at which soft_overlong is -1. Unset: generation_max_length.", least=1
    )
    soft_overlong_cache: int | None = option(
        None, "Tokens before that length in which soft_overlong falls. Unset: a fifth of it.", least=1
    )
    length_window_min: int = option(320, "Shortest completion that length_window rewards.")
    length_window_max: int = option(512, "Longest completion that length_window rewards.")
    length_window_bonus: float = option(0.2, "What length_window gives, above 0.", above=0)
    numeric_tolerance: float = option(
        1e-6, "Error that numeric accepts, times the solution where that is above 1.", least=0
    )
    temporal_iou_boundary: bool = option(
        False, "Multiply temporal_iou by how near start and end are; needs the field duration (seconds)."
    )
    box_units: BoxUnits = option(
        "same",
        "Units of boxes in answers. same: those of the solution. thousandths: 0..1000, the solution's being pixels of "
        "an image of the record's width and height.",
    )

    judge_base_url: str | None = option(
        None, "Address of the judge's OpenAI-compatible server, such as http://localhost:8000/v1."
    )
    judge_model: str | None = option(None, "Name of the judge's model on its server.")
    judge_prompt: str | None = option(
        None, "File with the judge's prompt, with {question}, {solution} and {answer}. Unset: one of our own."
    )
    judge_correct: float = option(1.0, "judge of a correct answer.")
    judge_wrong: float = option(0.0, "judge of a wrong answer.")
    judge_bad_format: float = option(0.0, "judge of a completion without an answer block.")
    judge_timeout: float = option(60.0, "Seconds for one request to the judge.", above=0)
    judge_retries: int = option(4, "Requests after a failed one, with growing pauses.", least=0)
    judge_concurrency: int = option(16, "Requests to the judge at a time.", least=1)
    judge_cache: str | None = option(
        None, "Folder that keeps the judge's verdicts. Unset: the folder judge of $QWENVL_CACHE (~/.cache/qwenvl)."
    )
    reward_workers: int = option(0, "Processes for rewards that are heavy on the CPU, at least 0.", least=0)


@dataclass
class RewardSettings(FunctionSettings):
    """All that the functions of the table can be told."""

    generation_max_length: int = option(512, "Longest completion; the default length of cosine and soft_overlong.")

    def values(self) -> dict[str, Any]:
        """Every setting by name, with what is unset worked out."""
        longest = self.generation_max_length if self.soft_overlong_max_len is None else self.soft_overlong_max_len
        return {
            **self.__dict__,
            "cosine_max_len": self.generation_max_length if self.cosine_max_len is None else self.cosine_max_len,
            "soft_overlong_max_len": longest,
            "soft_overlong_cache": max(1, longest // 5)
            if self.soft_overlong_cache is None
            else self.soft_overlong_cache,
        }


@dataclass
class ContrastOptions(Options):
    """The bonus for answers that need the order of the frames."""

    temporal_contrast: bool = option(
        False,
        "Answer each video prompt a few more times with its frames in random order; where the ordered group is correct "
        "more often, its correct completions get a bonus. --correctness_func says what is correct.",
    )
    temporal_contrast_share: float = option(
        0.5, "Size of that second group, as a share of --grpo_sample_size, above 0.", above=0
    )
    temporal_contrast_margin: float = option(
        0.0, "What the ordered group's mean of --correctness_func must exceed the other's by, 0 to 1.", least=0, most=1
    )
    temporal_contrast_bonus: float = option(0.3, "The bonus, added to the total, above 0.", above=0)

    def problems(self) -> Iterator[str]:
        for name in ("temporal_contrast_share", "temporal_contrast_margin", "temporal_contrast_bonus"):
            if not self.temporal_contrast and was_set(self, name):
                yield f"--{name} has no effect without --temporal_contrast"


@dataclass
class RewardOptions(FunctionSettings, ContrastOptions):
    """How completions are scored. The settings of single functions are explained in docs/rewards.md."""

    format_reward_weight: float = option(0.3, "Weight of the format reward in the total, at least 0.", least=0)
    accuracy_reward_weight: float = option(0.7, "Weight of the accuracy reward in the total, at least 0.", least=0)
    reward_funcs: list[str] | None = option(
        None,
        "Reward functions by name (qwenvl rewards list), as package.module:name or file.py:name, or by the name of a "
        "plugin.",
        unset="format accuracy, with the two weights above",
    )
    reward_weights: list[float] | None = option(
        None,
        "Weights of --reward_funcs and then of --reward_model, in their order, as many as there are.",
        unset="1 each",
    )
    external_plugins: list[str] | None = option(
        None, 'Python files with reward functions marked @reward("name").', unset="none"
    )
    reward_model: list[str] | None = option(
        None, "Reward models, a folder or hub name each, appended after --reward_funcs.", unset="none"
    )
    reward_aggregation: Aggregation = option(
        "sum",
        "sum: weight x value, summed. normalize_then_sum: each function's values are first brought to mean 0 and "
        "spread 1 in each group.",
    )
    on_reward_error: OnError = option(
        "error",
        "A reward function that fails. error: stop, naming function, record and completion. skip: leave the function "
        "out for the rows, count them, and stop when more than 5 % of its rows fail.",
    )
    reward_timeout: float | None = option(
        None, "Seconds that one call of a reward function may take.", unset="no limit", above=0
    )

    def problems(self) -> Iterator[str]:
        if self.format_reward_weight == 0 and self.accuracy_reward_weight == 0:
            yield "--format_reward_weight and --accuracy_reward_weight are both 0: every reward would be 0"
