"""Orders the files of a folder of frames by the numbers in their names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal

Pieces = list[str | Decimal]
"""A name in pieces. A number stands at each odd place, so that two names are compared number with number."""

# A decimal number has one point. Of 1.10.2, a version, no two parts are one.
_DECIMAL = re.compile(r"((?<!\d)(?<!\d\.)\d+\.\d+(?!\.?\d)|\d+)")
_DECIMAL_COMMA = re.compile(r"(?<=\d),(?=\d)")
_SEPARATORS = re.compile(r"[\s_-]+")
_WHOLE = re.compile(r"(\d+)")


def in_order(names: Sequence[str]) -> list[str]:
    """The names of frames in the order of their numbers: frame2.jpg before frame10.jpg, 0.25.png before 0.5.png.

    A point may stand within a number, as in seconds, or between two numbers: 1.9, 1.10, 1.11. The two readings order
    most folders alike. Where they do not, points stand within the numbers if names are alike but for one number. Names
    such as 1.10 beside 1.9 count on behind the point: nobody writes seconds so.

    Raises:
        ValueError: the readings differ, and the names do not tell which is meant.
    """
    by_parts = sorted(names, key=lambda name: (_pieces(name, _WHOLE), name))
    by_value = sorted(names, key=lambda name: (_pieces(name, _DECIMAL), name))
    if by_parts == by_value or _count_behind_the_point(names):
        return by_parts
    if _differ_in_one_number(names):
        return by_value
    first, second = next(pair for pair in zip(by_parts, by_value, strict=True) if pair[0] != pair[1])
    raise ValueError(
        f"the order of {first} and {second} is not clear: the point may be within a number or between two; number the "
        "frames without points, such as 0001.png, or name them in a list, in their order"
    )


def _pieces(name: str, number: re.Pattern[str]) -> Pieces:
    """A name in pieces, with its digits as numbers.

    Capitals and separators do not matter: Frame2.jpg and frame_2.jpg stand behind frame1.jpg. A comma between digits is
    a point.
    """
    pieces: Pieces = []
    for place, piece in enumerate(number.split(_DECIMAL_COMMA.sub(".", name))):
        is_number = place % 2 == 1
        pieces.append(Decimal(piece) if is_number else _SEPARATORS.sub("", piece.casefold()))
    return pieces


def _count_behind_the_point(names: Sequence[str]) -> bool:
    """Whether the digits behind the points are counted on: they have several lengths, and some end with a zero."""
    lengths: set[int] = set()
    with_a_zero = False
    for name in names:
        for number in _DECIMAL.findall(_DECIMAL_COMMA.sub(".", name)):
            _, point, fraction = number.partition(".")
            if point:
                lengths.add(len(fraction))
                with_a_zero = with_a_zero or (len(fraction) > 1 and fraction.endswith("0"))
    return with_a_zero and len(lengths) > 1


def _differ_in_one_number(names: Sequence[str]) -> bool:
    """Whether all names are alike but for one number, and for their endings."""
    of_each = [_pieces(name.rpartition(".")[0], _DECIMAL) for name in names]
    first = of_each[0]
    if any(len(pieces) != len(first) for pieces in of_each):
        return False
    differing: set[int] = set()
    for pieces in of_each:
        differing.update(place for place, piece in enumerate(pieces) if piece != first[place])
    return len(differing) == 1 and differing.pop() % 2 == 1  # numbers stand at odd places
