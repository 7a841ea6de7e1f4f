"""Groups of completions, their marks, and the files of groups that a page loads when it needs them.

The files are an index with numbers alone, and pages of texts. Each is a script that calls ``report.index(...)`` or
``report.page(...)``: a page that was opened from a disk may load scripts beside it, but may not read other files.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from qwenvl.run_log.health import all_equal, asks_for_form
from qwenvl.run_log.log import EvaluationSample, Rollout, read_rollouts
from qwenvl.run_log.report.page_data import PageData, as_json
from qwenvl.run_log.report.timelines import Reading, answer_as_shown, solution_as_shown
from qwenvl.run_log.run import Run, each_once, finite
from qwenvl.types import FrameInfo, ToolCall, Turn

# Marks of a group, added up. The scripts of the page know them by these numbers.
EQUAL = 1  # its rewards are equal, as the log counts them
TRUNCATED = 2  # a completion was truncated
REPEATED = 4  # half or more of its completions are one text
SUSPECT = 8  # reward hacking is suspected
UNSCORED = 16  # a completion has no reward
DROPPED = 32  # it was not trained on (``--filter_groups``)

KEY_LENGTH = 20  # of the 64 digits of a hash
_VERSION_LENGTH = 8  # the same, of an object of a page
HIGH_FORMAT = 0.9  # a format reward from which a completion has the form
HALF_RIGHT = 0.5  # an accuracy from which a repeated text is not suspected
# A reward with such a word in its name judges the form: those of the table of rewards, and what people call their own.
FORM = frozenset(
    ("format", "tag", "tags", "length", "overlong", "repetition", "brevity", "cosine", "evidence", "looked")
)
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
    last_prompt: tuple[object, ...] = ()
    for each in rollouts:
        prompt = (each.split, each.step, each.epoch, each.record_id, each.where)
        # The same prompt may come twice in a row: then ``sample`` begins again at 0.
        if rows and (prompt != last_prompt or each.sample == 0):
            yield rows
            rows = []
        rows.append(each)
        last_prompt = prompt
    if rows:
        yield rows


def marks(group: Group) -> int:
    """The marks of a group, added up.

    Example:
        >>> marks(group) & EQUAL
        1
    """
    size = len(group)
    totals = _totals(group)
    _, repetitions = _most_frequent(group)
    found = {
        EQUAL: all_equal(totals) and size > 1,  # an evaluation may have one completion of each prompt
        TRUNCATED: any(each.finish_reason == "length" for each in group),
        UNSCORED: len(totals) < size,
        REPEATED: size > 2 and repetitions * 2 >= size,
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
    content: list[float] = []
    for each in group:
        if each.completion.strip() == text:
            content += _content(each.rewards)
    if count * 2 >= size and content and fmean(content) < HALF_RIGHT:
        reasons.append(f"{count} of {size} completions are the same text, which is not right")
    return reasons


def _content(rewards: Mapping[str, float | None]) -> list[float]:
    """The known rewards for what a completion says, not for its form."""
    return [value for name, value in rewards.items() if value is not None and not _judges_form(name)]


def _judges_form(name: str) -> bool:
    # Whole words: "stage_accuracy" has no tag.
    return not FORM.isdisjoint(re.split(r"[\W_]+", name.casefold()))


def _form_without_content(rewards: Mapping[str, float | None]) -> bool:
    """Whether a completion has the form that a format reward asks for, and nothing right."""
    form = [value for name, value in rewards.items() if value is not None and asks_for_form(name)]
    content = _content(rewards)
    return bool(form and content) and min(form) >= HIGH_FORMAT and max(content) <= 0


def _most_frequent(group: Group) -> tuple[str, int]:
    """The most frequent text, without outer white space, and its count."""
    return Counter(each.completion.strip() for each in group).most_common(1)[0]


@dataclass(frozen=True)
class GroupRow:
    """A group without its texts, as the index of the page and the summary count it.

    Attributes:
        record, where: the id and the place of its record.
        size: number of completions.
        marks: see ``marks``.
        media: paths of the clips and images.
        mean, low, high: of the total rewards. None where no completion has one.
        parts: the mean of each reward.
    """

    split: str
    step: int
    epoch: int
    record: str
    where: str
    size: int
    marks: int
    media: tuple[str, ...]
    mean: float | None
    low: float | None
    high: float | None
    parts: Mapping[str, float | None]


def group_row(group: Group) -> GroupRow:
    """The row of a group."""
    head = group[0]
    totals = _totals(group)
    return GroupRow(
        split=head.split,
        step=head.step,
        epoch=head.epoch,
        record=head.record_id,
        where=head.where,
        size=len(group),
        marks=marks(group),
        media=(*(clip.path for clip in head.clips), *head.images),
        mean=mean(totals),
        low=min(totals, default=None),
        high=max(totals, default=None),
        parts={name: mean(each.rewards.get(name) for each in group) for name in reward_names(group)},
    )


def reward_names(completions: Iterable[Rollout]) -> list[str]:
    """The names of all rewards, in the order they first occur."""
    return each_once(each.rewards for each in completions)


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
        return hashlib.sha256(text).hexdigest()[:KEY_LENGTH]


def is_key(name: str) -> bool:
    """Whether a name can be the key of a strip or of another file beside a page."""
    return re.fullmatch(rf"[0-9a-f]{{{KEY_LENGTH}}}", name) is not None


def write_groups(run: Run, number: int, data: PageData, read: Reading) -> tuple[list[GroupRow], list[Strip]]:
    """Write ``index.js`` and ``page-0.js``, ``page-1.js``, ... of a run, and remove pages of an earlier report.

    Returns the rows of the index, and each strip once, the newest first.

    Args:
        number: of the run in the report, from 0. The files lie in ``run-0`` of the data.

    Raises:
        RunLogError: a line of the rollouts is none.
    """
    rows: list[GroupRow] = []
    strips_by_step: dict[int, list[Strip]] = {}
    pages = PageWriter(data, number)
    for group in grouped(read_rollouts(run.folder, split=None)):
        rows.append(group_row(group))
        strips_by_step.setdefault(group[0].step, []).extend(strips_of(group))
        pages.add(group_as_shown(group, read))
    places = pages.finish()
    # The name: a page that is open has the numbers of the runs from its own curves, and loads this file later.
    facts = {"name": run.name, **index(rows, places)}
    data.write(f"run-{number}/index.js", f"report.index({number}, {as_json(facts)})")
    newest_first: list[Strip] = []
    for step in sorted(strips_by_step, reverse=True):
        newest_first += strips_by_step[step]
    return rows, list(dict.fromkeys(newest_first))


class PageWriter:
    """Writes objects as pages of ``PAGE_BYTES`` or a little more. One page is in memory at a time.

    A page in a browser has its index from when it was opened, and loads files of pages later. They may have been
    written again since, with other objects in the same places. So index and page both have the version of each object.

    Args:
        number: of the run in the report.
    """

    def __init__(self, data: PageData, number: int) -> None:
        self._data = data
        self._number = number
        self._places: dict[str, list[Any]] = {"page": [], "place": [], "version": []}
        self._pages = 0  # written so far, and the number of the next one
        self._texts: list[str] = []  # of the next one

    def add(self, shown: Mapping[str, Any]) -> None:
        """One more object."""
        text = as_json(shown)
        self._places["page"].append(self._pages)
        self._places["place"].append(len(self._texts))
        self._places["version"].append(_version(text))
        self._texts.append(text)
        if sum(map(len, self._texts)) > PAGE_BYTES:
            self._write()

    def finish(self) -> dict[str, list[Any]]:
        """Write the last page, and remove further pages of an earlier report.

        Returns:
            For each object the number of its ``page``, its ``place`` there, from 0, and its ``version``.
        """
        if self._texts:
            self._write()
        for old in (self._data.folder / f"run-{self._number}").glob("page-*.js"):
            number_of_page = old.stem.removeprefix("page-")
            if number_of_page.isdecimal() and int(number_of_page) >= self._pages:
                old.unlink()
        return self._places

    def _write(self) -> None:
        body = ",\n".join(self._texts)
        versions = " ".join(self._places["version"][-len(self._texts) :])
        call = f'report.page({self._number}, {self._pages}, "{versions}", [\n{body}\n])'
        self._data.write(f"run-{self._number}/page-{self._pages}.js", call)
        self._pages += 1
        self._texts = []


def write_pages(shown: Iterable[Mapping[str, Any]], number: int, data: PageData) -> dict[str, list[Any]]:
    """The places of objects in the pages that are written of them, see ``PageWriter``."""
    pages = PageWriter(data, number)
    for each in shown:
        pages.add(each)
    return pages.finish()


def _version(text: str) -> str:
    """The version of an object of a page, from its JSON."""
    return hashlib.sha256(text.encode()).hexdigest()[:_VERSION_LENGTH]


def index(rows: Sequence[GroupRow], places: Mapping[str, list[Any]]) -> dict[str, Any]:
    """The index of all groups for filters and jumps: columns of numbers, and the texts that they number.

    ``records`` has ``[id, place, number of the data set]``.
    """
    splits = _numbered(row.split for row in rows)
    records = _numbered((row.record, row.where) for row in rows)
    dataset_names = {row.where: dataset_of(row.where) for row in rows}
    datasets = _numbered(dataset_names.values())
    rewards = each_once(row.parts for row in rows)
    return {
        "splits": list(splits),
        "datasets": list(datasets),
        "rewards": rewards,
        "records": [[record, where, datasets[dataset_names[where]]] for record, where in records],
        "columns": {
            **places,
            "step": [row.step for row in rows],
            "epoch": [row.epoch for row in rows],
            "size": [row.size for row in rows],
            "marks": [row.marks for row in rows],
            "mean": finite([row.mean for row in rows]),
            "low": finite([row.low for row in rows]),
            "high": finite([row.high for row in rows]),
            "split": [splits[row.split] for row in rows],
            "record": [records[row.record, row.where] for row in rows],
        },
        "parts": {name: finite([row.parts.get(name) for row in rows]) for name in rewards},
    }


def _numbered(items: Iterable[Any]) -> dict[Any, int]:
    """The number of each different item, in the order of their first occurrence."""
    return {item: number for number, item in enumerate(dict.fromkeys(items))}


def group_as_shown(group: Group, read: Reading) -> dict[str, Any]:
    """The page's object of a group: the fields that its completions share, then each completion."""
    head = group[0]
    names = reward_names(group)
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
    return {
        "clips": [_clip_as_shown(clip) for clip in clips],
        "images": [{"path": path, "strip": Strip(path).key} for path in images],
    }


