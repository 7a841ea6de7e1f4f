"""Presets of files of benchmarks, as their authors or lmms-eval publish them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from qwenvl.data.errors import kind_of
from qwenvl.data.records.presets.asking import CHOICE, REGRESSION, WORDS, YES_NO, Option, options_of
from qwenvl.data.records.presets.preset import Preset, Row, list_at, text_at
from qwenvl.data.records.presets.questions import question_row

_LISTED = re.compile(r"^\(?([A-Z])[).:] ?(.+)$", re.MULTILINE)
_CAPTIONS = re.compile(r"^(?:Option|Caption) ([0-9A-Z]):? ?(.+)$", re.MULTILINE)
_REPOSITORY = re.compile(r"^https?://huggingface\.co/datasets/[^/]+/[^/]+/resolve/[^/]+/")


def _videomme(row: Row) -> Row:
    """``videoID`` names the clip."""
    return question_row(
        row,
        question=text_at(row, "question"),
        answer=row.get("answer"),
        options=options_of(row.get("options")),
        media={"videos": [text_at(row, "videoID")]},
        used=("question", "answer", "options"),
    )


def _mvbench(row: Row) -> Row:
    """The answer is the text of a candidate. Some tasks ask about a stretch of the clip, or have folders of frames."""
    span = {
        ours: row[theirs]
        for theirs, ours in (("start", "video_start"), ("end", "video_end"))
        if _is_number(row, theirs)
    }
    rate = {"frames_fps": row["fps"]} if _is_number(row, "fps") else {}
    return question_row(
        row,
        question=text_at(row, "question"),
        answer=row.get("answer"),
        options=options_of(row.get("candidates"), "candidates"),
        used=("question", "answer", "candidates", "fps", "start", "end"),
        **span,
        **rate,
    )


def _tempcompass(row: Row) -> Row:
    """Options stand in the question. Captions that a language model has to judge can't be scored."""
    if "mc_answer" in row:
        raise ValueError("mc_answer: captions are judged by a language model; leave the captioning file out")
    question, answer = text_at(row, "question"), text_at(row, "answer")
    options = [Option(letter, text.strip()) for letter, text in _LISTED.findall(question)]
    captions = [(name, text.strip()) for name, text in _CAPTIONS.findall(question)]
    if captions and not options:  # "Option 1: ..." of the task that matches captions
        options = [Option(letter, text) for letter, (_, text) in zip("ABCDEFGH", captions, strict=False)]
        answer = _CAPTIONS.sub(r"\2", answer).strip()
        question = _CAPTIONS.sub("", question).strip()
    kind = CHOICE if options else YES_NO if answer.strip().casefold() in ("yes", "no") else WORDS
    media = {"videos": [text_at(row, "video_id")]}
    used = ("question", "answer")
    return question_row(row, question=question, answer=answer, options=options, kind=kind, media=media, used=used)


def _tempcompass_entries(content: Any) -> Iterator[tuple[str, Row]]:
    """The authors' files: questions by aspect by clip."""
    for clip, aspects in content.items():
        for aspect, questions in aspects.items():
            for i, one in enumerate(questions):
                row = {"video_id": clip, "dim": aspect, "question": one["question"], "answer": one["answer"]}
                yield f"{clip}.{aspect}[{i}]", row | one


def _mmvu(row: Row) -> Row:
    """Options by letter, or open questions. The clip is an address in the repository, or a path in it."""
    is_choice = text_at(row, "question_type").replace("-", " ") == "multiple choice"
    clip = _REPOSITORY.sub("", text_at(row, "video_path" if row.get("video_path") else "video"))
    return question_row(
        row,
        question=text_at(row, "question"),
        answer=row.get("answer"),
        options=options_of(row.get("choices"), "choices") if is_choice else None,
        kind=CHOICE if is_choice else WORDS,
        media={"videos": [clip]},
        used=("question", "answer", "choices", "video_path"),
    )


def _vsi_bench(row: Row) -> Row:
    """Questions with options, or about a number. ``dataset`` and ``scene_name`` name the clip."""
    options = options_of(list_at(row, "options")) if row.get("options") is not None else None
    return question_row(
        row,
        question=text_at(row, "question"),
        answer=row.get("ground_truth"),
        options=options,
        kind=CHOICE if options else REGRESSION,
        media={"videos": [f"{text_at(row, 'dataset')}/{text_at(row, 'scene_name')}"]},
        used=("question", "ground_truth", "options"),
    )


def _is_number(row: Row, key: str) -> bool:
    value = row.get(key)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise ValueError(f"{key}: expected a number, got {kind_of(value)}")
    return value is not None


BENCHMARKS: dict[str, Preset] = {
    "videomme": Preset(
        "Video-MME",
        fits=lambda row: {"videoID", "question", "options", "answer"} <= set(row),
        row=_videomme,
        without_ending=True,
    ),
    "mvbench": Preset(
        "the tasks of MVBench",
        fits=lambda row: {"video", "question", "candidates", "answer"} <= set(row),
        row=_mvbench,
    ),
    "tempcompass": Preset(
        "TempCompass, but for its captions",
        fits=lambda row: {"video_id", "question", "dim"} <= set(row),
        row=_tempcompass,
        entries=_tempcompass_entries,
        without_ending=True,
    ),
    "mmvu": Preset(
        "MMVU",
        fits=lambda row: (
            {"question_type", "question", "choices", "answer"} <= set(row) and bool({"video", "video_path"} & set(row))
        ),
        row=_mmvu,
    ),
    "vsi-bench": Preset(
        "VSI-Bench",
        fits=lambda row: {"dataset", "scene_name", "question_type", "ground_truth"} <= set(row),
        row=_vsi_bench,
        without_ending=True,
    ),
}
