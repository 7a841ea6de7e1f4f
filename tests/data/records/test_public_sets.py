"""The flags and the lines of Python of docs/public_sets.md make records of rows as the public sets have them.

Keys, nesting and spelling are those of the sets. What is asked and answered is made up.
"""

import csv
import json
import re
from pathlib import Path

import pytest

from qwenvl.data.records.catalog import DatasetSource
from qwenvl.data.records.parse import ReadOptions, parse_columns
from qwenvl.data.records.record_file import RecordFile
from qwenvl.rewards import build_rubric

PAGE = (Path(__file__).parents[3] / "docs" / "public_sets.md").read_text(encoding="utf-8")
FIVE = {f"a{n}": text for n, text in enumerate(("run.", "sit.", "clap.", "sing.", "wave."))}
LETTERED = ["(A) a cat", "(B) a dog", "(C) a fox"]


def flags_of(name):
    """The ``--columns`` of the line of a set in the table of the page."""
    [line] = [line for line in PAGE.splitlines() if line.startswith(f"| {name}")]
    found = re.search(r'--columns (?:"([^"]+)"|([^\s`"]+))', line)
    return parse_columns(found[1] or found[2]) if found else {}


def records_of(path, folder, columns=None):
    source = DatasetSource(path.name, path, folder)
    records = list(RecordFile(source, seed=0, options=ReadOptions(columns=columns or {})))
    rubric = build_rubric(["by_problem_type"])
    assert [rubric.check_record(record) for record in records] == [None] * len(records)
    return records


def answers(records):
    return [record.solution.removeprefix("<answer>").removesuffix("</answer>") for record in records]


