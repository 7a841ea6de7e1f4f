"""A folder of clips as an engineer has it, answers as people write them, and the records made of both."""

import os
import random
import shlex
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from qwenvl.commands.data import main
from qwenvl.config.command_line import parse_args
from qwenvl.data.dataset import load_dataset
from qwenvl.data.errors import RecordError
from qwenvl.demo.clips import QUESTION, make_labelled_folder
from qwenvl.inspection.steps import answer_in, numbered, read_steps
from qwenvl.rewards.functions.actions import list_in, named_actions
from qwenvl.rewards.functions.text import unified
from qwenvl.use.label_table import LabelTable

CLIPS = ["2_insert_fan/c1.mp4", "2_insert_fan/c2.MOV", "2_insert_fan/c10.mp4", "10_close-lid/c3.mkv"]
STEPS = ("take the lid", "insert the fan, both sides", "fasten 10 mm screw", "pick-up")


@pytest.fixture
def folder(tmp_path, make_clip, monkeypatch) -> Path:
    """Four clips in two folders, one beside them, and files that are no clips."""
    for number, name in enumerate(CLIPS):
        made = make_clip(f"made-{number}.mkv", 8 + number)
        (tmp_path / "clips" / name).parent.mkdir(parents=True, exist_ok=True)
        made.rename(tmp_path / "clips" / name)
    (tmp_path / "clips/loose.mp4").write_bytes((tmp_path / "clips" / CLIPS[0]).read_bytes())
    for name in ("notes.txt", "._c1.mp4", ".hidden/c4.mp4", "2_insert_fan/photo.jpg", "README"):
        (tmp_path / "clips" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "clips" / name).write_text("x")
    (tmp_path / "steps.txt").write_text("insert fan\nclose lid\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(capsys, *argv: str) -> str:
    assert main(["from-folder", *map(str, argv)]) == 0
    return capsys.readouterr().out


def refused(capsys, *argv: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["from-folder", *map(str, argv)])
    assert ended.value.code in (1, 2)
    return capsys.readouterr().err


def records(path: str = "clips/records.json"):
    return load_dataset(path).records


def test_a_table_is_written_filled_in_and_read(folder, capsys):
    (folder / "elsewhere").mkdir()
    (folder / "clips" / "linked").symlink_to("../elsewhere")
    told = run(capsys, "clips", "--write-labels", "labels.csv")
    assert "wrote 5 clips to labels.csv" in told and "2 hidden files, left out" in told and "1 .jpg" in told
    assert "1 link to a folder, not followed: linked" in told
    lines = Path("labels.csv").read_text().splitlines()
    assert lines == ["clip,answer", *(f"{name}," for name in [*CLIPS, "loose.mp4"])]
    answers = {CLIPS[0]: "1 2", CLIPS[1]: "insert fan; close lid", CLIPS[2]: "(2) Close Lid", CLIPS[3]: ""}
    rows = [f"{clip};{answer and chr(34) + answer + chr(34)};A7" for clip, answer in answers.items()]
    Path("labels.csv").write_text("\ufeffClip;Answer;Station\n" + "\n".join(rows), encoding="utf-8")
    question = ("--question", "Which of {steps}\nhere?")
    out = run(capsys, "clips", "--answers", "labels.csv", "--steps", "steps.txt", *question)
    assert "2 without an answer, left out:\n    10_close-lid/c3.mkv\n    loose.mp4" in out
    assert "3 files that are no clips by their endings, left out: 1 .jpg, 1 .txt, 1 without an ending\n" in out
    assert "2 hidden files, left out\n" in out
    found = records()
    assert [record.id for record in found] == CLIPS[:3], "numbers in names count by their value"
    assert [Path(record.videos[0]) for record in found] == [folder / "clips" / name for name in CLIPS[:3]]
    both = "<answer>(1) insert fan (2) close lid</answer>"
    assert [record.solution for record in found] == [both, both, "<answer>(2) close lid</answer>"]
    assert found[0].fields["Station"] == "A7"
    assert found[0].messages[0].text.startswith("<video>\nWhich of\n(1) insert fan\n(2) close lid\nhere?\n")


def test_a_table_of_the_labels_of_a_model_is_read(folder, capsys):
    """As ``qwenvl label`` writes it, with paths as its command had them, and a person may have corrected it."""
    about = {"agreement": 0.5, "logprob": -0.1, "frames": 4, "times": "0.00 1.00", "seconds": 1.5}
    about |= {"finish_reason": "stop", "text": "<answer>(1)</answer>"}
    told = {CLIPS[0]: "(1) insert fan", CLIPS[1]: "2", CLIPS[3]: ""}
    rows = [{"id": "x", "clip": f"clips/{name}", "answer": answer, **about} for name, answer in told.items()]
    rows.append({"id": "x", "clip": "clips/loose.mp4", "error": "not a video"})
    LabelTable("labels.csv", folder / "labels").write(rows)
    run(capsys, "clips", "--answers", "labels.csv", "--steps", "steps.txt")
    found = records()
    assert [(record.id, record.solution) for record in found] == [
        (CLIPS[0], "<answer>(1) insert fan</answer>"),
        (CLIPS[1], "<answer>(2) close lid</answer>"),
    ]
    assert not {"text", "seconds", "frames"} & found[0].fields.keys()
    rows[0]["answer"] = "=A1"  # which a spreadsheet would run
    LabelTable("labels.csv", folder / "labels").write(rows)
    run(capsys, "clips", "--answers", "labels.csv", "--question", "Which cell?", "--overwrite")
    assert records()[0].solution == "<answer>=A1</answer>"
    rows[1]["answer"] = "0.0-3.5 (2) close lid"
    LabelTable("labels.csv", folder / "labels").write(rows)
    said = refused(capsys, "clips", "--answers", "labels.csv", "--steps", "steps.txt", "--overwrite")
    assert "labels.csv:3: the answer '0.0-3.5 (2) close lid' is a timeline: correct it on the page" in said
    other = folder / "other" / CLIPS[1]
    other.parent.mkdir(parents=True)
    other.write_bytes(b"x")
    for change, message in (
        ({"clip": f"clips/{CLIPS[1]} clips/{CLIPS[2]}"}, "names several clips"),
        ({"clip": str(other)}, f"is another file than 'clips/{CLIPS[1]}'; take the folder of that clip"),
        ({"answer": "B"}, "the answer 'B' is the letter of an option, and --question has none"),
    ):
        LabelTable("labels.csv", folder / "labels").write([rows[0], rows[1] | {"answer": "x"} | change])
        assert message in refused(capsys, "clips", "--answers", "labels.csv", "--question", "Which?", "--overwrite")
    rows[0]["answer"] = "B"
    LabelTable("labels.csv", folder / "labels").write(rows[:1])
    question = "Which?\nA. left\nB. right"
    run(capsys, "clips", "--answers", "labels.csv", "--question", question, "--overwrite")
    assert records()[0].solution == "<answer>B</answer>"


def test_records_are_written_though_nobody_reads_what_is_said_of_them(folder):
    """``| head`` closes the pipe, here before the first line."""
    (folder / "labels.csv").write_text(f"clip,answer\n{CLIPS[0]},1\n{CLIPS[1]},2\n")
    reader, writer = os.pipe()
    os.close(reader)
    call = [sys.executable, "-u", "-m", "qwenvl", "data", "from-folder", "clips", "--answers", "labels.csv"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    subprocess.run([*call, "--steps", "steps.txt", "--split", "0.5"], stdout=writer, env=environment, timeout=120)
    os.close(writer)
    assert len(records()) == len(records("clips/records_held_out.json")) == 1


def test_answers_with_tags_are_refused_with_their_lines(folder, capsys):
    answers = ("a <answer> b", "<think>x</think><answer>y</answer>", "<video>", "a<|im_end|>")
    lines = [f'{clip},"{answer}"' for clip, answer in zip(CLIPS, answers, strict=False)]
    Path("labels.csv").write_text("\n".join(["clip,answer", *lines]))
    told = refused(capsys, "clips", "--answers", "labels.csv", "--question", "What?")
    assert "labels.csv:2: the answer 'a <answer> b' holds <answer>, which has a meaning in records" in told
    assert all(f"labels.csv:{number}: " in told for number in range(2, 2 + len(lines)))


def test_odd_names_in_a_written_table_are_read_back_or_refused(folder, capsys):
    odd = [" lead.mp4", "back\\slash.mp4", 'two, "three".mp4', "=1+1.mp4", "-1.mp4"]
    for name in (*odd, "x\x1b[2J.mp4"):
        (folder / "clips" / name).write_bytes((folder / "clips/loose.mp4").read_bytes())
    run(capsys, "clips", "--write-labels", "labels.csv")
    table = Path("labels.csv").read_text()
    assert "\n'=1+1.mp4,\n" in table, "a spreadsheet would run it"
    filled = table.replace("mp4,\n", "mp4,1\n").replace('mp4",\n', 'mp4",1\n').replace("[2J.mp4,1", "[2J.mp4,")
    Path("labels.csv").write_text(filled)
    out = run(capsys, "clips", "--answers", "labels.csv", "--steps", "steps.txt")
    assert "without an answer, left out" in out and "x\ufffd[2J.mp4" in out and "\x1b" not in out
    assert {record.id for record in records()} == {*CLIPS[:1], CLIPS[2], "loose.mp4", *odd}
    assert all(Path(record.videos[0]) == folder / "clips" / record.id for record in records())

    (folder / "clips/lead.mp4").write_bytes((folder / "clips/loose.mp4").read_bytes())
    assert "can't tell ' lead.mp4' from another clip" in refused(capsys, "clips", "--write-labels", "more.csv")
    (folder / "clips/lead.mp4").unlink()
    (folder / "clips/\udcff.mp4").write_bytes(b"x")
    assert "the name of '\\udcff.mp4' is not UTF-8" in refused(capsys, "clips", "--write-labels", "more.csv")


def test_answers_in_words_need_no_steps(folder, capsys):
    Path("labels.tsv").write_text("answer\tclip\nscratch\tc1\nnone\tc2.MOV\n")
    question = "Which defect? Answer as <answer>defect</answer>."
    run(capsys, "clips", "--answers", "labels.tsv", "--question", question, "--out", "clips/defects.json")
    found = records("clips/defects.json")
    assert [(record.id, record.solution) for record in found] == [
        (CLIPS[0], "<answer>scratch</answer>"),
        (CLIPS[1], "<answer>none</answer>"),
    ]
    assert found[0].messages[0].text == "<video>\n" + question, "a question that says how to answer stays as it is"


def test_the_question_of_the_demo_is_asked_as_its_model_knows_it(tmp_path, capsys):
    make_labelled_folder(tmp_path / "mine", count=2)
    mine = [str(tmp_path / "mine" / name) for name in ("clips", "labels.csv", "steps.txt", "question.txt")]
    run(capsys, mine[0], "--answers", mine[1], "--steps", mine[2], "--question", mine[3], "--no-form")
    for record in records(f"{mine[0]}/records.json"):
        assert record.messages[0].text == f"<video>\n{QUESTION}"
    asked = ("--question", "Answer as <answer>(1)</answer>. {steps}", "--no-form", "--out", "other.json")
    assert "--no-form has no effect" in refused(capsys, mine[0], "--answers", mine[1], "--steps", mine[2], *asked)


@pytest.mark.parametrize("name", ["clips", "labels.csv", "steps.txt", "question.txt"])
def test_the_clips_of_the_demo_replace_nothing(tmp_path, name):
    (tmp_path / name).write_text("mine")
    with pytest.raises(FileExistsError, match=f"--output_dir {tmp_path}: has {name} already"):
        make_labelled_folder(tmp_path, count=2)
    assert [each.name for each in tmp_path.iterdir()] == [name] and (tmp_path / name).read_text() == "mine"


def test_every_bad_line_is_named(folder, capsys):
    Path("labels.csv").write_text(
        'clip,answer\nc4,1\nc1,3\nC1.mp4,1\nc1,2\n2_insert_fan\\c1.mp4,1\nc2,"insert fann"\nc3,1,2\nnotes.txt,1\n'
    )
    said = refused(capsys, "clips", "--answers", "labels.csv", "--steps", "steps.txt")
    for line in (
        "8 lines of the table can't be used:",
        "labels.csv:2: there is no clip 'c4'",
        "labels.csv:3: '3' is no step: expected a number from 1 to 2",
        "labels.csv:4: there is no clip 'C1.mp4'; did you mean c1.mp4 or ",
        "labels.csv:5: 2_insert_fan/c1.mp4 is at labels.csv:3 too; a clip has one answer",
        "labels.csv:7: 'insert fann' is no step: expected a number from 1 to 2",
        "did you mean insert fan?",
        "labels.csv:8: expected 2 cells as in the first line, got 3",
        "labels.csv:9: there is no clip 'notes.txt'",
    ):
        assert line in said
    assert not Path("clips/records.json").exists()


@pytest.mark.parametrize("edges", ["start,end", "start_frame,end_frame"])
def test_a_table_of_answers_with_times_is_refused(folder, capsys, edges):
    """Its times would be fields that nothing reads."""
    Path("labels.csv").write_text(f"clip,answer,{edges}\nc3,1,0,1\n")
    said = refused(capsys, "clips", "--answers", "labels.csv", "--steps", "steps.txt")
    assert "--columns answer=step" in said
    Path("labels.csv").write_text("clip,answer,start\nc3,1,Monday\n")
    run(capsys, "clips", "--answers", "labels.csv", "--steps", "steps.txt")
    assert records()[0].fields["start"] == "Monday"


def test_a_cell_below_no_name_is_refused_unless_it_counts_the_rows(folder, capsys):
    """The second step of a clip, in a cell of its own, would be lost."""
    argv = ("clips", "--answers", "labels.csv", "--steps", "steps.txt")
    Path("labels.csv").write_text("clip,answer, \nc3,1,2\nloose,2,\n")
    said = refused(capsys, *argv)
    assert "labels.csv:2: expected a name of each column in the first line, got none above the cell '2'" in said
    assert "labels.csv:3" not in said
    Path("labels.csv").write_text(",clip,answer,\n0,c3,1,\n1,loose,2,\n")
    run(capsys, *argv)
    assert len(records()) == 2


def test_held_out_clips_are_not_trained_on_and_stay_held_out(folder, capsys):
    copies = "clip,answer\nloose,1\n" + "".join(f"{name},1\n" for name in CLIPS)
    Path("labels.csv").write_text(copies)
    argv = ("clips", "--answers", "labels.csv", "--steps", "steps.txt", "--overwrite", "--split")
    sides = []
    for share in ("0.2", "0.4", "0.7", "0.2"):
        run(capsys, *argv, share)
        train, held = ({record.id for record in records(f"clips/records{end}.json")} for end in ("", "_held_out"))
        assert train | held == {*CLIPS, "loose.mp4"} and not train & held and train and held
        sides.append(held)
    assert sides[0] == sides[3] < sides[2]


def test_several_names_of_a_clip_are_held_out_together(folder, capsys):
    names = [f"link-{number}.mkv" for number in range(6)]
    for name in names:
        Path("clips", name).symlink_to(Path("clips", CLIPS[0]).resolve())
    rows = [*CLIPS, *names]
    Path("labels.csv").write_text("clip,answer\n" + "".join(f"{name},1\n" for name in rows))
    argv = ("clips", "--answers", "labels.csv", "--steps", "steps.txt", "--overwrite", "--split")
    for share in ("0.2", "0.5", "0.8"):
        run(capsys, *argv, share)
        train, held = ({record.videos for record in records(f"clips/records{end}.json")} for end in ("", "_held_out"))
        assert not train & held and train and held


def test_held_out_records_of_an_earlier_split_are_not_trained_on(folder, capsys):
    Path("labels.csv").write_text("clip,answer\n" + "".join(f"{name},1\n" for name in CLIPS))
    argv = ("clips", "--answers", "labels.csv", "--steps", "steps.txt")
    run(capsys, *argv, "--split", "0.3")
    before = Path("clips/records.json").read_text()
    said = refused(capsys, *argv, "--overwrite")
    assert "clips/records_held_out.json: holds clips out, by an earlier --split" in said
    assert Path("clips/records.json").read_text() == before


def test_the_labels_are_not_replaced_by_the_records(folder, capsys):
    for flag in ("answers", "steps", "question"):
        Path("labels.csv").write_text("clip,answer\n" + "".join(f"{name},1\n" for name in CLIPS))
        given = {"answers": "labels.csv", "steps": "steps.txt", "question": "question.txt"}
        Path("question.txt").write_text("Which of {steps}?")
        Path("out.json").unlink(missing_ok=True)
        Path("out.json").symlink_to(Path(given[flag]).resolve())
        words = [word for name, path in given.items() for word in (f"--{name}", path)]
        said = refused(capsys, "clips", *words, "--out", "out.json", "--overwrite")
        assert f"out.json: is --{flag}, and would be replaced by the records" in said


def test_the_next_commands_are_understood(folder, capsys):
    Path("labels.csv").write_text("clip,answer\n" + "".join(f"{name},1\n" for name in CLIPS))
    table = ("--answers", "labels.csv", "--steps", "steps.txt")
    out = run(capsys, "clips", *table, "--split", "0.3", "--out", "my data/r.json")
    assert "<think> </think>" in out and "<answer>(number) step" in out
    check, preview, train = (shlex.split(line) for line in out.partition("next:\n")[2].strip().splitlines())
    assert (check[:3], preview[:2]) == (["qwenvl", "data", "check"], ["qwenvl", "preview"])
    assert check[3] == "my data/r.json,my data/r_held_out.json"
    assert main(check[2:]) == 0
    parsed = parse_args(train[2:])
    assert (parsed.dataset_use, parsed.eval_dataset_use) == ("my data/r.json", "my data/r_held_out.json")
    assert parsed.allow_outside_media, "the clips lie elsewhere"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["nowhere", "--answers", "labels.csv"], "nowhere: expected a folder of clips"),
        (["clips"], "one of the arguments --answers --write-labels is required"),
        (["empty", "--answers", "labels.csv"], "no clips; expected files that end in"),
        (["clips", "--answers", "folders"], "expected a .csv or .tsv file with the columns clip and answer; --write-l"),
        (["clips", "--answers", "none.csv"], "none.csv"),
        (["clips", "--answers", "labels.csv"], "give --steps"),
        (["clips", "--answers", "labels.csv", "--question", "{steps}?"], "give --steps"),
        (["clips", "--answers", "bad.csv"], "bad.csv:2: expected the columns clip and answer, and a clip"),
        (["clips", "--answers", "blank.csv"], 'blank.csv:2: the cell "insert fan has a blank before its quote'),
        (["clips", "--answers", "rate.csv"], "rate.csv:2: the column 'FPS' has another meaning"),
        (["clips", "--answers", "labels.csv", "--question", "ask.txt"], "ask.txt: there is no such file"),
        (["clips", "--answers", "labels.csv", "--question", "?", "--columns", "a=clip,b=clip"], "names 'clip' twice"),
        (["clips", "--answers", "taken.csv"], "taken.csv:2: the column 'video' has another meaning"),
        (["clips", "--answers", "empty.csv", "--question", "?"], "no clip has an answer"),
        (["clips", "--answers", "labels.csv", "--question", "?", "--split", "1"], "--split must be above 0"),
        (["clips", "--write-labels", "new.csv", "--out", "a.json"], "--out has no effect with --write-labels"),
        (["clips", "--write-labels", "labels.csv"], "labels.csv: is there already"),
        (["clips", "--answers", "labels.csv", "--question", "?", "--out", "labels.csv"], "ends in .json"),
        (["clips", "--answers", "labels.csv", "--question", "?", "--out", "there.json"], "pass --overwrite"),
    ],
)
def test_wrong_arguments_and_tables_of_answers_are_refused(argv, message, folder, capsys):
    Path("empty").mkdir()
    Path("there.json").write_text("[]")
    Path("labels.csv").write_text("clip,answer\nc1,1\n")
    Path("bad.csv").write_text("file,label\nc1,1\n")
    Path("taken.csv").write_text("clip,answer,video\nc1,1,2\n")
    Path("empty.csv").write_text("clip,answer\nc1,\nc2,#N/A\n")
    Path("blank.csv").write_text('clip, answer, note\nc1, "insert fan, close lid"\n')
    Path("rate.csv").write_text("clip,answer,FPS\nc1,1,15\n")
    assert message in refused(capsys, *argv)


