"""The section of a model card with the results of ``qwenvl evaluate``, and the card of a merged model."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult

from qwenvl.data.saved_processor import SETTINGS_FILE
from qwenvl.runlog import AS_IT_IS, read_evaluation
from qwenvl.train.card.document import CARD, TASK, Metadata, add_to_card, write_card
from qwenvl.train.card.run_card import base_on_the_hub

COMMAND = "qwenvl evaluate"


def update_cards(evaluation: str | Path) -> tuple[list[Path], list[str]]:
    """Write the numbers of a finished evaluation into the cards of its models.

    Args:
        evaluation: the folder of the evaluation.

    Returns:
        The cards that were written, and the paths of models without one.

    Raises:
        ValueError: the metadata of a card can't be read.
    """
    found = read_evaluation(evaluation)
    cards, without = [], []
    for model in found["models"]:
        card = Path(model["path"]) / CARD
        if card.is_file():
            results = list(results_of(found, model["name"]))
            add_to_card(card.parent, "evaluation", evaluation_section(found, model["name"]), results, COMMAND)
            cards.append(card)
        else:
            without.append(model["path"])
    return cards, without


def evaluation_section(found: Mapping[str, Any], model: str) -> str:
    """Return what the card of one model says of an evaluation.

    Args:
        found: as ``read_evaluation`` gives it.
        model: its name in there.
    """
    own = {each["control"]: each for each in found["numbers"] if each["model"] == model}
    drops = {each["control"]: each for each in found["drops"] if each["model"] == model}
    names = list(own[AS_IT_IS]["scores"])
    protocol, decoding = found["protocol"], found["protocol"]["decoding"]
    asked = "one greedy answer" if decoding["samples"] == 1 else f"{decoding['samples']} sampled answers"
    lines = [
        "## Evaluation",
        "",
        f"{own[AS_IT_IS]['records']:,} records of `{protocol['data']['dataset_use']}`, {asked} to each. Means with "
        f"95 % intervals, by bootstrap over {own[AS_IT_IS]['clusters']:,} clusters ({protocol['data']['cluster_by']}). "
        f"An answer passes where `{protocol['passes']['by']}` is at least {protocol['passes']['at']:g}.",
        "",
        f"| evidence | {' | '.join(names)} |",
        f"|---|{'---|' * len(names)}",
    ]
    for control, numbers in own.items():
        shown = "as it is" if control == AS_IT_IS else control
        lines.append(_row(shown, numbers["scores"], names))
        if drop := drops.get(control):
            broken = "" if drop["comparable"] else f", not comparable: {_share(drop['no_answer'])} without an answer"
            lines.append(_row(f"drop by {control}{broken}", drop["scores"], names))
            if broken:
                answered = drop["answered"]
                label = f"drop by {control}, among {answered['records']:,} answered records"
                lines.append(_row(label, answered["scores"], names))
    lines += _differences(found, model)
    lines += ["", *_protocol(found, model, own[AS_IT_IS])]
    return "\n".join(lines)


def results_of(found: Mapping[str, Any], model: str) -> Iterator[EvalResult]:
    """The scores of one model on the records as they are, as the hub has results."""
    data = found["protocol"]["data"]["dataset_use"]
    for each in found["numbers"]:
        if (each["model"], each["control"]) != (model, AS_IT_IS):
            continue
        for name, interval in each["scores"].items():
            if interval is not None:
                yield EvalResult(
                    task_type=TASK,
                    dataset_type="held-out",
                    dataset_name=data,
                    metric_type=name,
                    metric_name=f"{name}, 95 % interval {_bounds(interval)}",
                    metric_value=round(interval["mean"], 4),
                )


def _differences(found: Mapping[str, Any], model: str) -> Iterator[str]:
    for each in found["differences"]:
        if each["after"] == model and each["control"] == AS_IT_IS:
            total = each["scores"].get("total")
            shown = "" if total is None else f": total {total['mean']:+.3f} {_bounds(total)}"
            yield ""
            yield (
                f"Compared with `{each['before']}`, record by record{shown}; better on {each['better']}, equal on "
                f"{each['equal']}, worse on {each['worse']} records."
            )


def _protocol(found: Mapping[str, Any], model: str, numbers: Mapping[str, Any]) -> Iterator[str]:
    """What the numbers hang on."""
    protocol = found["protocol"]
    facts = next(each for each in found["models"] if each["name"] == model)
    frames, prompts = protocol["frames"], protocol["prompts"]
    yield (
        f"{frames['video_min_frames']} to {frames['video_max_frames']} frames of {prompts['video_min_frame_pixels']:,} "
        f"to {prompts['video_max_frame_pixels']:,} pixels, decoded by {protocol['decoder']}; at most "
        f"{protocol['decoding']['max_new_tokens']:,} new tokens; {_share(numbers['no_answer'])} without an answer, "
        f"{_share(numbers['truncated'])} cut off. Prompts `{facts['prompts_hash'][:12]}`, template "
        f"`{facts['template_hash'][:12]}`, weights `{(facts['weights'] or 'unknown')[:12]}`, {facts['dtype']}."
    )
    yield ""
    yield f"Made by `{found['command']}`, ended {found['ended']}."


def _row(label: str, scores: Mapping[str, Any], names: list[str]) -> str:
    return f"| {label} | {' | '.join(_score(scores.get(name)) for name in names)} |"


def _score(interval: Mapping[str, Any] | None) -> str:
    return "" if interval is None else f"{interval['mean']:.3f} {_bounds(interval)}"


def _bounds(interval: Mapping[str, Any]) -> str:
    if interval["low"] is None:
        return "(one cluster)"
    return f"[{interval['low']:.3f}, {interval['high']:.3f}]"


def _share(interval: Mapping[str, Any] | None) -> str:
    return "an unknown share" if interval is None else f"{interval['mean']:.1%}"


def describe_merged(adapter: str | Path, folder: str | Path, base: str) -> None:
    """Write into ``folder`` what the folder of an adapter tells of its training, and that it is merged now.

    Args:
        adapter: whose card and settings of prompts go along, where it has them.
        folder: of the merged model.
        base: the model that the adapter was folded into.
    """
    adapter, folder = Path(adapter), Path(folder)
    for name in (CARD, SETTINGS_FILE):
        if (adapter / name).is_file():
            shutil.copyfile(adapter / name, folder / name)
    metadata = Metadata(
        name=folder.name,
        library="transformers",
        base_model=base_on_the_hub(base),
        tags=("qwenvl", "merged"),
        results=None,
    )
    text = f"## Merged\n\nThe adapter that the sections here speak of is folded into `{base}`: these are whole weights."
    write_card(folder, f"# {Path(base).name} with an adapter merged\n", {"merged": text}, metadata)
