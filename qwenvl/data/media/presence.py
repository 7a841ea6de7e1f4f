"""Which media files of records are missing, asked for many at a time: a network disk takes long to answer."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

from qwenvl.data.errors import RecordError
from qwenvl.types import Record

_THREADS = 16
_PATHS = 200  # asked for by one thread in a row
_SHOWN = 5


def check_media_exist(records: Iterable[Record]) -> None:
    """Check that the media files of records are there. Addresses are taken to be.

    Raises:
        RecordError: some are not. The message names the first records that miss them.
    """
    named = [(record.where, path) for record in records for path in (*record.videos, *record.images)]
    named = [(where, path) for where, path in named if not path.startswith(("http://", "https://"))]
    gone = _missing(list(dict.fromkeys(path for _, path in named)))
    lines = [f"{where}: no such file: {path}" for where, path in named if path in gone] if gone else []
    if lines:
        shown = lines[:_SHOWN] + ["..."] * (len(lines) > _SHOWN)
        raise RecordError(
            f"{len(lines)} media files are missing; put them under the media root, or pass --on_bad_sample skip:"
            + "".join(f"\n  {line}" for line in shown)
        )


def _missing(paths: Sequence[str]) -> set[str]:
    pieces = [paths[start : start + _PATHS] for start in range(0, len(paths), _PATHS)]
    look = lambda piece: [path for path in piece if not os.path.exists(path)]
    if len(pieces) < 2:
        return set(look(paths))
    with ThreadPoolExecutor(_THREADS) as pool:
        return set(chain.from_iterable(pool.map(look, pieces)))
