"""The protocol of an evaluation: everything needed to reproduce its numbers."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.data.chat import chat_messages
from qwenvl.data.collator import GRPOCollator
from qwenvl.data.dataset import GRPODataset
from qwenvl.data.media.source import frame_files
from qwenvl.data.options import FrameOptions, PromptOptions
from qwenvl.data.prompt_settings import PromptSettings
from qwenvl.evaluate.models import ModelSource
from qwenvl.evaluate.questions import Questions
from qwenvl.evaluate.requests import EvaluationRequest
from qwenvl.evaluate.settings import EVALUATION_GROUPS, OF_A_RUN, names_of
from qwenvl.model.positions import position_rule
from qwenvl.model.weight_files import base_of_adapter
from qwenvl.own_code import code_hashes
from qwenvl.rewards import Rubric
from qwenvl.run_log.log import AS_IT_IS, hash_of, installed_versions
from qwenvl.step.assemble import weight_dtype

_PIECES = 64  # of a weight file that are hashed
_PIECE_BYTES = 65536
_NUMERICS = {
    "attn_implementation",
    "shared_prefix",
    "rollout_engine",
    "rollout_token_budget",
    "bf16",
    "fp16",
    "tf32",
    "use_cpu",
    "seed",
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
    prompts_hash = ""
    if questions is not None:
        texts = [collator.ruler.text(chat_messages(record)) for record in questions.records.values()]
        prompts_hash = hash_of("\x1e".join(texts))  # with the record separator of ASCII
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
        "prompts_hash": prompts_hash,
        "trained_otherwise": settings_otherwise(model.path, config),
    }


def settings_otherwise(path: str, config: GRPOConfig) -> list[tuple[str, Any, Any]]:
    """Prompt settings of a model's training that differ here: name, value there, value here."""
    saved = PromptSettings.beside(path)
    return [] if saved is None else saved.otherwise(PromptSettings.of(config, None, ""))


def protocol_of(
    request: EvaluationRequest, rubric: Rubric, dataset: GRPODataset, questions: Questions, pass_by: str
) -> dict[str, Any]:
    """The settings behind the numbers of all models, by topic."""
    config = request.config
    options = request.options
    greedy = options.samples == 1
    params = asdict(config.sampling_params())
    params.pop("entropies")  # it changes no completion
    if greedy:
        params = {name: params[name] for name in ("max_new_tokens", "repetition_penalty", "stop_strings")}
    readable = [number for number, record in questions.records.items() if not record.problem]
    names = sorted(names_of(*EVALUATION_GROUPS) & (OF_A_RUN | _NUMERICS))
    return {
        "data": {
            "dataset_use": config.dataset_use,
            "records": len(questions.records),
            "of": len(dataset),
            "clusters": len({questions.clusters[number] for number in readable}),
            "cluster_by": options.cluster_by or "clips and images",
            "hash": _hash_of_data(questions),
        },
        "decoding": {"method": "greedy" if greedy else "sampled", "samples": options.samples, **params},
        "frames": asdict(FrameOptions.of(config)),
        "prompts": asdict(PromptOptions.of(config)),
        "decoder": dataset.decoder,
        "rewards": dict(zip(rubric.names, rubric.weights, strict=True)),
        "reward_code": code_hashes(config),
        "passes": {"by": pass_by, "at": options.pass_at},
        "seed": config.seed,
        "settings": {name: getattr(config, name) for name in names},
        "versions": installed_versions(),
    }


def _hash_of_data(questions: Questions) -> str:
    """A hash of what is asked and expected, and of the names and sizes of media without the folders above them."""
    rows = []
    for number in questions.records:
        record = questions.record(AS_IT_IS, number)
        messages = [vars(message) for message in record.messages]
        media = [[Path(path).name, _sizes_of(path)] for path in (*record.videos, *record.images)]
        rows.append([messages, record.solution, media])
    return hash_of(rows)


def _sizes_of(path: str) -> list[int]:
    """The sizes of the file or the frames of a medium. Empty where it is gone, or lies on a network."""
    frames = frame_files(path)
    sizes = []
    for file in [path] if frames is None else frames:
        with suppress(OSError, ValueError):
            sizes.append(os.stat(file).st_size)
    return sizes


def revision_of(path: str) -> str | None:
    """The commit of a model that was loaded from the hub. None for a folder."""
    from transformers.utils import cached_file

    if Path(path).is_dir():
        return None
    # The cache of the hub has a folder for each commit: models--ORG--NAME/snapshots/COMMIT/config.json.
    found = re.search(r"/snapshots/([0-9a-f]{40})/", str(cached_file(path, "config.json")))
    return None if found is None else found[1]


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
            # Evenly spread from the first bytes to the last. A small file has fewer pieces than 64.
            starts = {max(0, (size - _PIECE_BYTES) * piece // (_PIECES - 1)) for piece in range(_PIECES)}
            for start in sorted(starts):
                opened.seek(start)
                hashed.update(opened.read(_PIECE_BYTES))
    return hashed.hexdigest()


def differing(before: Any, now: Any, name: str = "") -> list[str]:
    """The differences of two JSON values, as lines ``name: before there, now here``."""
    # As files have them: a tuple and a list are the same there.
    before = json.loads(json.dumps(before))
    now = json.loads(json.dumps(now))
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        lines = []
        for key in dict.fromkeys([*before, *now]):
            inner = f"{name}.{key}" if name else str(key)
            lines += differing(before.get(key), now.get(key), inner)
        return lines
    if before == now:
        return []
    return [f"{name}: {json.dumps(before)} there, {json.dumps(now)} here"]