def _clip_as_shown(clip: FrameInfo) -> dict[str, Any]:
    return {
        "path": clip.path,
        "indices": clip.indices,
        "times": clip.times,
        "segments": clip.segments,
        "duration": clip.duration,
        "strip": Strip(clip.path, clip.indices).key,
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
    if not any(turn.calls for turn in turns):
        return []
    return [{"text": turn.text, "calls": [_call_as_shown(call) for call in turn.calls]} for turn in turns]


def _call_as_shown(call: ToolCall) -> dict[str, Any]:
    """The page's object of a call. Its seconds are left out: the same completions give the same page."""
    return {
        "name": call.name,
        "arguments": call.arguments,
        "text": call.text,
        "pictures": call.pictures,
        "error": call.error,
        "tokens": call.tokens,
        "clips": [_clip_as_shown(clip) for clip in call.clips],
    }


def strips_of(completions: Group | Sequence[EvaluationSample]) -> list[Strip]:
    """The strips of the clips and images of one prompt, and of all looks of its completions."""
    strips = strips_shown(completions[0].clips, completions[0].images)
    for completion in completions:
        for turn in completion.turns:
            for call in turn.calls:
                strips += strips_shown(call.clips)
    return list(dict.fromkeys(strips))


def strips_shown(clips: Sequence[FrameInfo], images: Sequence[str] = ()) -> list[Strip]:
    """One strip for each clip, then one for each image."""
    return [Strip(clip.path, clip.indices) for clip in clips] + [Strip(path) for path in images]
