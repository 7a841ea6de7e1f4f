"""``qwenvl label`` on tiny models: its rows are what ``qwenvl try`` answers, and corrected records train."""

import csv
import json
import math
import os
import re
import shutil
from pathlib import Path

import pytest

from qwenvl.cli import main as qwenvl
from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.data.dataset import load_dataset
from qwenvl.data.media.source import media_path, version_of
from qwenvl.data.records.framing import unframed
from qwenvl.data.records.parse import ReadOptions
from qwenvl.evaluate.questions import BLOCK
from qwenvl.inspection.label_columns import as_cell
from qwenvl.inspection.playable import is_copy
from qwenvl.rewards.table import TABLE, reading
from qwenvl.timeline import TimedStep
from qwenvl.train.grpo_trainer import GRPOTrainer
from qwenvl.types import ClipMeta, FrameInfo, LibraryCount, LibrarySize, Message, Record
from qwenvl.use.label import (
    deciding_reward,
    editor_length,
    elected,
    in_written_order,
    is_timeline,
    key_of,
    ranks_of,
    reading_of,
    rewards_of,
)
from tests.made_clips import slow_gif, write_clip
from tests.train.test_distributed import launch_ranks

QUESTION = "Which steps? (1) pick (2) insert"
FLAGS = ("--use_cpu", "--generation_max_length", "6")


@pytest.fixture(scope="module")
def made(with_model):
    """A folder with a model that has settings of its own, and clips: three whole ones and one that is none."""
    folder = with_model
    for name, frames in (("clips/2.mp4", 40), ("clips/10.mp4", 20), ("clips/more/b.mp4", 30)):
        write_clip(folder / name, frames, size=(160, 120))
    (folder / "clips" / "broken.mp4").write_bytes(b"no clip at all")
    (folder / "question.txt").write_text(QUESTION)
    return folder