@pytest.mark.parametrize(
    ("written", "numbers"),
    [
        ("2", [2]),
        ("1,3", [1, 3]),
        ("1; 1;4", [1, 1, 4]),
        ("(3) fasten 10 mm screw (1) Take the  lid.", [3, 1]),
        ("<answer>(1) take the lid</answer>", [1]),
        ("Insert the fan, both sides", [2]),
        ("insert the fan, both sides; take the lid", [2, 1]),
        ("take the lid, pick_up", [1, 4]),
        ("1. take the lid; 3: fasten 10 mm screw", [1, 3]),
        ("; (4) pick-up (1)", [4, 1]),
        ("03 fasten 10 mm screw", [3]),
    ],
)
def test_answers_come_out_in_one_form(written, numbers):
    assert answer_in(STEPS, written) == " ".join(f"({n}) {STEPS[n - 1]}" for n in numbers)


def test_the_sign_of_a_number_is_a_part_of_a_name():
    turns = ["turn by +90", "turn by -90"]
    assert answer_in(turns, "turn by -90") == "(2) turn by -90"
    assert answer_in(["turn by 90", *turns[1:]], "turn_by_-90; turn_by_90") == "(2) turn by -90 (1) turn by 90"
    with pytest.raises(ValueError, match="'turn by 90' is no step"):
        answer_in(turns, "turn by 90")


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("5", "'5' is no step: .*from 1 to 4"),
        ("1 0", "'0' is no step"),
        ("(2) take the lid", r"'\(2\) take the lid' is no step: .* or both that agree"),
        ("tak the lid", "did you mean take the lid"),
        ("1, take the lid", "a number beside its own name"),
        ("take the lid; 1", "a number beside its own name"),
        ("2, 1, take the lid", "a number beside its own name"),
        *((f"(2){to}(4)", "may be two steps or all between") for to in ("-", " - ", " -- ", "...", " to ")),
        *((text, "a sign stands between") for text in ("(1); take the lid", "(2), (1) , | pick-up", "(4);pick-up")),
        *((text, r"expected \(2\) in front of the name") for text in ("pick-up (1)", "take the lid (2), pick-up (1)")),
    ],
)
def test_an_answer_that_names_no_step_is_refused(written, message):
    with pytest.raises(ValueError, match=message):
        answer_in(STEPS, written)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("turn, hold", "turn", "hold"), "step 1, 'turn, hold': answers that name it would mean steps 2 and 3; rename"),
        (("take", "lid", "Take;  lid"), "step 3, 'Take; lid': answers that name it would mean steps 1 and 2; rename"),
        (("take", "1"), "step 2, '1': answers that name it would mean step 1; rename it"),
        (("full", "1/2", "empty"), "step 2, '1/2': answers that name it would mean steps 1 and 2; rename it"),
        (("take", '1"'), "step 2, '1\"': answers that name it would mean step 1; rename it"),
        (("full", "\u201c3/4\u201d"), "answers that name it would mean steps 3 and 4; rename it"),
        *(((f"螺丝{number}", "取盖"), r"\(number\) and < have a meaning") for number in ("(1)", "①", "（１）")),
    ],
)
def test_a_step_that_answers_could_not_name_is_refused(names, message, tmp_path):
    (tmp_path / "steps.txt").write_text("\n".join(names))
    with pytest.raises(RecordError, match=message):
        read_steps(tmp_path / "steps.txt")


