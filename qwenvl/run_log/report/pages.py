"""Groups of completions, their marks, and the files of groups that a page loads when it needs them.

The files are an index with numbers alone, and pages of texts. Each is a script that calls ``report.index(...)`` or
``report.page(...)``: a page that was opened from a disk may load scripts beside it, but may not read other files.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from qwenvl.files import written_whole
from qwenvl.run_log.health import all_equal
from qwenvl.run_log.log import EvaluationSample, Rollout, read_rollouts
from qwenvl.run_log.report.timelines import Reading, answer_as_shown, solution_as_shown
from qwenvl.run_log.run import Run, finite
from qwenvl.types import FrameInfo, Turn

EQUAL, TRUNCATED, REPEATED, SUSPECT, UNSCORED, DROPPED = 1, 2, 4, 8, 16, 32
"""Marks of a group, added up: its rewards are equal, as the log counts them; a completion was truncated; half or more
of the texts occur twice; reward hacking is suspected; a completion has no reward; it was not trained on
(``--filter_groups``)."""

HIGH_FORMAT = 0.9  # a format reward from which a completion has the form
HALF_RIGHT = 0.5  # an accuracy from which a repeated text is not suspected
FORM = ("format", "tag", "length", "overlong", "repetition", "brevity")  # a reward with such a word judges the form
_PLACE = re.compile(r"(\[\d+\]|:\d+)$")


Group = Sequence[Rollout]
"""One prompt with its G completions of one step, by ``sample``. Step, record, prompt and clips are the same in all."""


def mean(values: Iterable[float | None]) -> float | None:
    """The mean of the known values. None where there is none."""
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def dataset_of(where: str) -> str:
    """The name of the file in a record's place.

    Example:
        >>> dataset_of("data/sop.json[17]"), dataset_of("data/more.jsonl:3")
        ('sop', 'more')
    """
    return Path(_PLACE.sub("", where)).stem


def grouped(rollouts: Iterable[Rollout]) -> Iterator[Group]:
    """The groups of consecutive completions of one prompt. A group begins where ``sample`` is 0."""
    rows: list[Rollout] = []
    key: tuple[object, ...] = ()
    for each in rollouts:
        own = (each.split, each.step, each.epoch, each.record_id, each.where)
        if rows and (own != key or each.sample == 0):
            yield rows
            rows = []
        rows.append(each)
        key = own
    if rows:
        yield rows


def marks(group: Group) -> int:
    """The marks of a group, added up.

    Example:
        >>> marks(group) & EQUAL
        1
    """
    size, totals = len(group), _totals(group)
    found = {
        EQUAL: all_equal(totals) and size > 1,  # an evaluation may have one completion of each prompt
        TRUNCATED: any(each.finish_reason == "length" for each in group),
        UNSCORED: len(totals) < size,
        REPEATED: size > 2 and _most_frequent(group)[1] * 2 >= size,
        DROPPED: group[0].dropped,
        SUSPECT: bool(suspicions(group)),
    }
    return sum(mark for mark, holds in found.items() if holds)


def _totals(group: Group) -> list[float]:
    """The total rewards of the completions that have one."""
    return [each.total for each in group if each.total is not None]


def suspicions(group: Group) -> list[str]:
    """Reasons to suspect reward hacking: completions have the form and nothing right, or repeat one wrong text.

    Each needs at least half of the completions, in a group of at least three. A group that repeats a right text is
    solved, and not suspected.
    """
    size = len(group)
    if size < 3:
        return []
    reasons = []
    empty = sum(_form_without_content(each.rewards) for each in group)
    if empty * 2 >= size:
        reasons.append(f"{empty} of {size} completions keep the form and have nothing right")
    text, count = _most_frequent(group)
    content = [value for each in group if each.completion.strip() == text for value in _content(each.rewards)]
    if count * 2 >= size and content and fmean(content) < HALF_RIGHT:
        reasons.append(f"{count} of {size} completions are the same text, which is not right")
    return reasons


def _content(rewards: Mapping[str, float | None]) -> list[float]:
    judges_form = lambda name: any(word in name.casefold() for word in FORM)
    return [value for name, value in rewards.items() if value is not None and not judges_form(name)]


def _form_without_content(rewards: Mapping[str, float | None]) -> bool:
    form = [value for name, value in rewards.items() if value is not None and "format" in name.casefold()]
    content = _content(rewards)
    return bool(form and content) and min(form) >= HIGH_FORMAT and max(content) <= 0


def _most_frequent(group: Group) -> tuple[str, int]:
    """The most frequent text, without outer white space, and its count."""
    return Counter(each.completion.strip() for each in group).most_common(1)[0]


GroupRow = dict[str, Any]
"""The row of a group in the index of the page, as ``row_of`` makes it."""


def row_of(group: Group) -> GroupRow:
    """The row of a group: its numbers, its marks, and the mean of each reward as ``parts``."""
    head, totals = group[0], _totals(group)
    names = dict.fromkeys(name for each in group for name in each.rewards)
    return {
        **{"split": head.split, "step": head.step, "epoch": head.epoch},
        **{"record": head.record_id, "where": head.where, "size": len(group), "marks": marks(group)},
        "media": (*(clip.path for clip in head.clips), *head.images),
        **{"mean": mean(totals), "low": min(totals, default=None), "high": max(totals, default=None)},
        "parts": {name: mean(each.rewards.get(name) for each in group) for name in names},
    }


PAGE_BYTES = 300_000  # a page is closed when its text is longer


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
        # Names of files need not be UTF-8: Python then has lone surrogates in them.
        text = f"{self.path}\n{self.indices}".encode("utf-8", "surrogatepass")
        return hashlib.sha256(text).hexdigest()[:20]


def write_groups(run: Run, number: int, folder: Path, read: Reading) -> tuple[list[GroupRow], list[Strip]]:
    """Write ``index.js`` and ``page-0.js``, ``page-1.js``, ... of a run, and remove pages of an earlier report.

    Returns the rows of the index, and each strip once, the newest first.

    Args:
        number: of the run in the report, from 0.
        folder: for the files.

    Raises:
        RunLogError: a line of the rollouts is none.
    """
    rows: list[GroupRow] = []
    strips: list[tuple[int, list[Strip]]] = []

    def shown() -> Iterator[dict[str, Any]]:
        for group in grouped(read_rollouts(run.folder, split=None)):
            rows.append(row_of(group))
            strips.append((-group[0].step, strips_of(group)))
            yield group_as_shown(group, read)

    places = write_pages(shown(), number, folder)
    write_script(folder / "index.js", f"report.index({number}, {as_json(index(rows, places))});\n")
    newest_first = sorted(strips, key=lambda each: each[0])
    return rows, list(dict.fromkeys(strip for _, own in newest_first for strip in own))


def write_pages(shown: Iterable[dict[str, Any]], number: int, folder: Path) -> dict[str, list[int]]:
    """Write objects as pages of ``PAGE_BYTES`` or a little more, and remove further pages of an earlier report.

    Args:
        shown: the objects. One page is in memory at a time.
        number: of the run in the report.

    Returns:
        For each object the number of its ``page``, and its ``place`` there, from 0.
    """
    folder.mkdir(parents=True, exist_ok=True)
    places: dict[str, list[int]] = {"page": [], "place": []}
    page, texts = 0, list[str]()

    def write() -> None:
        body = ",\n".join(texts)
        write_script(folder / f"page-{page}.js", f"report.page({number}, {page}, [\n{body}\n]);\n")

    for value in shown:
        places["page"].append(page)
        places["place"].append(len(texts))
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
    return places


def index(rows: Sequence[GroupRow], places: Mapping[str, list[int]]) -> dict[str, Any]:
    """The index of all groups for filters and jumps: columns of numbers, and the texts that they number.

    ``records`` has ``[id, place, number of the data set]``.
    """
    sets = {where: dataset_of(where) for where in dict.fromkeys(row["where"] for row in rows)}
    splits, datasets = _numbered(row["split"] for row in rows), _numbered(sets.values())
    records = _numbered((row["record"], row["where"]) for row in rows)
    rewards = list(dict.fromkeys(name for row in rows for name in row["parts"]))
    return {
        "splits": list(splits),
        "datasets": list(datasets),
        "rewards": rewards,
        "records": [[record, where, datasets[sets[where]]] for record, where in records],
        "columns": {
            **places,
            **{name: [row[name] for row in rows] for name in ("step", "epoch", "size", "marks")},
            **{name: finite([row[name] for row in rows]) for name in ("mean", "low", "high")},
            "split": [splits[row["split"]] for row in rows],
            "record": [records[row["record"], row["where"]] for row in rows],
        },
        "parts": {name: finite([row["parts"].get(name) for row in rows]) for name in rewards},
    }


def _numbered(items: Iterable[Any]) -> dict[Any, int]:
    """The number of each different item, in the order of their first occurrence."""
    return {item: number for number, item in enumerate(dict.fromkeys(items))}


def group_as_shown(group: Group, read: Reading) -> dict[str, Any]:
    """The page's object of a group: the fields that its completions share, then each completion."""
    head, names = group[0], list(dict.fromkeys(name for each in group for name in each.rewards))
    timelines = read.timelines(head.prompt, head.completion, head.solution, head.rewards)
    return {
        "split": head.split,
        "step": head.step,
        "epoch": head.epoch,
        "id": head.record_id,
        "where": head.where,
        "prompt": list(head.prompt),
        "solution": head.solution,
        "truth": read.solution(head.solution),
        "timeline": solution_as_shown(timelines, head.clips),
        **media_as_shown(head.clips, head.images),
        "fitted": head.fitted,
        "evidence": head.evidence,
        "suspicions": suspicions(group),
        "rewards": names,
        "rows": [completion_as_shown(each, each.solution, each.advantage, names, read) for each in group],
    }


