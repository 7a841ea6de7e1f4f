"""The reward that a trained reward model gives."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from qwenvl.rewards.function import RewardError

ROWS_AT_A_TIME = 8
_TAG = re.compile(r"(<image>|<video>)\n?")


class RewardModel:
    """The output of a sequence-classification model with one label, for the prompt with the completion as its reply.

    ``--reward_model PATH_OR_NAME`` names one or several. They come after the other functions, in order, each with its
    weight in ``--reward_weights``. The conversation is written in the model's own chat template. A model whose
    processor takes images and videos gets those of the record. For other models the tags are left out. The model runs
    on the GPU if there is one, without gradient. Code from the hub is not run.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._model: Any = None
        self._processor: Any = None

    def __call__(
        self,
        completions: list[str],
        prompts: list[list[Mapping[str, str]]],
        image_paths: list[Sequence[str]] | None = None,
        video_paths: list[Sequence[str]] | None = None,
        **columns: Any,
    ) -> list[float]:
        import torch

        self._load()
        none: list[Sequence[str]] = [()] * len(completions)
        rows = list(zip(completions, prompts, image_paths or none, video_paths or none, strict=True))
        scores: list[float] = []
        for start in range(0, len(rows), ROWS_AT_A_TIME):
            chats = [self._conversation(*row) for row in rows[start : start + ROWS_AT_A_TIME]]
            inputs = self._processor.apply_chat_template(
                chats, tokenize=True, return_dict=True, return_tensors="pt", padding=True
            )
            with torch.no_grad():
                logits = self._model(**inputs.to(self._model.device)).logits
            scores += logits[:, 0].float().tolist()
        return scores

    def _conversation(
        self, completion: str, prompt: list[Mapping[str, str]], images: Sequence[str], videos: Sequence[str]
    ) -> list[dict[str, Any]]:
        reply = {"role": "assistant", "content": str(completion)}
        if not hasattr(self._processor, "image_processor"):
            return [{"role": m["role"], "content": _TAG.sub("", m["content"])} for m in prompt] + [reply]
        files = {"<image>": iter(images), "<video>": iter(videos)}
        chat = [{"role": m["role"], "content": _parts(m["content"], files)} for m in prompt]
        return [*chat, {**reply, "content": [{"type": "text", "text": reply["content"]}]}]

    def _load(self) -> None:
        """Load the model at the first call. A run that stops while it reads its data need not have loaded it."""
        if self._model is not None:
            return
        from accelerate import PartialState  # the device of this process: that of the run where one has begun
        from transformers import AutoModelForSequenceClassification, AutoProcessor, AutoTokenizer

        model = AutoModelForSequenceClassification.from_pretrained(self._path, dtype="auto", trust_remote_code=False)
        if model.config.num_labels != 1:
            raise RewardError(
                f"--reward_model {self._path}: expected a head with 1 output, got {model.config.num_labels}"
            )
        try:
            processor = AutoProcessor.from_pretrained(self._path, trust_remote_code=False)
        except (OSError, ValueError):  # a text model saves a tokenizer only
            processor = AutoTokenizer.from_pretrained(self._path, trust_remote_code=False)
        if not getattr(processor, "chat_template", None):
            raise RewardError(f"--reward_model {self._path}: it has no chat template to write the conversation in")
        tokenizer = getattr(processor, "tokenizer", processor)
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token
        # The score is read at the last token that is not padding, which the model finds by the pad token's id.
        model.config.get_text_config().pad_token_id = model.config.pad_token_id = tokenizer.pad_token_id
        self._model, self._processor = model.eval().requires_grad_(False).to(PartialState().device), processor


def _parts(text: str, files: Mapping[str, Any]) -> list[dict[str, str]]:
    """The parts of a message: text, and the next image or video for each tag."""
    parts = []
    for piece in _TAG.split(text):
        if piece in files:
            kind = piece.strip("<>")
            parts.append({"type": kind, "path": next(files[piece])})
        elif piece:
            parts.append({"type": "text", "text": piece})
    return parts