TABLE = {
    "TVGBench": (
        [
            {
                "path": "./videos/KWZSA.mp4",
                "question": "a person was sitting at a table.",
                "answer": "13.4-28.1",
                "start": None,
                "end": None,
                "duration": 30.12,
                "question_type": "video temporal grounding",
                "source": "./annotations/Charades_sta_test.json",
                "dataset_name": "charades",
                "qsemtype": "Human Pose",
                "bins": {"videolen": 1},
            },
            {
                "path": "./videos/EXYY8.mp4",
                "question": "person closing the door behind them.",
                "answer": "14.1-20.0",
                "duration": 19.29,
                "question_type": "video temporal grounding",
            },
        ],
        ["13.4 to 28.1", "14.1 to 19.29"],
        "videos/KWZSA.mp4",
    ),
    "Time-R1": (
        [
            {
                "video": "./videos/QtWT8rxUuNk.mp4",
                "duration": 93.2932,
                "timestamp": [1.0, 4.0],
                "sentence": "A hanger on a purple background.",
                "qid": "my|cosmo|QtWT8rxUuNk|A hanger.",
                "video_start": None,
                "video_end": None,
                "difficulty": 50.0,
                "pred": [0.0, 3.0],
            },
            {
                "video": "./videos/4jujhM5qhEc_00:00:39:000_00:01:24:700.mp4",
                "duration": 45.7,
                "timestamp": [34.9, 41.9],
                "sentence": "the statue of a man on horseback",
                "video_start": 39.0,
                "video_end": 84.7,
            },
            {
                "video": "./videos/whole.mp4",
                "duration": 80.0,
                "timestamp": [0.0, 49.7],
                "sentence": "two hands holding a piece of paper",
                "video_start": 0.0,
                "video_end": 80.0,
            },
        ],
        ["1 to 4", "34.9 to 41.9", "0 to 49.7"],
        "videos/QtWT8rxUuNk.mp4",
    ),
    "TVQA": (
        [
            {**FIVE, "answer_idx": 4, "q": "What does he do?", "qid": 7, "ts": "1.21-8.49", "vid_name": "met_s06e22"},
            {**FIVE, "answer_idx": 0, "q": "And she?", "qid": 8, "ts": "1.21-8.49", "vid_name": "met_s06e22"},
        ],
        ["E", "A"],
        "met_s06e22.mkv",
    ),
    "STAR": (
        [
            {
                "question_id": "Interaction_T1_13",
                "question": "Which object was tidied up by the person?",
                "video_id": "6H78U",
                "start": 11.1,
                "end": 19.6,
                "answer": "The closet/cabinet.",
                "choices": [
                    {"choice_id": 0, "choice": "The blanket.", "choice_program": []},
                    {"choice_id": 1, "choice": "The closet/cabinet.", "choice_program": []},
                ],
                "question_program": [],
                "situations": {},
            }
        ],
        ["B"],
        "6H78U.mp4",
    ),
    "EgoSchema": (
        [
            {
                "question_idx": "0",
                "question": "What is the overarching behaviour?",
                "video_idx": "001934bb-81bd-4cd8",
                "option": ["A. C cooks.", "B. C sews.", "C. C runs.", "D. C reads.", "E. C paints."],
                "answer": answer,
            }
            for answer in ("3", "0")
        ],
        ["D", "A"],
        "001934bb-81bd-4cd8.mp4",
    ),
    "PerceptionTest": (
        [
            {
                "video_name": "video_10909",
                "question": "How many objects are there?",
                "question_id": "34",
                "options": ["1", "2", "3"],
                "answer_id": "2",
                "area": "physics",
                "reasoning": "descriptive",
                "tag": ["quantities"],
            }
        ],
        ["C"],
        "video_10909.mp4",
    ),
    "MMR-V": (
        [
            {
                "video": "demo video.mp4",
                "videoType": "Animation",
                "question": "What does it refer to?",
                "options": LETTERED,
                "correctAnswer": "(C)",
                "abilityType_L2": "Metaphor Understanding",
                "abilityType_L3": "Ontological Metaphor",
                "question_idx": 0,
            }
        ],
        ["C"],
        "demo video.mp4",
    ),
    "Video-Holmes": (
        [
            {
                "video ID": "0at001QMutY",
                "Question ID": "3_SR",
                "Question Type": "SR",
                "Question": "What is the relation between them?",
                "Options": {"A": "Friends", "B": "Brothers"},
                "Answer": "B",
                "Explanation": "They look alike.",
            }
        ],
        ["B"],
        "0at001QMutY.mp4",
    ),
    "LongVideo-Reason": (
        [
            {
                "problem": "What happens at last?\nA. A dog barks.\nB. A cat sleeps.",
                "videos": "long.mp4",
                "answer": "B",
                "reasoning": "The cat lies down.",
            }
        ],
        ["B"],
        "long.mp4",
    ),
    "Open-o3-Video": (
        [
            {
                "id": "a",
                "task": "temporal QA",
                "question": "When does the man sit down?",
                "answer": "From <t>3.2</t>s to <t>8.0</t>s",
                "video_path": "a.mp4",
                "image_path": None,
                "reasoning_process": "He sits.",
                "key_frames": [],
                "source": "tvg",
            },
            {
                "task": "temporal-spatial free-form QA",
                "question": "What does he hold?",
                "answer": "a cup",
                "video_path": "a.mp4",
                "reasoning_process": "He <obj>cup</obj><box>[1,2,3,4]</box>at<t>3</t>s.",
                "key_frames": [{"path": "kf/1.jpg", "time": 3.0}],
                "source": "STR_plm_rdcap",
            },
        ],
        ["3.2 to 8", "a cup"],
        "a.mp4",
    ),
}


@pytest.mark.parametrize("name", TABLE)
def test_a_set_of_the_table_is_read_with_its_flags(name, tmp_path):
    rows, expected, clip = TABLE[name]
    (tmp_path / clip).parent.mkdir(exist_ok=True)
    (tmp_path / clip).write_bytes(b"")
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    records = records_of(tmp_path / "rows.json", tmp_path, flags_of(name))
    assert answers(records) == expected
    assert records[0].videos == (str(tmp_path / clip),)
    assert all(len(record.videos) == 1 for record in records)


def test_the_clips_of_time_r1_are_shown_as_a_whole(tmp_path):
    (tmp_path / "rows.json").write_text(json.dumps(TABLE["Time-R1"][0]))
    whole, cut, bounded = records_of(tmp_path / "rows.json", tmp_path)
    assert whole.clip_meta == cut.clip_meta == (None,)
    assert [hint.kind for hint in cut.hints] == ["times of the film"]
    assert (bounded.clip_meta[0].video_start, bounded.clip_meta[0].video_end) == (0, 80)