def media_as_shown(clips: Iterable[FrameInfo], images: Iterable[str] = ()) -> dict[str, Any]:
    """The clips and images of a prompt, each with the key of its strip."""
    names = ("path", "indices", "times", "segments", "duration")
    shown = ({name: getattr(clip, name) for name in names} for clip in clips)
    return {
        "clips": [{**clip, "strip": Strip(clip["path"], clip["indices"]).key} for clip in shown],
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
        "end": each.ended_by or each.finish_reason,
        "rewards": finite([each.rewards.get(name) for name in names]),
        "total": finite([each.total])[0],
        "advantage": finite([advantage])[0],
        "answer": read.answer(each.completion),
        "timeline": answer_as_shown(read.timelines(each.prompt, each.completion, solution, each.rewards)),
        "turns": turns_as_shown(each.turns),
    }


def turns_as_shown(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """The page's objects of the turns of a completion. Empty where none of them calls a tool."""
    names = ("name", "arguments", "text", "pictures", "error", "tokens")  # seconds differ where all else is the same
    called = any(turn.calls for turn in turns)
    return [
        {
            "text": turn.text,
            "calls": [
                {name: getattr(call, name) for name in names} | {"clips": media_as_shown(call.clips)["clips"]}
                for call in turn.calls
            ],
        }
        for turn in (turns if called else ())
    ]


def strips_of(completions: Group | Sequence[EvaluationSample]) -> list[Strip]:
    """The strips of the clips and images of one prompt, and of all looks of its completions."""
    head = completions[0]
    looks = [clip for each in completions for turn in each.turns for call in turn.calls for clip in call.clips]
    return list(dict.fromkeys([*strips_shown(head.clips, head.images), *strips_shown(looks)]))


def strips_shown(clips: Sequence[FrameInfo], images: Sequence[str] = ()) -> list[Strip]:
    """One for each of them."""
    return [*(Strip(clip.path, clip.indices) for clip in clips), *map(Strip, images)]


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
