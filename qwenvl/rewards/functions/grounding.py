"""Rewards for boxes in an image, spans of time, and answers that need the order of the frames."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any

from qwenvl.files import require
from qwenvl.rewards.function import Argument
from qwenvl.rewards.functions.text import answer_of, pairs, solution_of
from qwenvl.rewards.functions.timelines import given_duration
from qwenvl.rewards.options import BoxUnits
from qwenvl.times import in_plain_seconds, seconds_of_clock

if TYPE_CHECKING:
    import numpy as np

Span = tuple[float, float]
Units = Annotated[
    BoxUnits,
    Argument(
        "Units of boxes in answers. same: those of the solution. thousandths: 0..1000, while the solution is in pixels "
        "of an image of the record's width and height."
    ),
]
Boundary = Annotated[bool, Argument("Multiply by how near start and end are; needs the field duration, in seconds.")]

_N = r"\s{0,40}(-?[0-9]{1,7}(?:\.[0-9]{1,30})?)\s{0,40}"  # JSON may have each number on a line
_BOX = re.compile(rf"\[{_N},{_N},{_N},{_N}\]|\({_N},{_N}\)\s{{0,4}},?\s{{0,4}}\({_N},{_N}\)")
# Brackets with numbers that are no box, such as four numbers and a score, or numbers that are texts in JSON. Numbers of
# a list have no brackets.
_OTHER_BOX = re.compile(
    r"[\[(][^\[\]()\"']{0,200}[0-9][^\[\]()\"']{0,200}[\])]"
    r"|\[(?:\s{0,40}[\"']-?[0-9.]{1,38}[\"']\s{0,40},?){2,9}\]"
)
_TIME = re.compile(
    # The 1 of t1 is no time, nor is the 2 of 3:2. The 8 of 3to8 and that of "end":8 are times.
    r"(?:(?<![0-9A-Za-z_])(?<![0-9]:)|(?<=[0-9]to)|(?<=[0-9]s))"
    # Two dots or three may stand before a time, and one begins decimals.
    r"(?<!(?<!\.)\.)(?<![0-9][eE])(?<![0-9][eE][+-])"
    r"(?:([0-9]{1,3}):)?(?:([0-9]{1,3}):)?([0-9]{1,7}(?:\.[0-9]{1,30})?)"
    r"(?![0-9]|[.:][0-9]|[eE][+-]?[0-9])"
)
_UNIT = r"[ \t]{0,2}(?:s|secs?|seconds?|秒)?"
_DASH_OR_TO = r"-{1,2}>?|[\u2010-\u2015\u2192\u2212~]|\.{2,3}|to\b|until\b|till\b|到|至"
_NAMED_END = (
    r"[\s,;]{0,40}(?:and\s{1,2})?(?:it\s{1,2})?"
    r"[\"']?(?:ends?|stops?|ending)(?:[ _-]?(?:time|s))?[\"']?(?:\s{0,2}[:=]|\s{1,2}at\b)?"
)
# Between start and end: "3 s to 8", "3.0 - 8.0", "<3> - <8>", "start: 3, end: 8", "starts at 3 and ends at 8".
_FROM_TO = re.compile(
    rf"{_UNIT}[\])>\"']?[ \t]{{0,4}}(?:{_DASH_OR_TO}|{_NAMED_END})[ \t]{{0,4}}[\[(<\"']?\s{{0,2}}", re.IGNORECASE
)
_COMMA_BETWEEN = re.compile(rf"{_UNIT}\s{{0,4}},\s{{0,4}}", re.IGNORECASE)
_AND = re.compile(rf"{_UNIT}\s{{1,4}}and\s{{1,4}}", re.IGNORECASE)
_CLOSES = re.compile(rf"{_UNIT}\s{{0,4}}[\])]", re.IGNORECASE)
LONGEST_BETWEEN = 60
_END_FIRST = re.compile(r"\bend[a-z_]{0,9}[\"']\s{0,4}:\s{0,4}[\"']?[0-9:.]{1,20}[\"']?\s{0,4},\s{0,40}[\"']start")
_FLAT_LIST = re.compile(r"[0-9.:]{1,40}(?:\s{0,4},\s{0,4}[0-9.:]{1,40})*")  # 3, 8, 9, 12
_LIST_NUMBER = re.compile(r"^\s{0,8}\(?([0-9]{1,3})[.)]\s{1,4}(?=\S)")
# "(1) 3, 8", "start 3 s, duration 5 s", "3 s (5 s)" and "3 +5".
_MAY_BE_NO_TIME = re.compile(
    r"\([0-9]{1,3}\)\s{0,2}\S|\b(?:duration|length|lasts?|lasting|long|for)\b|(?<![0-9eE])\+[0-9]"
    rf"|[0-9]{_UNIT}[ \t]{{1,2}}\([0-9.]{{1,12}}{_UNIT}\)",
    re.IGNORECASE,
)


def box_iou(completions: list[str], solution: list[str], *, units: Units = "same", **columns: Any) -> list[float]:
    """Mean intersection over union of the answer's boxes and the solution's, matched one to one for the best sum.

    Boxes are ``[x1, y1, x2, y2]`` or ``(x1,y1),(x2,y2)``, anywhere in the answer (JSON too). Each missed and each
    extra box counts as one of 0. Answer and solution use the same units. With ``units="thousandths"`` the answer's are
    0..1000, and the solution's are pixels of an image with the record's ``width`` and ``height``.
    """
    return _matched("box_iou", 0.0, completions, solution, units, columns)


def box_giou(completions: list[str], solution: list[str], *, units: Units = "same", **columns: Any) -> list[float]:
    """Mean generalized intersection over union of the answer's boxes and the solution's, best matched, -1 to 1.

    As ``box_iou``, but boxes that do not touch score less than 0 the farther they are apart, and each missed and each
    extra box counts as one of -1. arXiv:1902.09630.
    """
    return _matched("generalized_box_iou", -1.0, completions, solution, units, columns)


def check_boxes(solution: str, fields: Mapping[str, Any], units: BoxUnits = "same") -> str | None:
    """The reason why a record cannot be scored by boxes: it has none, or lacks the size of its image. Else None."""
    text = solution_of(solution)
    corners = _corners_in(text)
    if not len(corners) or not (corners[:, 0] < corners[:, 1]).all():
        return f"the solution must hold boxes [x1, y1, x2, y2] with x1 < x2 and y1 < y2, got {solution[:80]!r}"
    # The boxes that are read would be all of the solution, and the others would be lost without a word.
    other = _OTHER_BOX.search(_BOX.sub(" ", text))
    if other is not None:
        return f"the solution must hold boxes [x1, y1, x2, y2] alone, and has {other[0][:80]!r} too"
    size: list[Any] = [fields.get("width"), fields.get("height")]
    if units == "thousandths" and not all(type(side) in (int, float) and side > 0 for side in size):
        return f"units='thousandths' needs the fields 'width' and 'height' in pixels, got {size}"
    return None


def _matched(
    measure: str,
    worst: float,
    completions: list[str],
    solution: list[str],
    units: BoxUnits,
    columns: Mapping[str, Any],
) -> list[float]:
    """The mean measure of the best matched boxes of each answer. Missed and extra boxes count as ``worst``."""
    import numpy as np

    scores = []
    for row, (text, truth) in enumerate(zip(completions, solution, strict=True)):
        named = boxes_in(answer_of(text) or "")
        true = boxes_in(solution_of(truth))
        if not len(named):
            scores.append(worst)
            continue
        if units == "thousandths":
            width = columns["width"][row]
            height = columns["height"][row]
            named = named * np.array([width, height, width, height], dtype=float) / 1000
        quality = geometry(measure, named, true)
        rows, matches = require("scipy.optimize", "rewards").linear_sum_assignment(-quality)
        most = max(len(named), len(true))
        scores.append(float((quality[rows, matches].sum() + worst * (most - len(rows))) / most))
    return scores


def boxes_in(text: str) -> np.ndarray:
    """The boxes of a text, n x 4. Their corners may be in either order.

    Example:
        >>> boxes_in('[{"bbox_2d": [10, 20, 30, 40]}] (5,5),(1,2)').tolist()
        [[10.0, 20.0, 30.0, 40.0], [1.0, 2.0, 5.0, 5.0]]
    """
    import numpy as np

    corners = _corners_in(text)
    return np.concatenate([corners.min(axis=1), corners.max(axis=1)], axis=1)


def _corners_in(text: str) -> np.ndarray:
    """The two corners of each box of a text as it gives them, n x 2 x 2."""
    import numpy as np

    found = [[float(side) for side in sides if side] for sides in _BOX.findall(text)]
    return np.array(found, dtype=float).reshape(-1, 2, 2)


def geometry(measure: str, named: np.ndarray, true: np.ndarray) -> np.ndarray:
    """A measure of ``torchvision.ops`` for each pair of boxes, n x 4 and m x 4: n x m.

    Equal boxes have 1, whatever their area. Other pairs of boxes without area, whose measure would be 0 / 0, have 0.
    """
    import torch
    from torchvision import ops

    left = torch.from_numpy(named)
    right = torch.from_numpy(true)
    values = getattr(ops, measure)(left, right).nan_to_num(0.0)
    equal = (left[:, None] == right[None]).all(dim=2)
    return values.masked_fill(equal, 1.0).numpy()


def temporal_iou(
    completions: list[str],
    solution: list[str],
    duration: list[Any] | None = None,
    *,
    boundary: Boundary = False,
    **columns: Any,
) -> list[float]:
    """Intersection over union of the seconds that answer and solution name.

    Times are read in pairs, start and end, as seconds ("12.5 to 20"), as mm:ss or hh:mm:ss ("0:12 - 0:20"), or in
    units ("1 min 20 s to 2 min", "1m20s", "500 ms"). Several pairs are united. An odd number of times, or none,
    scores 0. So do decimal commas, numbers of frames and per cent, which are refused in a solution. A span that ends
    before it starts is empty.
    With ``boundary`` the value is multiplied by (1 - start error / duration)(1 - end error / duration), of the first
    start and the last end, with the record's field ``duration`` in seconds (Time-R1, arXiv:2503.13377).
    """
    scores = []
    rows = zip(pairs(completions, solution), duration or [None] * len(completions), strict=True)
    for (answer, truth), length in rows:
        named = united(spans_in(answer or ""))
        true = united(spans_in(truth))
        if not named or not true:
            scores.append(0.0)
            continue
        value = span_iou(named, true)
        if boundary:
            seconds = given_duration(length)
            if not seconds:
                raise ValueError("temporal_iou(boundary=True) needs the field 'duration' in every record")
            for ours, theirs in ((named[0][0], true[0][0]), (named[-1][1], true[-1][1])):
                value *= max(0.0, 1 - abs(ours - theirs) / seconds)
        scores.append(value)
    return scores


def check_spans(solution: str, fields: Mapping[str, Any], boundary: bool = False) -> str | None:
    """The reason why a record cannot be scored by spans: it names none, or ``duration`` is missing. Else None."""
    text = solution_of(solution)
    if in_plain_seconds(text) is None:
        return (
            "the solution must name times as seconds with a decimal point, 0:12 or 1 min 20 s, and not with decimal "
            f"commas, as frames or in per cent, got {solution[:80]!r}"
        )
    if not any(end > start for start, end in spans_in(text)):
        return (
            'the solution must name a span like "3.5 to 8" or "0:12 - 0:20", and no other numbers, '
            f"got {solution[:80]!r}"
        )
    if not boundary:
        return None
    duration = fields.get("duration")
    try:
        known = given_duration(duration)
    except ValueError:
        known = None
    if not known:
        return f"boundary=True needs the field 'duration', the clip's length in seconds, got {duration!r}"
    return None


def spans_in(text: str) -> list[Span]:
    """The times of a text in pairs, in seconds, or no pair where their number is odd or what they mean is unclear.

    Where some numbers are marked as start and end (``3 to 8``, ``3-8``, ``[3, 8]``, ``start 3, end 8``), all have to
    be: the 2 of "the 2 men jump from 3 to 8" is no time. Numbers of a list, 1 to n in front of its lines, are left out.

    Example:
        >>> spans_in("from 1:02 to 70.5 s"), spans_in("1-2 min"), spans_in("1. 3 to 8\\n2. 9 to 12")
        ([(62.0, 70.5)], [(60.0, 120.0)], [(3.0, 8.0), (9.0, 12.0)])
        >>> spans_in("(1) 3 to 8, (2) 9 to 12")
        []
    """
    text = _without_list_numbers(in_plain_seconds(text) or "")
    found = list(_TIME.finditer(text))
    times = [_seconds_of_match(match) for match in found]
    starts: list[int] = []  # of marked pairs, the places of their first times
    # A time belongs to one pair: in "3 to 8 - 12" the 8 ends the first one, and begins none.
    for i, (first, second) in enumerate(pairwise(found)):
        follows_another = bool(starts) and starts[-1] == i - 1
        if not follows_another and _is_marked_pair(text, first, second):
            starts.append(i)
    has_others = 0 < 2 * len(starts) < len(found)  # beside marked pairs, numbers that may be anything
    # A pair in each line, or between semicolons: a table has more columns.
    if not starts and len(found) > 2 and not _FLAT_LIST.fullmatch(text.strip("[]() \n")):
        parts = re.split(r"[;\n]", text)
        has_others = any(len(_TIME.findall(part)) not in (0, 2) for part in parts)
    is_unclear = has_others or (not starts and _MAY_BE_NO_TIME.search(text))
    if is_unclear or len(found) % 2 or None in times:
        return []
    seconds = [time for time in times if time is not None]
    pairs = list(zip(seconds[::2], seconds[1::2], strict=True))
    # JSON with its keys in the order of the alphabet: {"end": 8, "start": 3}.
    return [(start, end) for end, start in pairs] if _END_FIRST.search(text) else pairs


def _without_list_numbers(text: str) -> str:
    """A text without the numbers of a list, if they are 1, 2, 3 ... in front of all lines with numbers."""
    lines = text.split("\n")
    marks = [_LIST_NUMBER.match(line) for line in lines if re.search("[0-9]", line)]
    numbers = [int(mark[1]) for mark in marks if mark is not None]
    if numbers != list(range(1, len(marks) + 1)):
        return text
    return "\n".join(_LIST_NUMBER.sub("", line) for line in lines)


def _seconds_of_match(match: re.Match[str]) -> float | None:
    first, second, seconds = match.groups()
    # hh:mm:ss has two numbers before the seconds, mm:ss has one.
    hours, minutes = (first, second) if second else ("", first)
    return seconds_of_clock(hours, minutes, seconds)


def _is_marked_pair(text: str, first: re.Match[str], second: re.Match[str]) -> bool:
    """Whether two neighbouring times are start and end by the words, the dash or the brackets around them."""
    between = text[first.end() : second.start()]
    if len(between) > LONGEST_BETWEEN:
        return False
    if _FROM_TO.fullmatch(between):
        return True
    before = text[max(0, first.start() - 12) : first.start()].rstrip()
    if before.casefold().endswith("between") and _AND.fullmatch(between):
        return True
    after = text[second.end() : second.end() + 12]
    return before.endswith(("[", "(")) and bool(_COMMA_BETWEEN.fullmatch(between) and _CLOSES.match(after))


def united(spans: list[Span]) -> list[Span]:
    """The same seconds as spans in order that do not touch, without empty ones."""
    result: list[Span] = []
    for start, end in sorted(span for span in spans if span[1] > span[0]):
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(result[-1][1], end))
        else:
            result.append((start, end))
    return result


def span_iou(one: list[Span], other: list[Span]) -> float:
    """Intersection over union of the seconds of united spans, of which one has some."""
    common = 0.0
    for start, end in one:
        for other_start, other_end in other:
            common += max(0.0, min(end, other_end) - max(start, other_start))
    length = sum(end - start for start, end in one)
    other_length = sum(end - start for start, end in other)
    return common / (length + other_length - common)


def temporal_contrast(
    ordered: Sequence[float | None], shuffled: Sequence[float | None], margin: float, bonus: float
) -> list[float | None]:
    """The bonus for each correct completion of a video prompt whose frames had to be in order, and 0 for the others.

    The prompt is answered a few more times with its frames in random order. The bonus is given where the ordered
    group's mean of that reward exceeds the shuffled group's by more than the margin. It is switched on by
    ``--temporal_contrast``, not by ``--reward_funcs``. After T-GRPO (arXiv:2503.21776), which compares by a factor.

    Args:
        ordered: N values of the correctness function, 1 being correct, None where it does not apply.
        shuffled: P means of the shuffled groups, None for prompts without video.

    Returns:
        N values, None for prompts without video and where the correctness function does not apply.

    Example:
        >>> temporal_contrast([1.0, 0.5, 1.0, 0.0], [0.25], margin=0.0, bonus=0.3)
        [0.3, 0.0, 0.3, 0.0]
    """
    size = len(ordered) // max(1, len(shuffled))
    values: list[float | None] = []
    for p, other in enumerate(shuffled):
        group = ordered[p * size : (p + 1) * size]
        known = [value for value in group if value is not None]
        if other is None or not known:
            values += [None] * size
            continue
        beats = sum(known) / len(known) - other > margin
        values += [None if value is None else bonus * (beats and value >= 1) for value in group]
    return values