ODD_WORDS = (
    *("1", "2", "3", "10", "1/2", '3"', '"2"', "#2", "no. 3", "step 2", "2nd", "3.", ".5", "2.0", "1-2", "2;3", "1,5"),
    *("take", "lid", "take, lid", "and", "then", "first", "1 take", "take 2"),
    *("\uff12", "\u00bd", "1+1", "M8", "8 mm", "3 s"),
    *("90", "-90", "+90", "\u221290", "- 90", "take-", "-off", "take-90", "x_-1", "x 1"),
)


def test_a_list_of_steps_that_is_taken_has_one_meaning(tmp_path):
    """Of odd names put together at random: each name and each number is read as its own step, by rewards too."""
    draw = random.Random(0)
    taken = 0
    for _ in range(3000):
        names = []
        for _ in range(draw.randint(2, 5)):
            names.append(" ".join(draw.choices(ODD_WORDS, k=draw.choice([1, 1, 2]))))
        (tmp_path / "steps.txt").write_text("\n".join(names))
        try:
            steps = read_steps(tmp_path / "steps.txt")
        except RecordError:
            continue
        taken += 1
        listed = list_in("Which?\n" + numbered(steps))
        for number, name in enumerate(steps, start=1):
            for answer in (name, name.replace(" ", "_"), name.replace(" ", "-_"), str(number)):
                with suppress(ValueError):  # refused is well
                    assert answer_in(steps, answer) == f"({number}) {name}", names
            named, unknown = named_actions(unified(name), listed)
            assert not listed or not named or (named, unknown) == ({number}, 0), names
    assert taken > 500


