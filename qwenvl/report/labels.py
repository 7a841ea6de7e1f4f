"""The page of labels: each clip with its frames and its answer, the doubtful ones first, to correct and to save."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qwenvl.report.pages import as_json, media_as_shown, strips_shown, write_pages, write_script
from qwenvl.report.write import Written, write_index
from qwenvl.types import FrameInfo

SCRIPTS = ("core.js", "group.js", "list.js", "labels.js")  # in the order that they need each other


def doubt(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """A key that sorts labels: no answer first, then little agreement, then a low log-prob, and what failed last."""
    if row["error"] is not None:
        return (True,)
    return False, bool(row["answer"]), 1.0 if row["agreement"] is None else row["agreement"], row["logprob"] or 0.0


def write_labels(folder: Path, model: str, rows: Sequence[Mapping[str, Any]]) -> Written:
    """Write ``index.html``, its scripts and its data into a folder.

    Args:
        rows: of ``Labels``, each also with its ``id``, its ``prompt`` (messages, each with ``role`` and ``text``) and
            ``record``, the row to save it as: a conversation without its last turn.
    """
    rows = sorted(rows, key=doubt)
    media = [([FrameInfo.of(clip) for clip in row.get("clips", ())], row.get("images", ())) for row in rows]
    shown = ((None, {**row, **media_as_shown(*own)}) for row, own in zip(rows, media, strict=True))
    places = write_pages(shown, 0, folder / "data" / "run-0")
    index = {
        "ids": [row["id"] for row in rows],
        "answers": [row.get("answer") for row in rows],  # None: an error
        "columns": {
            "page": [page for _, page, _ in places],
            "place": [place for _, _, place in places],
            "agreement": [row.get("agreement") for row in rows],
            "logprob": [row.get("logprob") for row in rows],
        },
    }
    write_script(folder / "data" / "run-0" / "index.js", f"report.index(0, {as_json(index)});\n")
    page = write_index(folder, "labels.html", SCRIPTS, title=f"Labels by {model}", model=model, count=len(rows))
    return Written(page, index, list(dict.fromkeys(strip for own in media for strip in strips_shown(*own))))
