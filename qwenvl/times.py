"""Times as people and models write them, made one notation: seconds, mm:ss or hh:mm:ss, with a decimal point."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal

_NUMBER = r"([0-9]{1,7}(?:\.[0-9]{1,30})?)"
_HOURS = r"(?:hours?|hrs?|h|小时|小時|時間)(?![a-z])"
_MINUTES = r"(?:minutes?|mins?|m|分钟|分鐘|分)(?![a-z])"
_SECONDS = r"(?:seconds?|secs?|s|秒)(?![a-z])"
_MILLISECONDS = r"(?:milliseconds?|msecs?|ms|毫秒)(?![a-z])"
_UNIT_TO_CONVERT = rf"(?:{_HOURS}|{_MINUTES}|{_MILLISECONDS})"  # to seconds
_AND = r"\s{0,2}(?:[,:]|and\b)?\s{0,2}"
# Not in a word or a longer number. Two dots or three stand between times, and a comma behind a unit does.
_BEGINS = r"(?<![a-z0-9_:])(?<!(?<!\.)\.)(?<![0-9],)"
# A dash at the beginning of a line belongs to a list.
_TO = (
    r"(?:[^\S\n]{0,4}(?:-{1,2}>?|[\u2010-\u2015\u2192\u2212~]|\.{2,3})"
    r"|\s{0,4}(?:(?:to|until|till|through)\b|到|至))\s{0,4}"
    r"(?:(?:about|around|approximately)\s{1,4})?"
)

_SHARED_UNIT = re.compile(
    rf"{_BEGINS}{_NUMBER}(?={_TO}{_NUMBER}\s{{0,2}}({_UNIT_TO_CONVERT}))", re.IGNORECASE
)
# "Between 1 and 2 minutes". Elsewhere "and" parts two spans: "10 to 20 and 1 min to 2 min".
_BETWEEN = re.compile(
    rf"(between\s{{1,4}}){_NUMBER}(?=\s{{1,4}}and\s{{1,4}}{_NUMBER}\s{{0,2}}({_UNIT_TO_CONVERT}))",
    re.IGNORECASE,
)
# A number behind a unit that has none of its own, and no word behind it: 1 min 30, 1 h 30.
_WITHOUT_UNIT = (
    r"([0-9]{1,2}(?:\.[0-9]{1,30})?)"
    r"(?=\s{0,4}(?:\Z|\.(?![0-9])|[\n,;)\]>~\u2010-\u2015\u2192-]|(?:to|until|till|and)\b|[到至]))"
)
_BARE_SECONDS = re.compile(rf"{_BEGINS}({_NUMBER}\s{{0,2}}{_MINUTES})\s{{1,2}}{_WITHOUT_UNIT}", re.IGNORECASE)
_BARE_MINUTES = re.compile(rf"[0-9]\s{{0,2}}{_HOURS}\s{{0,2}}{_WITHOUT_UNIT}", re.IGNORECASE)
# 1 h 2 min 3 s, without hours or without minutes. Seconds alone are plain already. In 1m20 they have no unit.
_UNITS = (
    rf"{_BEGINS}(?:{_NUMBER}\s{{0,2}}{_HOURS}(?:{_AND}{_NUMBER}\s{{0,2}}{_MINUTES})?|{_NUMBER}\s{{0,2}}{_MINUTES})"
    rf"(?:{_AND}{_NUMBER}\s{{0,2}}{_SECONDS}|([0-9]{{1,2}}(?:\.[0-9]{{1,30}})?)(?![0-9a-z]|[.:][0-9]))?"
)
_IN_UNITS = re.compile(rf"{_UNITS}(?!:?[0-9])", re.IGNORECASE)
_UNITS_TO_NUMBER = re.compile(rf"{_UNITS}{_TO}{_NUMBER}(?![.:]?[0-9]|\s{{0,2}}{_UNIT_TO_CONVERT})", re.IGNORECASE)
_CLOCK_TO_NUMBER = re.compile(
    rf"{_BEGINS}(?:([0-9]{{1,3}}):)?([0-9]{{1,3}}):([0-9]{{1,2}}(?:\.[0-9]{{1,30}})?){_TO}{_NUMBER}"
    rf"(?![.:]?[0-9]|\s{{0,2}}{_UNIT_TO_CONVERT})",
    re.IGNORECASE,
)
_CLOCK_IN_MINUTES = re.compile(
    rf"{_BEGINS}([0-9]{{1,3}}:[0-9]{{2}}(?:\.[0-9]{{1,30}})?)\s{{0,2}}{_MINUTES}", re.IGNORECASE
)
_IN_PRIMES = re.compile(rf"{_BEGINS}{_NUMBER}\s?['\u2032]\s?{_NUMBER}(?:\"|\u2033|'')?")  # 1'20"
_IN_MILLISECONDS = re.compile(rf"{_BEGINS}{_NUMBER}\s{{0,2}}{_MILLISECONDS}", re.IGNORECASE)
_COMMA_OF_SUBTITLES = re.compile(r"(?<=:[0-9]{2}),(?=[0-9]{3}(?![0-9:.]))")  # 00:01:20,500
_ABBREVIATED = re.compile(r"(?<=[0-9 ])((?:min|sec|hr|hour|minute|second)s?)\.(?=\s)", re.IGNORECASE)  # 2 min. 5 sec.
# Units that are left when the others are seconds: "frames: 12-30", "minute 1 to minute 2", "[1, 2] min", and in JSON
# {"start_frame": 12}.
_OTHER_UNIT = rf"(?:frames?|percent(?:age)?|per\scent|pct|%|{_UNIT_TO_CONVERT})"
_LEFT_UNIT = re.compile(
    # In front of a number, with a word or signs between them.
    rf"(?<![a-z]){_OTHER_UNIT}[)\]]?(?:[\s_-]{{0,2}}(?:numbers?|nos?\.?|nr\.?|index|range))?[\s:#=_\"']{{0,6}}[\[(<]?[0-9]"
    # Behind a number. "In the frame from 3 to 8" has seconds, and "frames from 3 to 8" has none.
    rf"|[0-9][\])>]?\s{{0,4}}(?:in\s|video\s)?[(\[]?(?:{_OTHER_UNIT}(?![a-z])|[帧幀])"
    r"|(?<![a-z])frames\sfrom\s[0-9]|第\s?[0-9]+\s?[帧幀]",
    re.IGNORECASE,
)
_UNCLEAR = re.compile(
    # Decimal commas behind minutes, and of numbers with separators of thousands: 0:12,5 and 1.234,5.
    r":[0-9]{2},[0-9]{1,2}(?![0-9:.])|[0-9]\.[0-9]{3},[0-9]"
    # Other separators of thousands: 1 234.5 - 1 250, and 1'234 and 1_234.
    rf"|[0-9]\s[0-9]{{3}}(?:\.[0-9]{{1,30}})?{_TO}[0-9]{{1,3}}\s[0-9]{{3}}(?![0-9])"
    r"|[0-9]\s?['\u2032\u2019]\s?[0-9]|[0-9]_[0-9]"
    # Hours and minutes: 1:20 h.
    rf"|:[0-9]{{2}}\s{{0,2}}{_HOURS}"
    # Numbers of something else: 1½, 3rd, 5k. A bare "to" may touch its numbers: 3to8.
    r"|[\u00bc-\u00be\u2150-\u215e]"
    # A negative number: -5 to 8, and not 3 -8.
    r"|(?:\A|[\[(<,;:\n])\s{0,2}-[0-9]"
    r"|[0-9](?!(?:s|secs?|seconds?|to)(?![a-z])|e[-+]?[0-9])[a-z]",
    re.IGNORECASE,
)
# In 3,5 a comma may separate numbers, or begin decimals, or thousands. In 3.5,8 and in [3,5] it separates.
_UNCLEAR_COMMA = re.compile(r"(?<![0-9.])[0-9]{1,7},[0-9]")
_BRACKETED_PAIR = re.compile(rf"[\[(]\s{{0,4}}{_NUMBER},{_NUMBER}\s{{0,4}}[\])]")
_ANY_NUMBER = re.compile(r"[0-9]+(?::[0-9]+)*(?:\.[0-9]+)?")


def in_plain_seconds(text: str) -> str | None:
    """A text with its hours, minutes and milliseconds as seconds, or None where it may mean other times than it says.

    Unclear are numbers with decimal commas beside others with commas, with separators of thousands, numbers of frames,
    per cent, minutes without a unit behind hours, and ranges that would go back because one of their times has no
    minutes: "1 min 5-10 s", "1:05-10", "50 to 2 min".

    Example:
        >>> in_plain_seconds("1m20s to 1 min 40 s"), in_plain_seconds("1:02 to 70.5 s"), in_plain_seconds("500 ms")
        ('80 to 100', '1:02 to 70.5 s', '0.5')
        >>> in_plain_seconds("3,5 to 8,0"), in_plain_seconds("10 % to 20 %"), in_plain_seconds("[3.5,8]")
        (None, None, '[3.5,8]')
    """
    text = _COMMA_OF_SUBTITLES.sub(".", text)
    text = _ABBREVIATED.sub(r"\1", text)
    text = _CLOCK_IN_MINUTES.sub(r"\1", text)  # 1:20 min is 1:20
    if _BARE_MINUTES.search(text):
        return None
    text = _BARE_SECONDS.sub(r"\1 \3 s", text)
    if _has_ranges_back(text):
        return None
    text = _SHARED_UNIT.sub(r"\1 \3", text)  # 1-2 min is from 1 min
    text = _BETWEEN.sub(r"\1\2 \4", text)
    text = _IN_UNITS.sub(_seconds_of_units, text)
    text = _IN_PRIMES.sub(_seconds_of_primes, text)
    text = _IN_MILLISECONDS.sub(_seconds_of_milliseconds, text)
    is_unclear = _UNCLEAR.search(text) or _LEFT_UNIT.search(text) or _has_unclear_commas(text)
    return None if is_unclear else text


def _has_ranges_back(text: str) -> bool:
    """Whether a range of times would end before it begins, of which one has minutes or hours and the other has none."""
    for found in _SHARED_UNIT.finditer(text):  # 50 to 2 min: the 50 may be seconds
        if Decimal(found[1]) > Decimal(found[2]):
            return True
    for found in _UNITS_TO_NUMBER.finditer(text):  # 1 min 5-10 s: the 10 may be those of the same minute
        *start, end = found.groups()
        if _seconds_in(start) > Decimal(end):
            return True
    for found in _CLOCK_TO_NUMBER.finditer(text):  # 1:05-10
        hours, minutes, seconds, end = found.groups()
        start_of_clock = seconds_of_clock(hours, minutes, seconds)
        if start_of_clock is not None and start_of_clock > float(end):
            return True
    return False


def _has_unclear_commas(text: str) -> bool:
    """Whether commas of a text may be something else than separators: it has more numbers than 3,5 alone."""
    outside = _BRACKETED_PAIR.sub(" ", text)
    return _UNCLEAR_COMMA.search(outside) is not None and len(_ANY_NUMBER.findall(outside)) != 2


def _seconds_of_units(found: re.Match[str]) -> str:
    return _written(_seconds_in(found.groups()))


def _seconds_in(groups: Sequence[str | None]) -> Decimal:
    """The seconds of the groups of ``_UNITS``."""
    hours, minutes_behind_hours, minutes, seconds, bare_seconds = (Decimal(part or 0) for part in groups)
    return 3600 * hours + 60 * (minutes_behind_hours + minutes) + seconds + bare_seconds


def _seconds_of_primes(found: re.Match[str]) -> str:
    seconds = Decimal(found[2])
    return found[0] if seconds >= 60 else _written(60 * Decimal(found[1]) + seconds)


def _seconds_of_milliseconds(found: re.Match[str]) -> str:
    return _written(Decimal(found[1]) / 1000)


def _written(seconds: Decimal) -> str:
    """Seconds as a decimal number without an exponent."""
    return f"{seconds.normalize():f}"


def seconds_of_clock(hours: str | None, minutes: str | None, seconds: str) -> float | None:
    """The seconds of a time such as 1:02:03.5, of which hours and minutes may be missing.

    None where minutes or seconds behind a colon have three digits or reach 60: 0:01:500 counts frames or milliseconds,
    and is not 8 minutes.

    Example:
        >>> seconds_of_clock(None, "1", "02.5"), seconds_of_clock("0", "01", "500")
        (62.5, None)
    """
    behind_colons = [seconds] if minutes else []
    if hours:
        behind_colons.append(minutes or "0")
    for part in behind_colons:
        whole = part.partition(".")[0]
        if len(whole) > 2 or int(whole) >= 60:
            return None
    return 3600 * int(hours or 0) + 60 * int(minutes or 0) + float(seconds)
