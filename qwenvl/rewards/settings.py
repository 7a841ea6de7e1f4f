"""Settings of the reward functions of the table; the flags of the same names have the same defaults."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal


def _setting(default: Any, help: str) -> Any:
    return field(default=default, metadata={"help": help})


@dataclass
class FunctionSettings:
    """What single functions of the table can be told; lengths are in completion tokens."""

    correctness_func: str = _setting(
        "accuracy", "Reward that tells cosine, length_window and judge which completions are correct: those it gives 1."
    )
    cosine_max_len: int | None = _setting(None, "Length T at which cosine ends. Unset: generation_max_length.")
    cosine_min_len_value_correct: float = _setting(1.0, "cosine of a correct completion of length 0.")
    cosine_max_len_value_correct: float = _setting(0.5, "cosine of a correct completion of length T.")
    cosine_min_len_value_wrong: float = _setting(-0.5, "cosine of a wrong completion of length 0.")
    cosine_max_len_value_wrong: float = _setting(0.0, "cosine of a wrong completion of length T.")
    repetition_n_grams: int = _setting(3, "Words in a row that repetition compares, at least 1.")
    repetition_max_penalty: float = _setting(-1.0, "repetition of a text that says one thing only, at most 0.")
    soft_overlong_max_len: int | None = _setting(
        None, "Length at which soft_overlong is -1. Unset: generation_max_length."
    )
    soft_overlong_cache: int | None = _setting(
        None, "Tokens before that length in which soft_overlong falls. Unset: a fifth of it."
    )
    length_window_min: int = _setting(320, "Shortest completion that length_window rewards.")
    length_window_max: int = _setting(512, "Longest completion that length_window rewards.")
    length_window_bonus: float = _setting(0.2, "What length_window gives, above 0.")
    numeric_tolerance: float = _setting(1e-6, "Error that numeric accepts, times the solution where that is above 1.")
    temporal_iou_boundary: bool = _setting(
        False, "Multiply temporal_iou by how near start and end are; needs the field duration (seconds)."
    )
    box_units: Literal["same", "thousandths"] = _setting(
        "same",
        "Units of boxes in answers. same: those of the solution. thousandths: 0..1000, the solution's being pixels of "
        "an image of the record's width and height.",
    )

    judge_base_url: str | None = _setting(
        None, "Address of the judge's OpenAI-compatible server, such as http://localhost:8000/v1."
    )
    judge_model: str | None = _setting(None, "Name of the judge's model on its server.")
    judge_prompt: str | None = _setting(
        None, "File with the judge's prompt, with {question}, {solution} and {answer}. Unset: one of our own."
    )
    judge_correct: float = _setting(1.0, "judge of a correct answer.")
    judge_wrong: float = _setting(0.0, "judge of a wrong answer.")
    judge_bad_format: float = _setting(0.0, "judge of a completion without an answer block.")
    judge_timeout: float = _setting(60.0, "Seconds for one request to the judge.")
    judge_retries: int = _setting(4, "Requests after a failed one, with pauses of 1, 2, 4, ... seconds.")
    judge_concurrency: int = _setting(16, "Requests to the judge at a time.")
    judge_cache: str | None = _setting(
        None, "Folder that keeps the judge's verdicts. Unset: qwenvl/judge in the user's cache folder."
    )
    reward_workers: int = _setting(0, "Processes for rewards that are heavy on the CPU, at least 0.")


@dataclass
class RewardSettings(FunctionSettings):
    """All that the functions of the table can be told."""

    response_format: Literal["think_answer", "answer_only"] = _setting(
        "think_answer", "What format and strict_format ask for."
    )
    generation_max_length: int = _setting(512, "Longest completion; the default length of cosine and soft_overlong.")

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
