"""The groups of a run as files that a page loads when it needs them: an index with numbers alone, and pages of texts.

Each file is a script that calls ``report.index(...)`` or ``report.page(...)``: a page that was opened from a disk may
load scripts beside it, but may not read other files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from qwenvl.files import written_whole
from qwenvl.report.curves import finite
from qwenvl.report.groups import (
    Group,
    GroupRow,
    dataset_of,
    grouped,
    row_of,
    suspicions,
    with_gaps,
)
from qwenvl.report.run import Run
from qwenvl.runlog import EvaluationSample, Rollout, SeenClip, read_parity, read_rollouts

PAGE_BYTES = 300_000  # a page is closed when its text is longer
Item = TypeVar("Item")
Kept = TypeVar("Kept")

Reading = Callable[[str, str], tuple[str | None, str]]
"""Returns the answer of a completion (None: no answer) and of its solution, as the reward functions read them."""


@dataclass(frozen=True)
class Strip:
    """The pictures of one file: the frames of a clip that a prompt shows, or one image.

    Attributes:
        path: of the clip or image.
        indices: source frame numbers. Empty for an image.
    """

    path: str
    indices: tuple[int, ...] = ()

    @property
    def key(self) -> str:
        """The name of its file, without ending."""
        return hashlib.sha256(f"{self.path}\n{self.indices}".encode()).hexdigest()[:20]


def write_groups(run: Run, number: int, folder: Path, read: Reading) -> tuple[list[GroupRow], list[Strip]]:
    """Write ``index.js`` and ``page-0.js``, ``page-1.js``, ... of a run, and remove pages of an earlier report.

    Returns the rows of the index, and each strip once, the newest first.

    Args:
        number: of the run in the report, from 0.
        folder: for the files.

    Raises:
        RunLogError: a line of the rollouts is none.
    """
    groups = with_gaps(grouped(read_rollouts(run.folder, split=None)), read_parity(run.folder))
    made = write_pages(
        ((group, group_as_shown(group, read)) for group in groups),
        number,
        folder,
        lambda group, page, place: (row_of(group, page, place), strips_of(group.head.clips, group.head.images)),
    )
    rows = [row for row, _ in made]
    write_script(folder / "index.js", f"report.index({number}, {as_json(index(rows))});\n")
    newest_first = sorted(made, key=lambda each: -each[0]["step"])
    return rows, list(dict.fromkeys(strip for _, strips in newest_first for strip in strips))


def write_pages(
    shown: Iterable[tuple[Item, dict[str, Any]]], number: int, folder: Path, keep: Callable[[Item, int, int], Kept]
) -> list[Kept]:
    """Write items as pages of ``PAGE_BYTES`` or a little more, and remove further pages of an earlier report.

    Args:
        shown: each item, and the object that the page shows. One page is in memory at a time.
        number: of the run in the report.
        keep: called with each item, the number of its page and its place there.

    Returns:
        What ``keep`` returned.
    """
    folder.mkdir(parents=True, exist_ok=True)
    kept: list[Kept] = []
    page, texts = 0, list[str]()

    def write() -> None:
        body = ",\n".join(texts)
        write_script(folder / f"page-{page}.js", f"report.page({number}, {page}, [\n{body}\n]);\n")

    for item, value in shown:
        kept.append(keep(item, page, len(texts)))
        texts.append(as_json(value))
        if sum(map(len, texts)) > PAGE_BYTES:
            write()
            page, texts = page + 1, []
    if texts:
        write()
        page += 1
    for old in folder.glob("page-*.js"):
        if int(old.stem.removeprefix("page-")) >= page:
            old.unlink()
    return kept


def index(rows: Sequence[GroupRow]) -> dict[str, Any]:
    """The index of all groups for filters and jumps: columns of numbers, and the texts that they number.

    ``records`` has ``[id, place, number of the data set]``.
    """
    sets = {where: dataset_of(where) for where in dict.fromkeys(row["where"] for row in rows)}
    splits, datasets = _numbered(row["split"] for row in rows), _numbered(sets.values())
    records = _numbered((row["record"], row["where"]) for row in rows)
    rewards = list(dict.fromkeys(name for row in rows for name in row["parts"]))
    columns = {name: [row[name] for row in rows] for name in ("page", "place", "step", "epoch", "size", "marks")} | {
        name: finite([row[name] for row in rows]) for name in ("mean", "low", "high", "gap")
    }
    return {
        "splits": list(splits),
        "datasets": list(datasets),
        "rewards": rewards,
        "records": [[record, where, datasets[sets[where]]] for record, where in records],
        "columns": columns
        | {"split": [splits[row["split"]] for row in rows]}
        | {"record": [records[row["record"], row["where"]] for row in rows]},
        "parts": {name: finite([row["parts"].get(name) for row in rows]) for name in rewards},
    }


def _numbered(items: Iterable[Any]) -> dict[Any, int]:
    """The number of each different item, in the order of their first occurrence."""
    return {item: number for number, item in enumerate(dict.fromkeys(items))}


def group_as_shown(group: Group, read: Reading) -> dict[str, Any]:
    """The page's object of a group: the fields that its completions share, then each completion."""
    head = group.head
    names = list(dict.fromkeys(name for each in group.rollouts for name in each.rewards))
    return {
        "split": head.split,
        "step": head.step,
        "epoch": head.epoch,
        "id": head.record_id,
        "where": head.where,
        "prompt": list(head.prompt),
        "solution": head.solution,
        "truth": read(head.completion, head.solution)[1],
        **media_as_shown(head.clips, head.images),
        "fitted": head.fitted,
        "suspicions": suspicions(group),
        "rewards": names,
        "rows": [completion_as_shown(each, each.solution, each.advantage, names, read) for each in group.rollouts],
        "gaps": finite(group.gaps),
    }


def media_as_shown(clips: Iterable[SeenClip], images: Iterable[str]) -> dict[str, Any]:
    """The clips and images of a prompt, each with the key of its strip."""
    return {
        "clips": [{**vars(clip), "strip": Strip(clip.path, clip.indices).key} for clip in clips],
        "images": [{"path": path, "strip": Strip(path).key} for path in images],
    }


def completion_as_shown(
    each: Rollout | EvaluationSample, solution: str, advantage: float | None, names: Sequence[str], read: Reading
) -> dict[str, Any]:
    """The page's object of a completion, of a run or of an evaluation.

    Args:
        names: of the rewards, in the order of the page.
    """
    return {
        "sample": each.sample,
        "text": each.completion,
        "tokens": each.tokens,
        "end": each.finish_reason,
        "rewards": finite([each.rewards.get(name) for name in names]),
        "total": finite([each.total])[0],
        "advantage": finite([advantage])[0],
        "answer": read(each.completion, solution)[0],
    }


def strips_of(clips: Iterable[SeenClip], images: Iterable[str]) -> list[Strip]:
    """The strips of clips and images, in order."""
    return [Strip(clip.path, clip.indices) for clip in clips] + [Strip(path) for path in images]


def as_json(value: Any) -> str:
    """A value as JSON for a script, without spaces."""
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def write_script(path: Path, text: str) -> None:
    """Write a file as a whole, unless it has the same content already."""
    data = text.encode()
    if path.exists() and path.stat().st_size == len(data) and path.read_bytes() == data:
        return
    with written_whole(path) as partial:
        partial.write_bytes(data)
