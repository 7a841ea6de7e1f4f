"""Files as the authors of other formats write them, each over a folder with one small clip and one picture.

What is asked and answered is made up. Keys, nesting and spelling are those of the authors.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from qwenvl.demo.clips import encode

CLIPS = (
    *("clip.mp4", "MVBench/clip.mp4", "fFjv93ACGo8.mp4", "upload/1/0a1b-clip.mp4"),
    *("v_QOlSCBRmfWY.mkv", "3MSZA.mp4", "star/ZS9XR.mp4"),
)
FORM = "First think, within <think> </think>. Then give"
LETTER = f"{FORM} the letter of the right option within <answer> </answer>."


class Foreign(NamedTuple):
    """A file of another format.

    Attributes:
        format: the preset that reads it.
        content: what is written, as JSON unless it is text.
        prompt: of the first record.
        solution: of the first record.
        suffix: of the file's name.
        count: of its records.
    """

    format: str
    content: Any
    prompt: str
    solution: str
    suffix: str = ".json"
    count: int = 1

    def write(self, path: Path) -> Path:
        """Write the file."""
        if self.suffix == ".parquet":
            import pyarrow.parquet

            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(self.content), path)
        elif isinstance(self.content, str):
            path.write_text(self.content, encoding="utf-8")
        elif self.suffix == ".jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in self.content), encoding="utf-8")
        else:
            path.write_text(json.dumps(self.content, indent=2), encoding="utf-8")
        return path


def make_media(folder: Path) -> None:
    """The clips and the picture that the files name."""
    pictures = np.zeros((16, 56, 56, 3), np.uint8)
    for k, picture in enumerate(pictures):
        picture[20:32, 2 * k : 2 * k + 12] = (200, 120, 40)
    for name in CLIPS:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        encode(folder / name, pictures, 8, options={})
    Image.new("RGB", (64, 48), (200, 30, 30)).save(folder / "part.png")


def video_r1(
    n: int, kind: str, options: list[str], solution: str, path: str = "./MVBench/clip.mp4", **more: Any
) -> dict:
    """A row of Video-R1."""
    row = {"problem_id": n, "problem": f"What is asked {n}?", "data_type": "video", "problem_type": kind}
    row |= {"options": options, "solution": f"<answer>{solution}</answer>", "path": path, "data_source": "made up"}
    return row | more


CHOICES = ["A. moves left", "B. moves right"]
CHOICES_ASKED = f"<video>What is asked 0?\nA. moves left\nB. moves right\n{LETTER}"
CHOICE = {
    "question": "What moves?",
    "options": ["A. Apples.", "B. Squares."],
    "answer": "B",
    "video": "clip.mp4",
    "task_type": "Counting Problem",
}
VIDEO_MME = CHOICE | {"video_id": "001", "videoID": "fFjv93ACGo8", "duration": "short"}
LABELLED = [
    {"type": "timelinelabels", "value": {"ranges": [{"start": 61, "end": 90}], "timelinelabels": ["fasten it"]}},
    {"type": "timelinelabels", "value": {"ranges": [{"start": 1, "end": 60}], "timelinelabels": ["insert it"]}},
]
TASK = {
    "id": 3,
    "annotations": [{"was_cancelled": True, "result": []}, {"was_cancelled": False, "result": LABELLED}],
    "data": {"video": "/data/upload/1/0a1b-clip.mp4"},
    "meta": {},
}
SENTENCE = '<video>When does the following happen in the video? "{}"\n' + (
    f"{FORM} start and end in seconds, with the word to between them, within <answer> </answer>."
)
CHOICE_ASKED = f"<video>What moves?\nA. Apples.\nB. Squares.\n{LETTER}"

FILES: dict[str, Foreign] = {
    "video-r1, training": Foreign(
        "video-r1",
        [
            video_r1(0, "multiple choice", CHOICES, "B", process="<think>It moves to the right.</think>"),
            video_r1(1, "free-form", [], "A square moves."),
            video_r1(2, "OCR", [], "STOP", "./part.png", data_type="image"),
        ],
        CHOICES_ASKED,
        "<answer>B</answer>",
        count=3,
    ),
    "video-r1, eval_vsibench": Foreign(
        "video-r1",
        [video_r1(0, "regression", [], "2.1"), video_r1(1, "multiple choice", CHOICES, "B")],
        f"<video>What is asked 0?\n{FORM} a number within <answer> </answer>.",
        "<answer>2.1</answer>",
        count=2,
    ),
    "semicolon CSV": Foreign(
        "question-answer",
        "\ufeffquestion;answer;A;B;video\nWhich way?;B;left;right, of course;clip.mp4\n",
        f"<video>Which way?\nA. left\nB. right, of course\n{LETTER}",
        "<answer>B</answer>",
        ".csv",
    ),
    "data": Foreign(
        "question-answer",
        {
            "version": "1.0",
            "data": [{"question": "How many?", "answer": 3, "video": "clip.mp4"}],
        },
        f"<video>How many?\n{FORM} a number within <answer> </answer>.",
        "<answer>3</answer>",
    ),
    "easyr1": Foreign(
        "easyr1",
        [{"images": ["part.png"], "problem": "<image>How many lids?", "answer": "1"}],
        f"<image>How many lids?\n{FORM} a number within <answer> </answer>.",
        "<answer>1</answer>",
        ".parquet",
    ),
    "options": Foreign("question-answer", [CHOICE], CHOICE_ASKED, "<answer>B</answer>"),
    "videomme": Foreign("videomme", [VIDEO_MME], CHOICE_ASKED, "<answer>B</answer>", ".parquet"),
    "mvbench": Foreign(
        "mvbench",
        [
            {
                "video": "star/ZS9XR.mp4",
                "question": "What happens?",
                "candidates": ["It falls.", "It moves."],
                "answer": "It moves.",
                "start": 0.5,
                "end": 1.5,
            }
        ],
        f"<video>What happens?\nA. It falls.\nB. It moves.\n{LETTER}",
        "<answer>B</answer>",
    ),
    "activitynet": Foreign(
        "activitynet",
        {
            "v_QOlSCBRmfWY": {
                "duration": 2.0,
                "timestamps": [[0.28, 1.15], [1.9, 0.5]],
                "sentences": ["A square appears.", " It leaves."],
            }
        },
        SENTENCE.format("A square appears."),
        "<answer>0.28 to 1.15</answer>",
        count=2,
    ),
    "charades-sta": Foreign(
        "charades-sta",
        "3MSZA 24.3 30.4##person turn a light on.\n3MSZA 0.0 8.5##person sits down.\n",
        SENTENCE.format("person turn a light on."),
        "<answer>24.3 to 30.4</answer>",
        ".txt",
        count=2,
    ),
    "label-studio": Foreign(
        "label-studio",
        [TASK],
        f"<video>What does the video show?\n{FORM} the labels, with commas between them, within <answer> </answer>.",
        "<answer>insert it, fasten it</answer>",
    ),
}


def write_all(folder: Path) -> dict[str, Path]:
    """Write all files and their media. Returns the path of each."""
    make_media(folder)
    names: Callable[[str], str] = lambda name: name.replace(", ", "-").replace(" ", "-").replace("'", "")
    return {name: each.write(folder / (names(name) + each.suffix)) for name, each in FILES.items()}