@pytest.fixture
def there(made, tmp_path, monkeypatch):
    """A copy of that folder, which is the working folder."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def labelled(*argv: str, code: int = 0) -> list[dict[str, str]]:
    try:
        found = qwenvl(["label", *argv, *FLAGS])
    except SystemExit as ended:
        found = ended.code
    assert found == code
    return table("labels.csv")


def table(path: str) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return [*csv.DictReader(file)]


def tried(clip: str, capsys) -> dict:
    capsys.readouterr()
    assert qwenvl(["try", "model", clip, QUESTION, "--json", *FLAGS]) == 0
    return json.loads(capsys.readouterr().out)


def test_each_row_has_the_answer_of_try(there, capsys):
    rows = labelled("model", "clips", "--question", "question.txt")
    assert [row["id"] for row in rows] == ["clips/2.mp4", "clips/10.mp4", "clips/broken.mp4", "clips/more/b.mp4"]
    assert "4 clips, 1 of them with an error, 3 without an <answer>" in capsys.readouterr().out
    for row in rows:
        if row["error"]:
            assert row["id"] == "clips/broken.mp4" and "not a video" in row["error"] and not row["text"]
            continue
        answers = tried(row["id"], capsys)
        [seen], [answer] = answers["media"], answers["answers"]
        assert row["text"] == answer["text"] and row["finish_reason"] == answer["finish_reason"]
        assert row["times"] == " ".join(f"{time:.2f}" for time in seen["times"]) and int(row["frames"]) <= 6
        assert row["agreement"] == "" and float(row["logprob"]) < 0 < float(row["seconds"])
    assert not Path("labels/data").exists()  # no page without --page


def test_labelling_continues_and_refuses_other_settings(there, capsys, monkeypatch):
    first = labelled("model", "clips/2.mp4", "--question", QUESTION)
    rows = labelled("model", "clips/*.mp4", "clips/more", "--question", QUESTION)
    assert rows[[row["id"] for row in rows].index("clips/2.mp4")] == first[0]  # with its seconds: not asked again
    assert "continues, 1 of 4 are labelled" in capsys.readouterr().err
    lines = Path("labels/rows-0.jsonl").read_text()
    Path("labels/rows-0.jsonl").write_text(lines[: len(lines) - 9])  # the last row was cut by a crash
    write_clip(there / "clips" / "broken.mp4", 20, size=(160, 120))  # and a clip was mended
    again = labelled("model", "clips/*.mp4", "clips/more", "--question", QUESTION)
    texts = {row["id"]: row["text"] for row in again}
    assert texts | {"clips/broken.mp4": ""} == {row["id"]: row["text"] for row in rows} and texts["clips/broken.mp4"]
    monkeypatch.setattr("qwenvl.use.label.build_respondent", None)  # all are there: no model is loaded
    assert labelled("model", "clips/*.mp4", "clips/more", "--question", QUESTION) == again
    labelled("model", "clips/2.mp4", "--question", QUESTION, "--video_fps", "1", code=2)
    assert "settings.video_fps: null there, 1.0 here" in capsys.readouterr().err
    labelled("model", "clips/broken.mp4", "--question", QUESTION, "--output", "clips.csv", code=2)
    told = capsys.readouterr().err
    assert "clips: holds files that are no labels" in told and "delete" not in told


def test_a_call_that_failed_before_its_first_answer_binds_no_later_one(there, monkeypatch):
    def fails(*_, **__):
        raise ValueError("--rollout_engine: no server answers")

    with monkeypatch.context() as patched:
        patched.setattr("qwenvl.use.label.build_respondent", fails)
        labelled("model", "clips/2.mp4", "--question", QUESTION, "--video_fps", "1", code=2)
    assert labelled("model", "clips/2.mp4", "--question", QUESTION)[0]["error"] == ""
    labelled("model", "clips/2.mp4", "--question", QUESTION, "--video_fps", "1", code=2)


def test_an_image_whose_header_takes_for_ever_keeps_no_other_waiting(there, monkeypatch):
    slow_gif(there / "clips" / "slow.gif")
    monkeypatch.setattr("qwenvl.data.media.open.HEADER_SECONDS", 0.3)
    rows = labelled("model", "clips/slow.gif", "clips/2.mp4", "--question", QUESTION, "--decode_timeout", "30")
    assert {row["id"]: row["error"] for row in rows} == {"clips/slow.gif": "", "clips/2.mp4": ""}  # a clip of one frame


def test_a_clip_that_was_replaced_is_asked_about_again(there, capsys):
    words = ["model", "clips/2.mp4", "clips/10.mp4", "--question", QUESTION, "--samples", "2"]
    first = labelled(*words)
    shutil.copy("clips/more/b.mp4", "clips/2.mp4")  # another clip under the same name
    again = labelled(*words)
    assert "continues, 1 of 2 are labelled" in capsys.readouterr().err
    assert again[0]["times"] != first[0]["times"] and again[1] == first[1]


def test_the_version_of_a_medium_changes_with_its_files(tmp_path):
    folder = tmp_path / "frames"
    folder.mkdir()
    large = tmp_path / "large.mp4"
    large.write_bytes(bytes(10**6))
    (folder / "1.png").write_bytes(b"one")
    (folder / "notes.txt").write_bytes(b"x")
    names = [str(folder), str(folder / "1.png"), str(large)]
    first = [version_of(name) for name in names]
    assert first[0] == [["1.png", *first[1]]] and first[1][0] == 3 and version_of("none") == []
    for name in names[1:]:
        os.utime(name, ns=(0, 0))  # as a copy has another time
    assert [version_of(name) for name in names] == first
    (folder / "1.png").write_bytes(b"two")  # of the same size
    data = bytearray(10**6)
    for place in (0, 10**6 - 1):
        data[place] = 1
        large.write_bytes(data)
        assert version_of(names[2]) != first[2]
        data[place] = 0
    assert all(version_of(name) != before for name, before in zip(names[:2], first, strict=False))
    (folder / "2.PNG").write_bytes(b"two")
    assert len(version_of(names[0])) == 2
    os.mkfifo(tmp_path / "pipe.mp4")
    assert version_of(str(tmp_path / "pipe.mp4")) == [0]


def others_of(row: dict) -> dict:
    """The fields of the record that a row of the page is saved as, without its turns."""
    return json.loads(row["record"]["others"])


def test_a_clip_whose_name_is_not_utf8_costs_its_row(there, capsys):
    """No record could hold it: training would refuse what the page saves."""
    name = os.fsdecode(b"clips/\xe4.mp4")
    write_clip(Path(name), 20, size=(160, 120))
    rows = labelled("model", name, "clips/2.mp4", "--question", QUESTION, "--page")
    assert "2 clips, 1 of them with an error" in capsys.readouterr().out
    assert "is not UTF-8, which records are in; rename it" in rows[0]["error"] and not rows[1]["error"]


def test_a_table_that_is_there_is_never_replaced(there, capsys):
    Path("labels.csv").write_text("clip,answer\n2.mp4,1\n")
    with pytest.raises(SystemExit):
        qwenvl(["label", "model", "clips", "--question", QUESTION, *FLAGS])
    assert "--output labels.csv: exists already" in capsys.readouterr().err
    assert Path("labels.csv").read_text() == "clip,answer\n2.mp4,1\n"


def test_a_table_that_a_person_has_corrected_is_never_replaced(there, capsys):
    words = ("model", "clips/2.mp4", "--question", QUESTION)
    labelled(*words)
    table = Path("labels.csv")
    corrected = table.read_text().replace("clips/2.mp4", "CORRECTED")
    table.write_text(corrected)
    capsys.readouterr()
    for clips in ("clips/2.mp4", "clips/*.mp4"):
        labelled("model", clips, "--question", QUESTION, code=2)
        said = capsys.readouterr().err
        assert "--output labels.csv: was changed since it was written, and is not replaced; move it" in said
        assert table.read_text() == corrected
    table.rename("mine.csv")
    labelled(*words)
    assert "continues, 1 of 1 are labelled" in capsys.readouterr().err and table.is_file()


def test_a_killed_call_leaves_a_table_that_the_next_one_replaces(there, monkeypatch):
    words = ("model", "clips/2.mp4", "--question", QUESTION)
    labelled(*words)
    for clips in ("clips/more/b.mp4", "clips/*.mp4"):  # twice, with different tables
        with monkeypatch.context() as killed, pytest.raises(TypeError):
            killed.setattr("qwenvl.use.label_table.written_whole", None)  # between the hashes and the table
            qwenvl(["label", "model", clips, "--question", QUESTION, *FLAGS])
    assert len(labelled("model", "clips/*.mp4", "--question", QUESTION)) > 1


def test_labels_of_other_clips_are_counted(there, capsys):
    labelled("model", "clips/2.mp4", "--question", QUESTION)
    labelled("model", "clips/more", "--question", QUESTION)
    assert "labels: has 1 label of other clips, or of earlier versions of these" in capsys.readouterr().out


def test_a_spreadsheet_runs_no_cell(there):
    shutil.copy("clips/2.mp4", "clips/=1+1.mp4")
    (there / "@broken.mp4").write_bytes(b"no clip")
    rows = labelled("model", "clips/=1+1.mp4", "@broken.mp4", "--question", QUESTION)
    assert [row["id"] for row in rows] == ["clips/=1+1.mp4", "'@broken.mp4"] and float(rows[0]["logprob"]) < 0
    cells = ["=1+1", "+1", "-1", "-3.5e2", "-A1", "@SUM(A1)", "\t=1", "fan", "", None, -1.5, "+49 7"]
    safe = ["'=1+1", "+1", "-1", "-3.5e2", "'-A1", "'@SUM(A1)", "'\t=1", "fan", "", None, -1.5, "'+49 7"]
    assert [as_cell(cell) for cell in cells] == safe


def test_several_samples_of_a_clip_are_kept_with_their_votes(there):
    rows = labelled("model", "clips/2.mp4", "clips/10.mp4", "--question", QUESTION, "--samples", "5")
    kept = [json.loads(line) for line in Path("labels/rows-0.jsonl").read_text().splitlines()]
    for row, each in zip(rows, kept, strict=True):
        assert len(each["texts"]) == 5 and len(set(each["texts"])) > 1 and row["text"] in each["texts"]
        assert each["votes"] == [["", 5]] and float(row["agreement"]) == 0  # nothing has an answer block


LISTED = "Which steps, and when?\n(1) take the lid\n(2) insert the fan"


@pytest.mark.parametrize(
    ("prompt", "fields", "reward", "answers", "votes"),
    [
        # The times are what a timeline says, whatever reward stands first.
        (LISTED, {"timeline": []}, "accuracy", ("0.5-1.0 (1)", "0-3 (1) take the lid", "(1) 0.5-1"), [0, 1, 0]),
        (LISTED, {}, "accuracy", ("0.5-1.0 (1)", "0-3 (1)", "0.5-1 (1)", "(1)"), [0, 1, 0, 3]),
        (LISTED, {}, "segment_f1", ("0.5-1.0 (1)", "0-3 (1)"), [0, 1]),
        (LISTED, {}, "accuracy", ("(1) take the lid", "(1)", "(2)"), [0, 0, 2]),
        ("Side?\nA. left", {"problem_type": "multiple choice"}, "accuracy", ("B", "A", "B. right"), [0, 1, 0]),
        ("How long?", {"problem_type": "numerical"}, None, ("3 s", "3.0 s", "4 s"), [0, 0, 2]),
        ("What?", {"problem_type": "none known"}, None, ("A lid.", "a lid", "B"), [0, 0, 2]),
        ("When?", {"problem_type": "temporal grounding"}, None, ("3 to 8", "from 0:03 to 0:08", "4 to 8"), [0, 0, 2]),
        ("Where?", {"reward": "box_iou"}, None, ("[1, 2, 3, 4]", "(1,2),(3,4)", "[1, 2, 3, 5]"), [0, 0, 2]),
        ("Side?", {"reward": 0.5}, "accuracy", ("B", "b"), [0, 0]),  # the score of some model
        ("Side?", {"reward": "multiple_choice"}, "accuracy", ("B", "A", "B. right"), [0, 1, 0]),
        ("Side?", {"reward": ["format", "multiple_choice"]}, "accuracy", ("B", "B. right"), [0, 0]),
    ],
)
def test_votes_are_read_as_their_question_asks(prompt, fields, reward, answers, votes):
    record = Record("0", (Message("user", prompt),), "", (), (), (), fields, "d[0]")
    readings = [reading_of(answer, record, reward) for answer in answers]
    assert [readings.index(each) for each in readings] == votes


def test_the_command_of_the_page_has_the_rewards_of_its_labels():
    def row(timeline: dict | None = None, **fields) -> dict:
        return {"answer": "(1)", "timeline": timeline, "record": fields}

    unread = {"answer": "", "timeline": None, "record": {}}
    timelines = [row({"spans": []}), unread, row({"spans": []})]
    letters = [row(problem_type="multiple choice"), row(problem_type="yes or no"), unread]
    assert rewards_of(timelines) == ["--reward_funcs", "format", "timeline_iou", "segment_f1"]
    assert rewards_of(letters) == ["--reward_funcs", "format", "by_problem_type"]
    assert rewards_of([]) == rewards_of([row(), *timelines]) == rewards_of([*letters, row()]) == []


def test_labels_corrected_on_the_page_train(there, capsys):
    labelled("model", "clips", "--question", "question.txt", "--page")
    assert "with pictures of 3 of 3 clips and images" in capsys.readouterr().out
    text = Path("labels/data/run-0/page-0.js").read_text()
    shown = json.loads(text[text.index("[") : text.rindex("]") + 1])
    assert [row["id"] for row in shown][-1] == "clips/broken.mp4" and shown[-1]["error"]
    records = [row["record"] for row in shown[:-1]]  # as the page saves them
    turn = {"from": "gpt", "value": "<answer>(1) pick</answer>"}
    assert all(record["turns"] == [{"from": "human", "value": f"<video>\n{QUESTION}"}] for record in records)
    records = [{**json.loads(record["others"]), "conversations": [*record["turns"], turn]} for record in records]
    Path("elsewhere").mkdir()
    Path("elsewhere/labels.json").write_text(json.dumps(records))
    settings = {"max_steps": 1, "generation_max_length": 4, "use_cpu": True, "save_strategy": "no"}
    config = GRPOConfig("run", dataset_use="elsewhere/labels.json", allow_outside_media=True, **settings)
    assert GRPOTrainer("model", config).train().global_step == 1


def test_a_record_with_a_timeline_is_asked_about_one_and_saved_without_it(there):
    turns = [{"from": "human", "value": f"<video>\n{QUESTION}"}]
    timeline = [{"step": 1, "start": 0, "end": 1}]
    record = {"video": "clips/2.mp4", "conversations": turns, "timeline": timeline}
    rows = [{"id": "a", **record}, {"id": "b", **record, "duration": 3.5}]  # training refuses spans beyond it
    Path("rows.json").write_text(json.dumps(rows))
    labelled("model", "rows.json", "--page")
    text = Path("labels/data/run-0/page-0.js").read_text()
    shown = json.loads(text[text.index("[") : text.rindex("]") + 1])
    none = {"spans": [], "unread": None}
    assert [row["timeline"] for row in shown] == [{"length": 4.0, **none}, {"length": 3.5, **none}]
    assert all(row["record"]["turns"] == turns and "timeline" not in others_of(row) for row in shown)


def shown_rows(folder: str = "labels") -> list[dict]:
    text = Path(f"{folder}/data/run-0/page-0.js").read_text()
    return json.loads(text[text.index("[") : text.rindex("]") + 1])


@pytest.mark.parametrize(
    "old", [{"answer": "(1)"}, {"reward_model": {"ground_truth": "(1)"}}, {"solution": "(1)"}]
)
def test_labels_leave_old_solutions_behind(there, old):
    """A correction of theirs would not be what is trained on."""
    rows = [{"id": "a", "video": "clips/2.mp4", "prompt": f"<video>\n{QUESTION}", **old}]
    Path("rows.json").write_text(json.dumps(rows))
    labelled("model", "rows.json", "--page")
    [row] = shown_rows()
    corrected = {"conversations": row["record"]["turns"], "timeline": [{"step": 2, "start": 0, "end": 1}]}
    Path("labels.json").write_text(json.dumps([others_of(row) | corrected]))
    [record] = load_dataset("labels.json", allow_outside_media=True).records
    assert record.solution == "<answer>0.0-1.0 (2)</answer>"


def test_labels_leave_the_thoughts_behind_that_led_to_the_old_answer(there):
    turns = [{"from": "human", "value": f"<video>\n{QUESTION}"}, {"from": "gpt", "value": "<answer>(1)</answer>"}]
    rows = [{"id": "a", "video": "clips/2.mp4", "conversations": turns, "thinking": "It picks, so (1)."}]
    Path("rows.json").write_text(json.dumps(rows))
    labelled("model", "rows.json", "--page")
    [row] = shown_rows()
    assert "thinking" not in others_of(row)


def test_labels_of_data_sets_in_other_forms_are_read_with_the_printed_flags(there, capsys):
    """Records of two sets may have one id, and their columns have other names than those of the labels."""
    asked = [{"from": "human", "value": f"<video>\n{QUESTION}"}]
    rows = [{"id": "a", "clip": "clips/2.mp4", "talk": asked}]
    for number in (1, 2):
        Path(f"rows{number}.json").write_text(json.dumps(rows))
        rows[0]["clip"] = "clips/10.mp4"
    columns = ["--columns", "clip=video,talk=conversations"]
    labelled("model", "rows1.json,rows2.json", "--page", *columns)
    records = [json.loads(row["record"]["others"]) | {"conversations": row["record"]["turns"]} for row in shown_rows()]
    assert sorted(record["id"] for record in records) == ["a", "a (2)"]
    command = re.search(r"<pre>(.*)</pre>", Path("labels/index.html").read_text())[1]
    assert "dataset_use" in command and "columns" not in command
    for record in records:
        record["conversations"].append({"from": "gpt", "value": "<answer>(1)</answer>"})
    Path("labels.json").write_text(json.dumps(records))
    found = load_dataset("labels.json", allow_outside_media=True).records
    assert [each.messages[0].text for each in found] == [f"<video>\n{QUESTION}"] * 2


def test_a_step_whose_name_holds_a_range_is_no_span(there, monkeypatch):
    Path("steps.txt").write_text("Which?\n(1) fasten screws 1-4\n(2) close")
    told = "<answer>(1) fasten screws 1-4</answer>"
    labelled("model", "clips/2.mp4", "--question", "steps.txt", "--page")
    kept = Path("labels/rows-0.jsonl")
    row = json.loads(kept.read_text())
    kept.write_text(json.dumps(row | {"answer": "(1) fasten screws 1-4", "texts": [told], "text": told}) + "\n")
    labelled("model", "clips/2.mp4", "--question", "steps.txt", "--page")
    [shown] = shown_rows()
    assert shown["answer"] == "(1) fasten screws 1-4" and shown["timeline"] is None


@pytest.mark.parametrize(
    ("answer", "is_one"),
    [
        ("0-3 (2) insert the fan\n3-7.5 (1)", True),
        ("0-3 (2) Insert the fan; 3-7 s take the lid", True),
        ('[{"step": 2, "start": 0, "end": 3.5},\n {"step": "take the lid", "start": 3.5, "end": 7}]', True),
        ("(2) insert the fan, turning it 3-4 times", False),
        ("(1) take the lid\n(2) insert the fan, turning it 3-4 times", False),
        ("(1) take the lid\n0-3 (2) insert the fan", False),
        ("take the lid\n0-3 (2) insert the fan", False),
        ('take the lid, then {"step": 2, "start": 0, "end": 3.5}', False),
        ("0-3 (7) paint", False),
        ("(2) 20-30 years", False),
        ("", False),
    ],
)
def test_an_answer_is_a_timeline_where_it_has_nothing_but_spans_of_the_list(answer, is_one):
    """What the page shows as spans it saves as spans: whatever else an answer said would be lost."""
    assert is_timeline(answer, {1: "take the lid", 2: "insert the fan"}) == is_one


def test_spans_of_no_list_stay_a_text():
    assert not is_timeline("0-3 (2)", {})


def test_copies_for_the_player_are_no_clips(there):
    Path("clips/broken.mp4").unlink()
    write_clip(there / "clips" / "old.avi", 20, size=(160, 120), codec="mpeg4")
    words = ["--question", QUESTION, "--page", "--output", "clips/labels.csv"]
    for where in (["clips"], ["clips"], ["clips", "clips/**/*.mp4"]):
        assert qwenvl(["label", "model", *where, *words, *FLAGS]) == 0
        assert len([*Path("clips/labels/clips").glob("*.mp4")]) == 1
        names = sorted(Path(row["id"]).name for row in table("clips/labels.csv"))
        assert names == ["10.mp4", "2.mp4", "b.mp4", "old.avi"]
    [copy] = Path("clips/labels/clips").glob("*.mp4")
    shutil.copy(copy, "clips")  # a clip of a data set may have such a name
    assert is_copy(copy) and not is_copy(Path("clips", copy.name))


def test_the_page_shows_the_clips_of_its_questions_where_their_folder_was_moved(there, capsys):
    """The old place may hold other clips by then, such as the next ones of a camera."""
    words = ["--question", QUESTION, "--page"]
    labelled("model", "clips/2.mp4", *words)
    Path("day1").mkdir()
    shutil.move("clips", "day1/clips")
    write_clip(there / "clips" / "2.mp4", 10, size=(160, 120))
    labelled("model", "day1/clips/2.mp4", *words)
    assert "continues, 1 of 1 are labelled" in capsys.readouterr().err
    [row] = shown_rows()
    moved = str(there / "day1" / "clips" / "2.mp4")
    assert [clip["path"] for clip in row["clips"]] == [moved] and others_of(row)["video"] == moved
    assert row["files"] == ["../day1/clips/2.mp4"]


def test_the_page_has_all_spans_of_a_long_answer(there):
    """What it leaves out would be lost where the answer is confirmed."""
    Path("steps.txt").write_text("Which, and when?\n(1) close")
    words = ["model", "clips/2.mp4", "--question", "steps.txt", "--reward_funcs", "timeline_iou", "--page"]
    labelled(*words)
    spans = "\n".join(f"{n / 100:.2f}-{(n + 1) / 100:.2f} (1)" for n in range(300))
    kept = Path("labels/rows-0.jsonl")
    row = json.loads(kept.read_text())
    kept.write_text(json.dumps(row | {"answer": spans, "votes": [[spans, 1], ["", 1]]}) + "\n")
    labelled(*words)
    [shown] = shown_rows()
    assert len(shown["timeline"]["spans"]) == 300 == len(shown["vote_spans"][0])


@pytest.mark.parametrize("name", ["clips", "pictures", "data"])
def test_a_page_writes_and_deletes_nothing_behind_links(there, capsys, name):
    (there / "mine").mkdir()
    mine = write_clip(there / "mine" / f"{'0' * 20}.mp4", 3)
    Path("labels").mkdir()
    Path(f"labels/{name}").symlink_to(there / "mine")
    Path("labels/protocol.json").write_text("{}")
    with pytest.raises(SystemExit) as ended:
        qwenvl(["label", "model", "clips/2.mp4", "--question", QUESTION, "--page", *FLAGS])
    assert ended.value.code == 2
    assert f"labels/{name}: is a link to another place" in capsys.readouterr().err and mine.exists()


def test_the_editor_of_a_timeline_cuts_at_the_end_of_the_only_clip():
    def clip(duration: float) -> FrameInfo:
        return FrameInfo(path="a.mp4", indices=(0,), times=(0.5,), segments=None, duration=duration)

    spans = [TimedStep(start=1.0, end=9.0, number=1, name="")]
    assert editor_length([spans], [clip(2.4)]) == 2.4
    # The spans of two clips are bounded by neither of them.
    assert editor_length([spans, []], [clip(2.4), clip(3.0)]) == 9.0
    assert editor_length([], []) == 0.0


@pytest.mark.parametrize(
    ("readings", "means", "expected"),
    [
        (["a"], [-1.0], (0, 1.0)),
        (["a", "b", "b"], [-0.1, -0.3, -0.2], (2, 2 / 3)),
        (["a", "b"], [-0.2, -0.1], (1, 0.5)),
        ([None, None, "a"], [0.0, 0.0, -9.0], (2, 1 / 3)),
        ([None, None], [-0.2, -0.1], (1, 0.0)),
        ([{"A"}, {"B"}, {"A"}], [math.nan] * 3, (0, 2 / 3)),
    ],
    ids=["one answer", "a majority", "the likelier of two", "an answer before none", "no answer", "sets"],
)
def test_the_most_frequent_answer_stands_for_all(readings, means, expected):
    assert elected(readings, ranks_of(readings, readings, means)) == pytest.approx(expected)


def test_the_order_of_most_stands_for_answers_that_rewards_do_not_tell_apart():
    answers = ["(2) fan (1) lid", "(1) lid (2) fan", "(1) (2)", "(3)"]
    readings = [reading("accuracy", answer) for answer in answers]
    ranks = ranks_of(readings, list(map(in_written_order, answers)), [-0.1, -0.4, -0.3, -0.1])
    assert elected(readings, ranks) == (2, 0.75)


@pytest.mark.parametrize(
    ("reward", "one", "other", "same"),
    [
        ("accuracy", "(2) fan, (1) lid", "(1)(2)", True),
        ("accuracy", "insert", "(2)", True),
        ("accuracy", "(1)", "(1) (2)", False),
        ("action_order", "(2)(1)", "(1)(2)", False),
        ("multiple_choice", "B. a cat", "(b)", True),
        ("yes_no", "No, never", "no", True),
        ("numeric", "3.0 cubes", "3", True),
        ("by_problem_type", "3.0 cubes", "3", True),
        ("a_plugin", "The Fan.", "the  fan", True),
        (None, "3.0", "3", False),
    ],
)
def test_answers_are_the_same_where_the_reward_of_the_run_reads_the_same(reward, one, other, same):
    prompt = [{"role": "user", "content": "Which?\n(1) pick\n(2) insert"}]
    assert (reading(reward, one, prompt, "numerical") == reading(reward, other, prompt, "numerical")) is same
    assert deciding_reward(["format", f"{reward}(workers=1)", "yes_no"]) == (reward if reward in TABLE else "yes_no")
    assert deciding_reward(None) == "accuracy"


def test_the_key_of_a_question_includes_the_frame_settings_of_its_row():
    asked = (Message("user", "<video>?"),)
    key = lambda meta=None, sizes=(): key_of(
        Record("a", asked, "", ("a.mp4",), ("b.png",), (meta,), {}, "a[0]", image_sizes=sizes)
    )
    metas = [None, ClipMeta(max_frames=4), ClipMeta(count=LibraryCount(4)), ClipMeta(frame_times=(0.0, 1.0))]
    assert len({*map(key, metas), key(sizes=(LibrarySize(max_pixels=9),))}) == 5


def test_the_key_of_a_question_stays_where_its_folder_is_moved(tmp_path):
    for folder in ("before", "after", "other"):
        (tmp_path / folder / "clips" / "frames").mkdir(parents=True)
        (tmp_path / folder / "clips" / "a.mp4").write_bytes(b"a clip" if folder != "other" else b"another")
        (tmp_path / folder / "clips" / "frames" / "1.png").write_bytes(b"a frame")

    def keys(folder):
        clips = tmp_path / folder / "clips"
        frames = media_path(["frames/1.png"] * 2, "video", clips)
        asked = (Message("user", "<video>?"),)
        for path in (str(clips / "a.mp4"), str(clips / "frames"), frames):
            yield key_of(Record("a", asked, "", (path,), (), (None,), {}, "a[0]"))

    before, after, other = map(list, map(keys, ("before", "after", "other")))
    assert before == after and len(set(before)) == 3
    assert [key in before for key in other] == [False, True, True]


@pytest.mark.parametrize("template", ["Look. {prompt} Now.", "{prompt}\n{prompt}", "A: {prompt}, {prompt}, {prompt}"])
def test_a_record_is_saved_as_it_was_before_its_template(template):
    rows = [{"messages": [{"role": "user", "content": "Which?"}]}]
    plain = load_dataset(rows).record(0)
    options = ReadOptions(system="Be brief.", prompt_template=template)
    framed = load_dataset(rows, **vars(options)).record(0)
    assert framed.messages != plain.messages and unframed(framed, options) == plain


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (["model"], 2, "expected MODEL CLIPS... before the flags"),
        (["model", "clips"], 2, "clips: give --question, a text or a file; without it CLIPS is one file"),
        (["model", "none.mp4", "--question", "Which?"], 2, "none.mp4: no such file"),
        (["model", "model", "--question", "Which?"], 1, "model: no clips; expected files that end in .mp4"),
        (["model", "clips", "--question", "Which?", "--output", "x.json"], 2, "expected a path that ends in .csv"),
        (["model", "clips", "--question", "Which?", "--learning_rate", "1"], 2, "--learning_rate has no effect"),
        (["model", "clips/broken.mp4", "--question", "Which?"], 1, "none of 1 clip could be labelled; the first: "),
    ],
)
def test_wrong_arguments_of_label_end_with_one_line(there, capsys, argv, code, message):
    try:
        found = qwenvl(["label", *argv, *FLAGS])
    except SystemExit as ended:
        found = ended.code
    error = capsys.readouterr().err
    assert found == code and "Traceback" not in error and message in error.strip().splitlines()[-1], error


def test_two_processes_give_the_rows_of_one(there):
    for n in range(BLOCK):  # so that the second process has a block
        shutil.copy("clips/10.mp4", f"clips/copy{n}.mp4")
    words = ["model", "clips", "--question", QUESTION, "--samples", "2", "--video_max_frames", "4", *FLAGS]
    launch_ranks("label", 2, [*words, "--output", str(there / "two.csv")])
    labelled(*words)
    one, two = ([row | {"seconds": ""} for row in table(name)] for name in ("labels.csv", "two.csv"))
    assert one == two and len(one) == BLOCK + 4
    assert len(Path("two/rows-1.jsonl").read_text().splitlines()) == 4


def test_the_page_has_spans_steps_and_files_of_a_question_for_a_timeline(there):
    question = "Which, and when?\n(1) pick the lid\n(2) insert the fan"
    flags = ("--reward_funcs", "timeline_iou", "--samples", "2", "--page")
    labelled("model", "clips/2.mp4", "clips/more/b.mp4", "--question", question, *flags)
    text = Path("labels/data/run-0/page-0.js").read_text()
    shown = {row["id"]: row for row in json.loads(text[text.index("[") : text.rindex("]") + 1])}
    row = shown["clips/more/b.mp4"]
    assert row["steps"] == [[1, "pick the lid"], [2, "insert the fan"]] and row["files"] == ["../clips/more/b.mp4"]
    # The tiny model has said nothing that is a span.
    assert row["timeline"] == {"length": 3.0, "spans": [], "unread": None}
    assert len(row["vote_spans"]) == len(row["votes"])
    assert not Path("labels/clips").exists()  # browsers play these clips
    page = re.sub(r"</?span[^>]*>", "", Path("labels/index.html").read_text())  # around each word
    assert "--reward_funcs timeline_iou" in page  # of the command that trains on the saved labels


def test_the_page_has_the_options_of_a_question(there):
    labelled("model", "clips/2.mp4", "--question", "Which hand?", "--choices", "the left", "the right", "--page")
    text = Path("labels/data/run-0/page-0.js").read_text()
    (row,) = json.loads(text[text.index("[") : text.rindex("]") + 1])
    assert row["options"] == [["A", "the left"], ["B", "the right"]] and row["steps"] == []


def test_a_browser_keeps_answers_by_question_and_clip(there):
    """An answer to one question must not count as one to another question about the same clip."""
    keys = []
    for question, output in (("Which step?", "one.csv"), ("How many screws?", "two.csv"), ("Which step?", "three.csv")):
        words = ["model", "clips/2.mp4", "--question", question, "--page", "--output", output]
        assert qwenvl(["label", *words, *FLAGS]) == 0
        index = Path(output).with_suffix("") / "data" / "run-0" / "index.js"
        keys.append(re.search(r'"keys": ?\[([^\]]+)\]', index.read_text("utf-8"))[1])
    assert keys[0] == keys[2] != keys[1]
