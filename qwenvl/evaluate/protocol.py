"""The protocol of an evaluation: everything needed to reproduce its numbers."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.data.chat import chat_messages
from qwenvl.data.collator import GRPOCollator
from qwenvl.data.dataset import GRPODataset
from qwenvl.data.options import FrameOptions, PromptOptions
from qwenvl.data.prompt_settings import PromptSettings
from qwenvl.evaluate.questions import Questions
from qwenvl.evaluate.settings import EVALUATION_GROUPS, OF_A_RUN, ModelSource, Request, names_of
from qwenvl.model.loading import base_of_adapter
from qwenvl.model.positions import position_rule
from qwenvl.rewards import Rubric
from qwenvl.run_log.log import AS_IT_IS, hash_of, installed_versions
from qwenvl.step.assemble import weight_dtype

_PIECES, _PIECE = 64, 65536  # of a weight file: how many are hashed, and their bytes
_NUMERICS = {
    *("attn_implementation", "shared_prefix", "rollout_engine", "rollout_token_budget", "bf16", "fp16", "tf32"),
    *("use_cpu", "seed"),
}
"""Settings of the machine that can change a number, if only by rounding."""


def model_facts(
    model: ModelSource, config: GRPOConfig, collator: GRPOCollator, questions: Questions | None = None
) -> dict[str, Any]:
    """The identity of a model, before its weights are loaded: a row of ``evaluation.json``.

    Args:
        questions: for the hash of their prompts. None: "".
    """
    from transformers import AutoConfig

    base = base_of_adapter(model.path)
    described = AutoConfig.from_pretrained(base or model.path)
    texts = [] if questions is None else [collator.ruler.text(chat_messages(r)) for r in questions.records.values()]
    return {
        "name": model.name,
        "path": model.path,
        "base": base,
        "revision": revision_of(base or model.path),
        "weights": fingerprint(model.path),
        "family": described.model_type,
        "positions": position_rule(described).time,  # how the temporal row counts
        "dtype": str(weight_dtype(config, frozen=True)).removeprefix("torch."),
        "template_hash": hash_of(str(collator.processor.chat_template)),
        "template_arguments": collator.ruler.effective_arguments,
        "prompts_hash": "" if questions is None else hash_of("\x1e".join(texts)),
        "trained_otherwise": trained_otherwise(model.path, config),
    }


def trained_otherwise(path: str, config: GRPOConfig) -> list[tuple[str, Any, Any]]:
    """Prompt settings of a model's training that differ here: name, value there, value here."""
    saved = PromptSettings.beside(path)
    return [] if saved is None else saved.otherwise(PromptSettings.of(config, None, ""))


def protocol_of(
    request: Request, rubric: Rubric, dataset: GRPODataset, questions: Questions, pass_by: str
) -> dict[str, Any]:
    """The settings behind the numbers of all models, by topic."""
    config, options = request.config, request.options
    params = asdict(config.sampling_params())
    params.pop("entropies")
    if options.samples == 1:
        params = {name: params[name] for name in ("max_new_tokens", "repetition_penalty", "stop_strings")}
    names = sorted(names_of(*EVALUATION_GROUPS) & (OF_A_RUN | _NUMERICS))
    rows = [  # what is asked and expected, and the names of media, without the folders above them
        [[vars(m) for m in r.messages], r.solution, [Path(p).name for p in (*r.videos, *r.images)]]
        for r in (questions.record(AS_IT_IS, number) for number in questions.records)
    ]
    return {
        "data": {
            "dataset_use": config.dataset_use,
            "records": len(questions.records),
            "of": len(dataset),
            "clusters": len(set(questions.clusters.values())),
            "cluster_by": options.cluster_by or "clips and images",
            "hash": hash_of(rows),
        },
        "decoding": {"method": "greedy" if options.samples == 1 else "sampled", "samples": options.samples, **params},
        "frames": asdict(FrameOptions.of(config)),
        "prompts": asdict(PromptOptions.of(config)),
        "decoder": dataset.decoder,
        "rewards": dict(zip(rubric.names, rubric.weights, strict=True)),
        "passes": {"by": pass_by, "at": options.pass_at},
        "seed": config.seed,
        "settings": {name: getattr(config, name) for name in names},
        "versions": installed_versions(),
    }


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
            for start in sorted({max(0, (size - _PIECE) * piece // (_PIECES - 1)) for piece in range(_PIECES)}):
                opened.seek(start)
                hashed.update(opened.read(_PIECE))
    return hashed.hexdigest()


def differing(before: Any, now: Any, name: str = "") -> list[str]:
    """Where two JSON values differ, as lines ``name: before, now``."""
    before, now = json.loads(json.dumps(before)), json.loads(json.dumps(now))
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        return [
            line
            for each in dict.fromkeys([*before, *now])
            for line in differing(before.get(each), now.get(each), f"{name}.{each}" if name else str(each))
        ]
    return [] if before == now else [f"{name}: {json.dumps(before)} there, {json.dumps(now)} here"]
