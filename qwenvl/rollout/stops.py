"""Stop strings: texts that end a completion, whatever tokens they are written with."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import StoppingCriteria, StopStringCriteria


class StopStrings:
    """Tells which completions have come to one of ``strings``. What their prompts say does not count.

    The token that completes a string may hold more: ``>.`` completes ``</answer>`` too.

    Example:
        >>> stops = StopStrings(tokenizer, ("</answer>",))
        >>> ids = tokenizer(["<answer>3</answer>", "<answer>3</answer"], padding=True, return_tensors="pt").input_ids
        >>> stops(ids)
        tensor([ True, False])
    """

    def __init__(self, tokenizer, strings: tuple[str, ...]):
        self._match = StopStringCriteria(tokenizer, list(strings))

    def __call__(self, completion_ids: Tensor) -> Tensor:
        """rows x tokens -> rows bool: True where the last token completes a string."""
        return self._match(completion_ids, None)

    def each_token(self, completion_ids: Tensor) -> Tensor:
        """N x T -> N x T bool: True for every token that completes a string."""
        return torch.stack([self(completion_ids[:, : t + 1]) for t in range(completion_ids.shape[1])], dim=1)

    def after(self, prompt_tokens: int) -> StoppingCriteria:
        """The same as ``generate`` takes it, for rows that begin with ``prompt_tokens`` columns of prompt."""
        return _AfterPrompt(self, prompt_tokens)


class _AfterPrompt(StoppingCriteria):
    def __init__(self, stops: StopStrings, prompt_tokens: int):
        self._stops = stops
        self._start = prompt_tokens

    def __call__(self, input_ids: Tensor, scores: Tensor | None, **kwargs) -> Tensor:
        return self._stops(input_ids[:, self._start :])
