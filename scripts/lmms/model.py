"""A model of this library as lmms-eval asks one: our frames, positions and sampler behind its interface."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmms_eval.api.model import lmms
from PIL import Image
from tqdm import tqdm

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.data.chat import chat_messages
from qwenvl.data.dataset import GRPODataset
from qwenvl.data.media.source import store_bytes
from qwenvl.data.options import SampleOptions
from qwenvl.data.records.forms import MEDIA_TAG
from qwenvl.evaluate.respondent import build_respondent, collator_of
from qwenvl.evaluate.settings import Asking, record_of
from qwenvl.rewards import build_rubric
from qwenvl.rewards.functions.text import answer_of
from qwenvl.step.rows import rollout_rows
from qwenvl.types import PromptBatch, RewardBatch, RolloutBatch


@dataclass(frozen=True)
class Answered:
    """One question of a task, and what was seen and written.

    Attributes:
        task, doc_id: of lmms-eval.
        given: what lmms-eval got: the answer block where there is one, else the whole completion, until a stop string.
        batch, rollout: of this one prompt.
    """

    task: str
    doc_id: int
    given: str
    batch: PromptBatch
    rollout: RolloutBatch

    def row(self):
        """As a row of a run folder, without rewards."""
        import torch

        nothing = RewardBatch((), (), [], torch.full((len(self.rollout.texts),), float("nan")))
        return next(iter(rollout_rows(0, "lmms", self.batch, self.rollout, nothing)))


class QwenVL(lmms):
    """Answers tasks of the kind ``generate_until``, greedily.

    Args:
        config: whose ``model_name_or_path`` is asked, with its frames, sizes and longest completion.
        asking: system turn, template and framing of prompts.
    """

    def __init__(self, config: GRPOConfig, asking: Asking):
        super().__init__()
        self.answered: list[Answered] = []
        self._config, self._asking = config, asking
        self.collator = collator_of(config)
        self._respondent = build_respondent(config, self.collator, build_rubric())

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        """The answers, in the order of the requests."""
        return [self._answer(*request.args) for request in tqdm(requests, desc="questions")]

    def _answer(
        self, context: str, settings: dict[str, Any], visuals_of: Callable, doc_id: int, task: str, split: str
    ) -> str:
        visuals = visuals_of(self.task_dict[task][split][doc_id]) or []
        question = MEDIA_TAG.sub("", context).strip() or context
        media = [as_file(visual) for visual in (visuals if isinstance(visuals, list) else [visuals])]
        record = record_of(media, question, None, self._asking)
        collator, frames = self.collator, SampleOptions.of(self._config)
        dataset = GRPODataset([record], frames, training=False, ruler=collator.ruler, fit_to=collator.options.fit_to)
        batch = collator([dataset.load(record)])["prompts"]
        [rollout] = self._respondent.complete([batch], 1)
        given = until(answer_of(rollout.texts[0]) or rollout.texts[0], settings.get("until") or ())
        self.answered.append(Answered(task, doc_id, given, batch, rollout))
        return given

    def prompts(self) -> list[str]:
        """The texts of all prompts so far, as the model read them."""
        ruler = self.collator.ruler
        return [ruler.text(chat_messages(each.batch.records[0])) for each in self.answered]

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        """Not offered."""
        raise NotImplementedError("tasks that compare log-likelihoods are not offered: take one that generates answers")

    def generate_until_multi_round(self, requests: Sequence[Any]) -> list[str]:
        """Not offered."""
        raise NotImplementedError("tasks of several rounds are not offered: take one that asks once")


def as_file(visual: Any) -> str:
    """The path of a clip or an image. Pictures in memory are kept in the cache.

    Raises:
        TypeError: it is neither, such as sound.
    """
    if isinstance(visual, (str, Path)):
        return str(Path(visual).absolute()) if not re.match("https?://", str(visual)) else str(visual)
    if isinstance(visual, Image.Image):
        written = io.BytesIO()
        visual.convert("RGB").save(written, "PNG")
        return store_bytes(written.getvalue())
    raise TypeError(f"the task shows a {type(visual).__name__}; expected clips and images")


def until(text: str, stops: Sequence[str] | str) -> str:
    """The text before the first of the stop strings."""
    for stop in [stops] if isinstance(stops, str) else stops:
        text = text.split(stop)[0] if stop else text
    return text.strip()
