"""A model card, ``README.md``, as a document: sections of ours between marks, and the metadata at its head."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCardData
from huggingface_hub.repocard_data import eval_results_to_model_index

CARD = "README.md"
TASK = "video-text-to-text"
_HEAD = re.compile(r"\A\s*---\r?\n(.*?)\r?\n---[ \t]*(?:\r?\n|\Z)", re.DOTALL)
_HUB_NAME = re.compile(r"\w[\w.-]*/[\w.-]+")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Metadata:
    """What the head of a card says to the hub.

    Attributes:
        name: of the model, for its results.
        library: ``transformers``, or ``peft`` for an adapter.
        base_model: a name on the hub. None where that is not known: a path means nothing to others.
        adapter: whether the weights are those of an adapter.
        tags: besides those that the card has.
        datasets: names on the hub.
        results: numbers on held-out data. None leaves those that the card has.
    """

    name: str
    library: str
    base_model: str | None = None
    adapter: bool = False
    tags: tuple[str, ...] = ()
    datasets: tuple[str, ...] = ()
    results: Sequence[EvalResult] | None = ()


def hub_name(model: str) -> str | None:
    """``model`` if it is a name on the hub, ``organisation/model``, and no folder. Else None."""
    return model if _HUB_NAME.fullmatch(model) and not Path(model).exists() else None


def write_card(folder: str | Path, title: str, sections: Mapping[str, str], metadata: Metadata) -> None:
    """Put sections and metadata into the card of a folder. What else it says stays.

    A section of the same name gives way. So does metadata that is ours to say. A head that is not YAML is left as it
    is, with a warning: a card that somebody broke by hand must not end a run.

    Args:
        title: of a card that is not there yet.
        sections: texts by name. One that is empty takes the earlier one away.
    """
    path = Path(folder) / CARD
    card = path.read_text(encoding="utf-8") if path.is_file() else title
    head, body = _split(card)
    for name, text in sections.items():
        body = _with_section(body, name, text)
    try:
        known = yaml.safe_load(head) if head else {}
        if not isinstance(known, dict):
            raise ValueError("expected names and values")
        head = _with_metadata(known, metadata)
    except (yaml.YAMLError, ValueError) as error:
        logger.warning(f"{path}: its metadata is left as it is: {error}")
    path.write_text(f"---\n{head.strip()}\n---\n\n{body.strip()}\n", encoding="utf-8")


def add_to_card(folder: str | Path, name: str, text: str, results: Sequence[EvalResult], source: str) -> None:
    """Put one section into a card that is there, and results into its metadata beside those of other sources.

    Args:
        source: where the results come from. Earlier ones from there give way.

    Raises:
        ValueError: the metadata of the card can't be read.
    """
    path = Path(folder) / CARD
    head, body = _split(path.read_text(encoding="utf-8"))
    try:
        known = ModelCardData(ignore_metadata_errors=False, **(yaml.safe_load(head) or {}))
    except (yaml.YAMLError, ValueError, TypeError) as error:
        raise ValueError(f"{path}: its metadata can't be read: {error}") from None
    marks = {"made by": source}
    others = [result for result in known.eval_results or [] if result.metric_args != marks]
    known.eval_results = [*others, *(replace(result, metric_args=marks) for result in results)]
    known.model_name = known.model_name or Path(folder).resolve().name
    path.write_text(f"---\n{known.to_yaml().strip()}\n---\n\n{_with_section(body, name, text).strip()}\n", "utf-8")


def read_metadata(folder: str | Path) -> dict[str, Any]:
    """What the head of a card says. Empty without a card, or without a head that can be read."""
    path = Path(folder) / CARD
    head = _split(path.read_text(encoding="utf-8"))[0] if path.is_file() else ""
    try:
        known = yaml.safe_load(head) if head else {}
    except yaml.YAMLError:
        return {}
    return known if isinstance(known, dict) else {}


def _split(card: str) -> tuple[str, str]:
    """The head without its marks, and what follows."""
    found = _HEAD.match(card)
    return (found[1], card[found.end() :]) if found else ("", card)


def _with_section(body: str, name: str, text: str) -> str:
    begin, end = f"<!-- {name}: written by qwenvl -->", f"<!-- end of {name} -->"
    earlier = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    section = f"{begin}\n{text}\n{end}" if text else ""
    if earlier.search(body):
        return earlier.sub(lambda _: section, body)
    return f"{body.rstrip()}\n\n{section}\n" if text else body


def _with_metadata(known: dict[str, Any], ours: Metadata) -> str:
    """The head as YAML. What the card has stays, but for what is ours to say."""
    of_adapters = ("base_model:adapter:", *(() if ours.adapter else ("lora",)))
    tags = [tag for tag in known.pop("tags", None) or [] if not str(tag).startswith(of_adapters)]
    for name in ("base_model", "base_model_relation", *(() if ours.results is None else ("model-index",))):
        known.pop(name, None)
    values = {
        "library_name": ours.library,
        "pipeline_tag": TASK,
        "base_model": ours.base_model,
        "base_model_relation": None if ours.base_model is None else "adapter" if ours.adapter else "finetune",
        "tags": [*dict.fromkeys([*tags, *ours.tags])],
        "datasets": list(ours.datasets) or known.get("datasets"),
        "model-index": eval_results_to_model_index(ours.name, list(ours.results)) if ours.results else None,
    }
    return ModelCardData(ignore_metadata_errors=False, **known | {k: v for k, v in values.items() if v}).to_yaml()