NUMBERED = (
    *("Step {}: {}", "step {} {}", "{} - {}", "{} \u2014 {}", "{},{}", "{}; {}"),
    *("#{} {}", "{}\t{}", "({}) {}", "{} {}", "{}={}"),
)

TITLES = ("Assembly steps", "Step name", "step_name", "Action names", "Step list", "Montageschritte", "Ablauf")
TITLES += ("Assembly procedure", "Steps of station 3", "Arbeitsanweisung", "操作步骤")
HEADINGS = ("# Steps", "Steps:", "// all", "=====", "Steps", "List of steps")
COUNTED = ("[{}] ", "{}_", "{}| ", "S{} ", "Step_{}: ", "{}> ", "0{}_")


def test_a_file_of_steps_is_read_with_or_without_numbers(tmp_path):
    path = tmp_path / "steps.txt"
    for text in (
        "take the lid\n\n  insert  the fan \n",
        "(1) take the lid\n2. insert the fan",
        "\ufeff1: take the lid\n(2)insert the fan",
        "- take the lid\n- insert the fan",
        "* 1. take the lid\n* 2. insert the fan",
        "take the lid;\ninsert the fan ,\n;",
        "1. take the lid;\n2. insert the fan.",
    ):
        path.write_text(text, encoding="utf-8")
        assert numbered(read_steps(path)).rstrip(".") == "(1) take the lid\n(2) insert the fan"
    for text in ("1 take the lid\n2 insert the fan", "1\ttake the lid\n\n2\tinsert the fan\n"):
        path.write_text(text)
        assert numbered(read_steps(path)) == "(1) take the lid\n(2) insert the fan"
    for line in NUMBERED:
        path.write_text("\n".join(line.format(n, name) for n, name in ((1, "take the lid"), (2, "insert the fan"))))
        assert numbered(read_steps(path)) == "(1) take the lid\n(2) insert the fan", line
    path.write_text("2 bolts\nnuts\n4-pin plug\n")
    assert numbered(read_steps(path)) == "(1) 2 bolts\n(2) nuts\n(3) 4-pin plug"
    path.write_text("take\x0bthe lid\r\nput\u2028it down")  # breaks within a line, as slides have them
    assert numbered(read_steps(path)) == "(1) take the lid\n(2) put it down"
    path.write_text("station 1\nstation 2\n")
    assert numbered(read_steps(path)) == "(1) station 1\n(2) station 2"
    path.write_text("1. insert screw 3\n2. insert screw 1\n")
    assert numbered(read_steps(path)) == "(1) insert screw 3\n(2) insert screw 1"
    path.write_text("Task 1 take\nTask 2 put\n")  # their own numbers are those of the lines
    assert numbered(read_steps(path)) == "(1) Task 1 take\n(2) Task 2 put"
    path.write_text("1.5 mm bolt\n2.0 mm nut\n")  # not the numbers of steps
    assert numbered(read_steps(path)) == "(1) 1.5 mm bolt\n(2) 2.0 mm nut"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(1) a\n(3) b", r"steps.txt: expected step 2, got '\(3\) b'"),
        ("1. a\nb", "expected step 2, got 'b'"),
        ("0 background\n1 take_cup\n", "expected step 1, got '0 background'; number all steps from 1, as in"),
        ("2 bolts\n4 nuts\n", "expected step 1, got '2 bolts'; number all steps from 1, as in '\\(1\\) 2 screws', or"),
        *((line.format(1, "a") + "\n" + line.format(3, "b"), "expected step 2, got") for line in NUMBERED),
        *((line.format(0, "a") + "\n" + line.format(1, "b"), "expected step 1, got") for line in NUMBERED),
        ("id,name\n1,take the lid\n2,insert the fan", "expected step 1, got 'id,name'"),
        *((f"{line.format(0)}a\n{line.format(1)}b", "lines seem to be numbered, as in") for line in COUNTED),
        *((f"{line.format(1)}a\n{line.format(2)}b", "lines seem to be numbered, as in") for line in COUNTED),
        ("Pump assembly\n1 take\n2 put\n3 turn", "lines seem to be numbered, as in '1 take'"),
        ("1 take\n1.1 hold\n2 put\n3 turn", "lines seem to be numbered, as in '1 take'"),
        ("1 take\n2 put\n2 turn", "lines seem to be numbered, as in '1 take'"),
        ("The lid\n1_take\n2_put", "lines seem to be numbered, as in '1_take'"),
        ("take\n2 put\n3 turn", "lines seem to be numbered, as in '2 put'"),
        ("List\n\u2460 take\n\u2461 put", "lines seem to be numbered, as in '\u2460 take'"),
        *((f"{line}\ntake\nlid", "seems to be a heading or a comment") for line in HEADINGS),
        *((f"{line} 0: a\n{line} 1: b", f"numbered, as in '{line} 0: a'") for line in ("Action", "No.", "Schritt")),
        *((f"{one} a\n{two} b", f"numbered, as in '{one} a'") for one, two in (("T0", "T1"), ("class_0", "class_1"))),
        ("Task 1 a\nTask 3 b\nTask 4 c", "numbered, as in 'Task 1 a'"),
        ("name,id\na,1\nb,2", "numbered, as in 'a,1'"),
        *((f"a{sign}0\nb{sign}1", "lines seem to be numbered, as in") for sign in (",", "\t", ": ", "=")),
        *((f"{head}\ntake\nlid", "seems to be a heading") for head in ("step", "Action", "name", "Label", "Schritt")),
        *((f"{title}\ntake\nlid", f"'{title}' seems to be a heading") for title in TITLES),
        ("take\n-----\nlid", "'-----' seems to be a heading or a comment"),
        ("take\nstep 2", "expected step 1, got 'take'"),
        ("take the lid\n  with the left hand\nput", "'with the left hand' is indented below 'take the lid'"),
        ("- take\n\t- the lid\n- put", "'- the lid' is indented below '- take': write each step on one line"),
        ('["take", "lid"]', "expected a step a line, as plain text"),
        ("2 b\n1 a\n", "expected step 1, got '2 b'"),
        ("1. take\n2.\n3. put", "steps.txt: step 2 has no name"),
        ("step 1\nstep 2", "steps.txt: step 1 has no name"),
        ("a\nA.", "steps 1 and 2 have the same name"),
        ("a\nscrew (4) in", r"step 2, 'screw \(4\) in': \(number\) and <"),
        ("\n", "at least one step"),
    ],
)
def test_a_file_of_steps_with_gaps_or_repeated_names_is_refused(text, message, tmp_path):
    (tmp_path / "steps.txt").write_text(text)
    with pytest.raises(RecordError, match=message):
        read_steps(tmp_path / "steps.txt")
