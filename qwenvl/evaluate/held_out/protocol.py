"""The protocol of an evaluation: all that its numbers hang on, so that somebody else can make them again."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.data.chat import chat_messages
from qwenvl.data.collator import GRPOCollator
from qwenvl.data.dataset import GRPODataset
from qwenvl.data.options import FrameOptions, PromptOptions
from qwenvl.data.saved_processor import PromptSettings
from qwenvl.evaluate.held_out.models import NamedModel
from qwenvl.evaluate.held_out.questions import Questions
from qwenvl.evaluate.held_out.settings import READ, Asked
from qwenvl.evaluate.settings import OF_A_RUN
from qwenvl.model.loading import base_of_adapter
from qwenvl.model.positions import position_rule
from qwenvl.rewards import Rubric
from qwenvl.rollout.engine import SamplingParams
from qwenvl.runlog import installed_versions
from qwenvl.runlog.evaluation import AS_IT_IS, hash_of
from qwenvl.train.assemble import weight_dtype

_PIECES, _PIECE = 64, 65536  # of a weight file: how many are hashed, and their bytes


@dataclass(frozen=True)
class ModelFacts:
    """Which model was asked, and what it was asked by.

    Attributes:
        name, path: as in ``NamedModel``.
        base: the model below an adapter.
        revision: the commit of a model from the hub.
        weights: a hash of samples of the weight files. None for a model from the hub.
        family: ``model_type`` of its configuration.
        positions: how the temporal row of its positions counts, see ``qwenvl.model.positions``.
        dtype: in which the weights are kept.
        template_hash: SHA-256 of its chat template.
        prompts_hash: SHA-256 over the texts of all prompts, by that template, in the order of the records.
        trained_otherwise: settings of its own training that this evaluation does not follow: name, there, here.
    """

    name: str
    path: str
    base: str | None
    revision: str | None
    weights: str | None
    family: str
    positions: str
    dtype: str
    template_hash: str
    prompts_hash: str
    trained_otherwise: tuple[tuple[str, Any, Any], ...] = ()


def model_facts(model: NamedModel, config: GRPOConfig, collator: GRPOCollator, questions: Questions) -> ModelFacts:
    """What is known of a model before its weights are loaded."""
    from transformers import AutoConfig

    base = base_of_adapter(model.path)
    described = AutoConfig.from_pretrained(base or model.path)
    texts = (collator.ruler.text(chat_messages(record)) for record in questions.records.values())
    return ModelFacts(
        name=model.name,
        path=model.path,
        base=base,
        revision=revision_of(base or model.path),
        weights=fingerprint(model.path),
        family=described.model_type,
        positions=position_rule(described).time,
        dtype=str(weight_dtype(config, frozen=True)).removeprefix("torch."),
        template_hash=hash_of(str(collator.processor.chat_template)),
        prompts_hash=hash_of("\x1e".join(texts)),
        trained_otherwise=tuple(trained_otherwise(model.path, config)),
    )


def trained_otherwise(path: str, config: GRPOConfig) -> Iterable[tuple[str, Any, Any]]:
    """What shaped the prompts of a model's training and is not so here: name, value there, value here."""
    try:
        there = PromptSettings.load(path)
    except FileNotFoundError:
        return
    here = PromptSettings.of(config, None, "")
    not_told = ("max_prompt_length", "on_long_prompt", "fit_frames")
    for group in ("frames", "prompts"):
        for name, value in asdict(getattr(there, group)).items():
            if name not in not_told and value != (own := getattr(getattr(here, group), name)):
                yield name, value, own
    for name in ("system", "prompt_template"):
        if getattr(there, name) != getattr(here, name):
            yield name, getattr(there, name), getattr(here, name)


def protocol_of(
    asked: Asked, rubric: Rubric, dataset: GRPODataset, questions: Questions, pass_by: str
) -> dict[str, Any]:
    """What decides the numbers of all models, by topic."""
    config, options = asked.config, asked.options
    params = asdict(SamplingParams.of(config))
    params.pop("entropies")
    if options.samples == 1:
        params = {name: params[name] for name in ("max_new_tokens", "repetition_penalty", "stop_strings")}
    settings = {name: getattr(config, name) for name in sorted(READ)}
    return {
        "data": {
            "dataset_use": config.dataset_use,
            "records": len(questions.records),
            "of": len(dataset),
            "clusters": len(set(questions.clusters.values())),
            "cluster_by": options.cluster_by or "clips and images",
            "hash": _hash_of_records(questions),
        },
        "decoding": {"method": "greedy" if options.samples == 1 else "sampled", "samples": options.samples, **params},
        "frames": asdict(FrameOptions.of(config)),
        "prompts": asdict(PromptOptions.of(config)),
        "decoder": dataset.decoder,
        "rewards": dict(zip(rubric.names, rubric.weights, strict=True)),
        "passes": {"by": pass_by, "at": options.pass_at},
        "seed": config.seed,
        "settings": {name: value for name, value in settings.items() if name in OF_A_RUN or name in _NUMBERS},
        "versions": installed_versions(),
    }


_NUMBERS = {
    *("attn_implementation", "shared_prefix", "rollout_engine", "rollout_token_budget", "bf16", "fp16", "tf32"),
    *("use_cpu", "seed"),
}
"""Settings of the machine that can change a number, if only by rounding."""


def revision_of(path: str) -> str | None:
    """The commit of a model that was loaded from the hub. None for a folder."""
    from transformers.utils import cached_file

    if Path(path).is_dir():
        return None
    return next(iter(re.findall(r"/snapshots/([0-9a-f]{40})/", str(cached_file(path, "config.json")))), None)


def fingerprint(path: str) -> str | None:
    """A hash of the weight files of a folder: their names and sizes, and 64 pieces of each. None for a hub name."""
    folder = Path(path)
    if not folder.is_dir():
        return None
    hashed = hashlib.sha256()
    for file in sorted(folder.glob("*.safetensors")):
        size = file.stat().st_size
        hashed.update(f"{file.name} {size}".encode())
        with file.open("rb") as opened:
            for place in sorted({max(0, (size - _PIECE) * piece // (_PIECES - 1)) for piece in range(_PIECES)}):
                opened.seek(place)
                hashed.update(opened.read(_PIECE))
    return hashed.hexdigest()


def differing(before: Any, now: Any, name: str = "") -> list[str]:
    """Where two JSON values differ, as lines ``name: before, now``."""
    before, now = json.loads(json.dumps(before)), json.loads(json.dumps(now))
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        names = dict.fromkeys([*before, *now])
        return [
            line
            for each in names
            for line in differing(before.get(each), now.get(each), f"{name}.{each}" if name else str(each))
        ]
    return [] if before == now else [f"{name}: {json.dumps(before)} there, {json.dumps(now)} here"]


def _hash_of_records(questions: Questions) -> str:
    """Of what is asked and expected, and of the names of media, without the folders above them."""
    rows = [
        [[vars(m) for m in r.messages], r.solution, [Path(p).name for p in (*r.videos, *r.images)]]
        for r in (questions.record(AS_IT_IS, number) for number in questions.records)
    ]
    return hash_of(rows)