def test_the_clips_of_star_are_bounded_by_their_seconds(tmp_path):
    (tmp_path / "rows.json").write_text(json.dumps(TABLE["STAR"][0]))
    [record] = records_of(tmp_path / "rows.json", tmp_path, flags_of("STAR"))
    assert (record.clip_meta[0].video_start, record.clip_meta[0].video_end) == (11.1, 19.6)


def test_next_qa_is_read_without_flags(tmp_path):
    rows = [
        {
            "video": video,
            "frame_count": 369,
            "width": 640,
            "height": 480,
            "question": "how do the two men play",
            "answer": answer,
            "qid": "6",
            "type": "CH",
            **FIVE,
        }
        for video, answer in (("4010069381", 0), ("4010069381", 3))
    ]
    (tmp_path / "4010069381.mp4").write_bytes(b"")
    with open(tmp_path / "train.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    assert flags_of("NExT-QA") == {}
    records = records_of(tmp_path / "train.csv", tmp_path)
    assert answers(records) == ["A", "D"]
    assert records[0].videos == (str(tmp_path / "4010069381.mp4"),)


# ---- the lines of Python

OBJECTS = {"ref": ["block"], "bbox": [[16, 12, 32, 24]]}
SCRIPTS = {
    "perception_test": (
        {
            "mc_question_train.json": {
                "video_10909": {
                    "metadata": {"split": "train", "video_id": "video_10909"},
                    "mc_question": [
                        {"id": 34, "question": "Where?", "options": ["left", "right"], "answer_id": 1, "tag": []},
                        {"id": 35, "question": "How many?", "options": ["2", "1", "0"], "answer_id": 0, "tag": []},
                    ],
                }
            }
        },
        ["B", "A"],
        "video_10909",
    ),
    "clevrer": (
        {
            "train.json": [
                {
                    "scene_index": 0,
                    "video_filename": "video_00000.mp4",
                    "questions": [
                        {"question_id": 0, "question": "Which colour?", "answer": "blue", "program": []},
                        {"question_id": 1, "question": "How many?", "question_type": "descriptive", "answer": "2"},
                        {
                            "question_id": 2,
                            "question": "What will happen next?",
                            "question_type": "predictive",
                            "choices": [
                                {"choice_id": 0, "choice": "They collide.", "answer": "correct"},
                                {"choice_id": 1, "choice": "The cube leaves.", "answer": "wrong"},
                                {"choice_id": 2, "choice": "The sphere stops.", "answer": "correct"},
                            ],
                        },
                        {
                            "question_id": 3,
                            "question": "What is the cause?",
                            "question_type": "explanatory",
                            "choices": [{"choice_id": 0, "choice": "The cube.", "answer": "wrong"}],
                        },
                    ],
                }
            ]
        },
        ["blue", "2", "A, C"],
        "video_00000.mp4",
    ),
    "activitynet_qa": (
        {
            "train_q.json": [{"video_name": "1QIUV7WYKXg", "question": "is he alone", "question_id": "v_1_0"}],
            "train_a.json": [{"answer": "yes", "type": 3, "question_id": "v_1_0"}],
        },
        ["yes"],
        "v_1QIUV7WYKXg",
    ),
    "next_gqa": (
        {
            "map_vid_vidorID.json": {"10001787725": "1164/10001787725"},
            "gsub_val.json": {"10001787725": {"duration": 34, "location": {"1": [[1.2, 5.8]]}, "fps": 29.97}},
            "val.csv": "video_id,question,answer,qid,type,a0,a1\n"
            "10001787725,why does he run,he is late,1,CW,he is late,fun\n",
        },
        ["A"],
        "1164/10001787725",
    ),
    "mmvu": (
        {
            "validation.json": [
                {
                    "id": "validation_0",
                    "video": "https://huggingface.co/datasets/yale-nlp/MMVU/resolve/main/videos/Art/0.mp4",
                    "youtube_url": "https://www.youtube.com/watch?v=abc",
                    "question_type": "multiple-choice",
                    "metadata": {"subject": "Art", "textbook": "", "rationale": "", "knowledge": []},
                    "question": "Which style?",
                    "choices": {"A": "Gothic", "B": "Roman", "C": "", "D": "", "E": ""},
                    "answer": "B",
                },
                {
                    "id": "validation_1",
                    "video": "https://huggingface.co/datasets/yale-nlp/MMVU/resolve/main/videos/Art/1.mp4",
                    "question_type": "open-ended",
                    "question": "Which law?",
                    "choices": {"A": "", "B": "", "C": "", "D": "", "E": ""},
                    "answer": "Hess's law",
                },
            ]
        },
        ["B", "Hess's law"],
        "videos/Art/0.mp4",
    ),
    "vsi_bench": (
        {
            "test.jsonl": '{"id": 166, "dataset": "arkitscenes", "scene_name": "47430468", "question_type": '
            '"object_counting", "question": "How many chairs?", "ground_truth": "4", "options": null}\n'
            '{"id": 167, "dataset": "scannet", "scene_name": "scene0011", "question_type": "route_planning", '
            '"question": "Which way?", "ground_truth": "B", "options": ["A. left", "B. right"]}\n'
        },
        ["4", "B"],
        "arkitscenes/47430468.mp4",
    ),
    "charades": (
        {
            "Charades_v1_classes.txt": "c092 Playing with a phone\nc147 Sitting in a chair\n",
            "Charades_v1_train.csv": "id,subject,scene,length,actions\n46GP8,HR43,Kitchen,24.83,"
            "c092 11.90 21.20;c147 0.00 12.60;c147 20.00 24.00\nN11GT,0KZ7,Stairs,18.33,\n",
        },
        ["11.9 to 21.2"],
        "46GP8",
    ),
    "objects": (
        {
            "swift.jsonl": json.dumps(
                {
                    "messages": [
                        {"role": "user", "content": "<image>Find the <ref-object>."},
                        {"role": "assistant", "content": "<bbox>"},
                    ],
                    "images": ["f1.jpg"],
                    "objects": OBJECTS,
                }
            )
        },
        ["[16, 12, 32, 24]"],
        "f1.jpg",
    ),
}


def script(name):
    found = re.search(rf"```python\n# {name}\.py\n(.*?)```", PAGE, flags=re.DOTALL)
    assert found, name
    return found[1]


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_lines_of_python_make_records(name, tmp_path, monkeypatch):
    files, expected, medium = SCRIPTS[name]
    for file, content in files.items():
        (tmp_path / file).write_text(content if isinstance(content, str) else json.dumps(content))
    monkeypatch.chdir(tmp_path)
    exec(script(name), {})
    [path] = [path for path in tmp_path.glob("*.jsonl") if path.name not in files]
    source = DatasetSource(name, path, tmp_path)
    records = list(RecordFile(source, seed=0))
    assert answers(records) == expected
    paths = (*records[0].videos, *records[0].images)
    assert paths == (str(tmp_path / medium),)
    if name == "objects":
        assert records[0].messages[0].text == "<image>Find the block."
    else:
        rubric = build_rubric(["by_problem_type"])
        assert [rubric.check_record(record) for record in records] == [None] * len(records)
    if name == "next_gqa":
        assert records[0].fields["evidence"] == [[1.2, 5.8]]
    if name == "vsi_bench":
        assert [record.fields["problem_type"] for record in records] == ["regression", "multiple choice"]


def test_rows_without_a_question_get_one(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    labels = datasets.ClassLabel(names=["pick", "place"])
    features = datasets.Features({"video": datasets.Value("string"), "label": labels})
    rows = {"video": ["a.mp4", "b.mp4"], "label": [0, 1]}
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(tmp_path / "saved")
    monkeypatch.chdir(tmp_path)
    exec(script("with_question"), {})
    records = list(RecordFile(DatasetSource("asked", tmp_path / "asked", tmp_path), seed=0))
    assert answers(records) == ["pick", "place"]
