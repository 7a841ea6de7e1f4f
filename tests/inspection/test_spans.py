"""Labels with times: a table with several rows per clip, and folders of label files, made to records."""

import json
import shlex
import shutil
from pathlib import Path

import pytest

from qwenvl.commands.data import main
from qwenvl.config.command_line import parse_args
from qwenvl.data.media.open import open_clip
from qwenvl.data.options import SampleOptions
from qwenvl.inspection.spans import LabelledSpan, notice_about_times
from tests.inspection.from_folder import EAF, records, refused, run, solutions
from tests.made_clips import write_clip


def test_clips_whose_pictures_begin_after_their_sound_are_named(folder, capsys):
    """A player's clock begins with the sound, and ours with the first picture."""
    late = write_clip(folder / "clips" / "b.mp4", 30, times=[2 + n / 10 for n in range(30)], sound_seconds=5.0)
    for timeout in (0.0, 60.0):
        with open_clip(str(late), timeout=timeout) as clip:
            assert clip.delay == pytest.approx(2.0, abs=0.01) and clip.frame_times[0] == 0.0
    Path("spans.csv").write_text("clip,step,start,end\na,1,0,1\nb,2,1,3\n")
    out = run(capsys, "--answers", "spans.csv", "--steps", "steps.txt")
    assert "That of 1 clip comes later than the clock of players begins (2.00 s in b.mp4)" in out
    Path("labels").mkdir()
    for name in "ab":
        Path(f"labels/{name}.txt").write_text("1-10 close_lid\n")
    assert "clock" not in run(capsys, "--answers", "labels", "--steps", "steps.txt", "--overwrite"), "labels in frames"
    value = {"ranges": [{"start": 11, "end": 20}], "timelinelabels": ["insert fan"]}
    result = [{"type": "timelinelabels", "value": value}]
    Path("export.json").write_text(json.dumps([{"data": {"video": "b.mp4"}, "annotations": [{"result": result}]}]))
    out = run(capsys, "--answers", "export.json", "--steps", "steps.txt", "--label_fps", "10", "--overwrite")
    assert "players begins (2.00 s in b.mp4)" in out, "Label Studio counts frames by the player's clock"


def test_a_silent_clip_whose_first_picture_has_a_later_time_is_named(folder, capsys):
    """A browser shows nothing for two seconds, and our clock begins with the first picture."""
    write_clip(folder / "clips" / "b.mkv", 30, times=[2 + n / 10 for n in range(30)])
    Path("spans.csv").write_text("clip,step,start,end\na,1,0,1\nb.mkv,2,1,3\n")
    out = run(capsys, "--answers", "spans.csv", "--steps", "steps.txt")
    assert "That of 1 clip comes later than the clock of players begins (2.00 s in b.mkv)" in out


def test_a_table_of_spans_becomes_timelines(folder, capsys):
    Path("spans.csv").write_text(
        "Clip,Step,Start,End,station\na,2,1.5,0:03,A7\nb.mp4,close lid,0,1,A8\na,(1) insert fan,0,1.5,A7\n"
    )
    out = run(capsys, "--answers", "spans.csv", "--steps", "steps.txt")
    assert "1 without an answer, left out:\n    c.mp4" in out and "2  (2) close lid" in out
    found = records()
    assert [record.id for record in found] == ["a.mp4", "b.mp4"]
    assert solutions() == ["0.0-1.5 (1) insert fan\n1.5-3.0 (2) close lid", "0.0-1.0 (2) close lid"]
    assert found[0].fields["timeline"] == [{"step": 1, "start": 0.0, "end": 1.5}, {"step": 2, "start": 1.5, "end": 3.0}]
    assert (found[0].fields["duration"], found[0].fields["station"]) == (pytest.approx(3.0), "A7")
    prompt = found[0].messages[0].text
    assert "from when to when?\n(1) insert fan\n(2) close lid\n" in prompt and "<answer>start-end (number)" in prompt


def test_the_next_commands_score_timelines(folder, capsys):
    Path("spans.csv").write_text("clip,step,start,end\na,1,0,1\nb,2,0,1\n")
    out = run(capsys, "--answers", "spans.csv", "--steps", "steps.txt", "--split", "0.5", "--out", "r.json")
    check, _, train = (shlex.split(line) for line in out.partition("next:\n")[2].strip().splitlines())
    assert main(check[2:]) == 0
    parsed = parse_args(train[2:])
    assert "timelines: the shortest span has 1.00 s; frames are up to" in capsys.readouterr().out
    assert parsed.reward_funcs == ["format", "timeline_iou", "segment_f1"] and parsed.eval_dataset_use


def test_without_steps_the_names_of_the_table_are_the_list(folder, capsys):
    Path("spans.tsv").write_text("clip\tstep\tstart\tend\na\ttake_lid\t0\t1\na\tinsert fan\t1\t2\nb\tTake lid\t0\t2\n")
    run(capsys, "--answers", "spans.tsv")
    assert "(1) take lid\n(2) insert fan\n" in records()[0].messages[0].text
    assert solutions() == ["0.0-1.0 (1) take lid\n1.0-2.0 (2) insert fan", "0.0-2.0 (1) take lid"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("D:/rec/monday/clips/a.mp4", "D:/rec/tuesday/clips/a.mp4"),  # folders of one name
        ("C:/rec/clips/a.mp4", "D:/rec/clips/a.mp4"),
        ("D:/rec/station-1/a", "D:/rec/station-2/a"),  # names without their ending
        ("/v/station-1/f\u00fcr.mp4", "/v/station-2/f\u00fcr.mp4"),  # the file has ü as two characters
    ],
)
def test_labels_of_clips_of_one_name_in_two_folders_are_refused(one, other, folder, capsys):
    (folder / "clips" / "b.mp4").rename(folder / "clips" / "fu\u0308r.mp4")
    Path("spans.csv").write_text(f"clip,step,start,end\n{one},1,0,1\n{other},2,1,2\n", encoding="utf-8")
    said = refused(capsys, "--answers", "spans.csv", "--steps", "steps.txt")
    assert f"spans.csv:3: {other!r} is a clip of {other.rpartition('/')[0]!r}, and other labels are of clips of" in said
    Path("spans.csv").write_text(f"clip,step,start,end\n{other},1,0,1\n{other},2,1,2\n", encoding="utf-8")
    told = run(capsys, "--answers", "spans.csv", "--steps", "steps.txt")
    assert f"labels of the clips of {other.rpartition('/')[0]!r} are taken for those of this folder" in told


def test_a_name_without_its_ending_is_not_that_of_a_clip_in_another_folder(folder, capsys):
    (folder / "clips" / "cam1").mkdir()
    (folder / "clips" / "a.mp4").rename(folder / "clips" / "cam1" / "a.mp4")
    Path("spans.csv").write_text("clip,step,start,end\nD:/rec/cam2/a,1,0,1\n")
    said = refused(capsys, "--answers", "spans.csv", "--steps", "steps.txt")
    assert "there is no clip 'D:/rec/cam2/a', only cam1/a.mp4 in another folder" in said


def test_columns_of_other_tools_are_renamed(folder, capsys):
    Path("boris.csv").write_text("Media file name,Behavior,Start (s),Stop (s)\na.mp4,close lid,0.5,1\n")
    columns = "Media file name=clip,Behavior=step,Start (s)=start,Stop (s)=end"
    run(capsys, "--answers", "boris.csv", "--steps", "steps.txt", "--columns", columns)
    assert solutions() == ["0.5-1.0 (2) close lid"]
    Path("answers.csv").write_text("file;label\na;1\n")
    again = ("--steps", "steps.txt", "--columns", "file=clip,label=answer", "--overwrite")
    run(capsys, "--answers", "answers.csv", *again)
    assert solutions() == ["(1) insert fan"]


def test_a_decoder_that_began_in_another_working_folder_finds_the_clips(folder, capsys, monkeypatch):
    with open_clip(str(folder / "clips/a.mp4"), timeout=SampleOptions.decode_timeout):
        pass  # its process waits for the next clip
    monkeypatch.chdir(folder / "clips")
    Path("spans.csv").write_text("clip,step,start,end\na,1,0,1\n")
    assert main(["from-folder", ".", "--answers", "spans.csv", "--steps", "../steps.txt"]) == 0
    assert len(records("records.json")) == 1


def test_files_with_a_label_for_each_frame_become_timelines(folder, capsys):
    Path("labels").mkdir()
    Path("labels/a.txt").write_text("SIL\n" * 5 + "insert_fan\n" * 10 + "close_lid\n" * 15)
    Path("labels/b.txt").write_text("background\n" * 30)
    out = run(capsys, "--answers", "labels", "--steps", "steps.txt")
    assert solutions() == ["0.5-1.5 (1) insert fan\n1.5-3.0 (2) close lid"]
    assert "SIL (1), background (1)" in out
    assert "frame numbers count the frames of each clip" in out


def test_a_label_file_at_another_rate_than_its_clip_is_refused(folder, capsys):
    """Each of its labels would be read at half of its seconds."""
    Path("labels").mkdir()
    Path("labels/a.txt").write_text("insert_fan\n" * 6 + "close_lid\n" * 9)
    said = refused(capsys, "--answers", "labels", "--steps", "steps.txt")
    assert "labels/a.txt: has 15 labels, a line for each frame, and the clip has 30 frames in 3.0 s" in said
    assert "--label_fps 5" in said
    Path("labels/b.txt").write_text("insert\u2028fan\n" * 15)  # 15 lines, though Unicode sees 30
    assert "labels/b.txt: has 15 labels" in refused(capsys, "--answers", "labels", "--steps", "steps.txt")
    Path("labels/b.txt").unlink()
    out = run(capsys, "--answers", "labels", "--steps", "steps.txt", "--label_fps", "5")
    assert solutions() == ["0.0-1.2 (1) insert fan\n1.2-3.0 (2) close lid"]
    assert "frame numbers count" not in out
    Path("labels/a.txt").write_text("insert_fan\n" * 29)  # the last frame is not labelled
    run(capsys, "--answers", "labels", "--steps", "steps.txt", "--overwrite")
    assert solutions() == ["0.0-2.9 (1) insert fan"]


@pytest.mark.parametrize("text", ["insert_fan\n" * 20 + "SIL\n" * 40, "1-20 insert_fan\n21-60 SIL\n"])
def test_background_far_beyond_the_clip_is_of_another_rate(folder, capsys, text):
    """The clip has 30 frames: read at its rate, all spans would be at wrong times."""
    Path("labels").mkdir()
    Path("labels/a.txt").write_text(text)
    argv = ("--answers", "labels", "--steps", "steps.txt")
    assert "frame 60 is beyond the clip, which has 30 in 3.0 s; --label_fps says" in refused(capsys, *argv)
    assert "frame 60 is beyond the clip, which has 45" in refused(capsys, *argv, "--label_fps", "15")
    run(capsys, *argv, "--label_fps", "20")
    assert solutions() == ["0.0-1.0 (1) insert fan"]


def test_labels_at_a_rate_of_their_own_cover_their_clip(folder, capsys):
    Path("labels").mkdir()
    Path("labels/a.txt").write_text("insert_fan\n" * 10)
    said = refused(capsys, "--answers", "labels", "--label_fps", "7")
    assert "has 10 labels, a line for each frame, and the clip has 21 frames in 3.0 s at --label_fps 7" in said


def test_times_that_a_spreadsheet_may_have_made_minutes_are_named(folder, make_clip, capsys):
    make_clip("made.mp4", 130, fps=1).rename(folder / "clips" / "a.mp4")
    for end, named in (("00:02:00", True), ("00:02:01", False)):
        Path("spans.csv").write_text(f"clip,step,start,end\na,take,00:01:00,{end}\n")
        out = run(capsys, "--answers", "spans.csv", "--overwrite")
        assert ("of 0:07 a spreadsheet makes 00:07:00" in out) is named


def test_a_step_in_both_notations_of_its_letters_is_one(folder, capsys):
    names = ["pr\u00fcfen", "pru\u0308fen"]
    rows = [f"a,{name},{n},{n}.5\n" for n, name in enumerate(names)]
    Path("spans.csv").write_text("clip,step,start,end\n" + "".join(rows))
    run(capsys, "--answers", "spans.csv")
    assert solutions() == ["0.0-0.5 (1) pr\u00fcfen\n1.0-1.5 (1) pr\u00fcfen"]
    Path("steps.txt").write_text(names[1])
    run(capsys, "--answers", "spans.csv", "--steps", "steps.txt", "--overwrite")
    assert solutions()[0].count("(1)") == 2


def test_a_step_that_is_background_is_refused(folder, capsys):
    Path("steps.txt").write_text("SIL\ntake")
    Path("spans.csv").write_text("clip,step,start,end\na,1,0,1\na,SIL,1,2\n")
    argv = ("--answers", "spans.csv", "--steps", "steps.txt")
    assert "steps.txt: 'SIL' is a step, and spans of this name are background" in refused(capsys, *argv)
    run(capsys, *argv, "--background", "pause")
    assert solutions() == ["0.0-1.0 (1) SIL\n1.0-2.0 (1) SIL"]


def test_names_that_differ_in_signs_are_not_one_step(folder, capsys):
    table = "clip,step,start,end\na,{},0,1\na,{},1,2\n"
    for one, other in (("turn 90", "turn -90"), ("grip -", "grip")):
        Path("spans.csv").write_text(table.format(one, other))
        said = refused(capsys, "--answers", "spans.csv", "--overwrite")
        assert f"spans.csv:3: {other!r} and {one!r} would be one step" in said
    Path("spans.csv").write_text(table.format("Take-the lid", "take_the lid"))
    assert "2  (1) Take-the lid" in run(capsys, "--answers", "spans.csv", "--overwrite")


def test_a_list_of_steps_is_no_label_file_of_a_short_clip(folder, make_clip, capsys):
    make_clip("made.mp4", 9, fps=10).rename(folder / "clips" / "a.mp4")
    Path("labels").mkdir()
    for lines in ("insert_fan\nclose_lid\n", "insert_fan\n" * 8, "label,start,end\ninsert fan,0,0.5\n"):
        Path("labels/a.txt").write_text(lines)
        assert "a line for each frame, and the clip has 9 frames" in refused(capsys, "--answers", "labels")


def test_a_label_file_that_is_a_little_too_short_is_named(folder, make_clip, capsys):
    """As of labels at 24 frames per second for a clip of 25."""
    make_clip("made.mp4", 100, fps=25).rename(folder / "clips" / "a.mp4")
    Path("labels").mkdir()
    for labels, is_named in ((96, True), (98, False), (100, False)):
        Path("labels/a.txt").write_text("insert_fan\n" * labels)
        out = run(capsys, "--answers", "labels", "--steps", "steps.txt", "--overwrite")
        assert ("1 label file of fewer labels than frames (96 of 100 for a.mp4)" in out) == is_named


def test_a_label_file_that_two_clips_could_have_is_refused(folder, make_clip, capsys):
    for name in ("one", "two"):
        (folder / "clips" / name).mkdir()
        make_clip("made.mp4", 30, fps=10).rename(folder / "clips" / name / "1.mp4")
    Path("labels").mkdir()
    Path("labels/1.txt").write_text("insert_fan\n" * 30)
    said = refused(capsys, "--answers", "labels", "--steps", "steps.txt")
    assert "labels/1.txt: may be that of one/1.mp4 and of two/1.mp4" in said and "such as labels/one/1.txt" in said
    for name, label in (("one", "insert_fan"), ("two", "close_lid")):
        Path("labels", name).mkdir()
        Path("labels", name, "1.txt").write_text(f"{label}\n" * 30)
    run(capsys, "--answers", "labels", "--steps", "steps.txt")
    assert solutions() == ["0.0-3.0 (1) insert fan", "0.0-3.0 (2) close lid"]


def test_a_label_file_at_the_path_of_a_clip_is_no_other_clips(folder, make_clip, capsys):
    (folder / "clips" / "more").mkdir()
    make_clip("made.mp4", 30, fps=10).rename(folder / "clips" / "1.mp4")
    make_clip("made.mp4", 30, fps=10).rename(folder / "clips" / "more" / "1.mp4")
    Path("labels").mkdir()
    Path("labels/1.txt").write_text("insert_fan\n" * 30)
    run(capsys, "--answers", "labels", "--steps", "steps.txt")
    [record] = records()
    assert record.videos[0].endswith("clips/1.mp4") and solutions() == ["0.0-3.0 (1) insert fan"]


def test_lists_of_rewards_in_further_columns_are_read(folder, capsys):
    Path("spans.csv").write_text('clip,step,start,end,evidence,note\na.mp4,insert fan,0,1,"[[0, 0.5]]",[1]\n')
    run(capsys, "--answers", "spans.csv", "--steps", "steps.txt")
    [record] = records()
    assert (record.fields["evidence"], record.fields["note"]) == ([[0, 0.5]], "[1]")


def test_files_with_ranges_of_frames_or_times_become_timelines(folder, capsys):
    Path("labels").mkdir()
    Path("labels/a.txt").write_text("1-5 SIL\n6-15 insert_fan\n16-30 close_lid\n")  # Breakfast
    Path("labels/b.txt").write_text("0.25\t1.5\tinsert fan\n1.5\t2\tclose lid\n")  # Audacity
    run(capsys, "--answers", "labels", "--steps", "steps.txt")
    assert solutions() == [
        "0.5-1.5 (1) insert fan\n1.5-3.0 (2) close lid",
        "0.25-1.5 (1) insert fan\n1.5-2.0 (2) close lid",
    ]


def test_frame_numbers_of_a_table_count_at_the_rate_of_the_clip_or_of_label_fps(folder, capsys):
    Path("spans.csv").write_text("clip,step,start_frame,end_frame\na,1,0,9\n")  # the tenth is included
    run(capsys, "--answers", "spans.csv", "--steps", "steps.txt")
    assert solutions() == ["0.0-1.0 (1) insert fan"]
    run(capsys, "--answers", "spans.csv", "--steps", "steps.txt", "--label_fps", "5", "--overwrite")
    assert solutions() == ["0.0-2.0 (1) insert fan"]


def test_every_bad_span_is_named(folder, capsys):
    rows = ["d,1,0,1", "a,3,0,1", "a,1,2,1", "a,1,1,1", "a,1,0,3.5", "a,1,-1,1", "a,,0,1", "a,1,soon,2", "a,1,0,1,2"]
    Path("spans.csv").write_text("clip,step,start,end\n" + "\n".join(rows))
    said = refused(capsys, "--answers", "spans.csv", "--steps", "steps.txt")
    for line in (
        "9 spans can't be used",
        "spans.csv:2: there is no clip 'd'",
        "spans.csv:3: '3' is no step: expected a number from 1 to 2",
        "spans.csv:4: the span from 2.0 to 1.0 s ends before it starts",
        "spans.csv:5: the span from 1.0 to 1.0 s is empty",
        "spans.csv:6: the span from 0.0 to 3.5 s ends after the clip, which has 3.0 s",
        'spans.csv:7: start: expected seconds, such as 7.5 or 0:07.5, got string "-1"',
        "spans.csv:8: expected clip, step, start and end, got none for step",
        "spans.csv:9: start: expected seconds",
        "spans.csv:10: expected 4 cells",
    ):
        assert line in said, said
    assert not Path("clips/records.json").exists()


def test_a_file_with_a_label_for_each_frame_has_labels_alone(folder, capsys):
    """The clip has 30 frames. A head would make all labels one frame late, and numbers a step of each frame."""
    Path("labels").mkdir()
    argv = ("--answers", "labels", "--overwrite")
    labels = ["background"] * 5 + ["insert"] * 25
    for lines, message in (
        (["action", *labels], "labels/a.txt:1: 'action' seems to be the name of a column"),
        ([f"{n},{label}" for n, label in enumerate(labels)], "labels/a.txt:1: expected a label alone on each line"),
        ([f"{n} {label}" for n, label in enumerate(labels, start=1)], "expected a label alone on each line"),
    ):
        Path("labels/a.txt").write_text("\n".join(lines))
        assert message in refused(capsys, *argv)
    for more in ([], ["insert"]):
        Path("labels/a.txt").write_text("\n".join([*labels, *more]))
        run(capsys, *argv)
        assert solutions()[0].startswith("0.5-3.0 (1) insert")


def test_a_table_of_boris_is_read_as_it_is(folder, capsys):
    head = "Observation id,FPS,Behavior,Start (s),Stop (s),Duration (s),Media file name,Image index start"
    rows = [
        "o,25,insert fan,0.5,1,0.5,C:\\rec\\clips\\a.mp4,5",
        "o,25,close lid,1,2.5,1.5,C:\\rec\\clips\\a.mp4,10",
        "p,25,close lid,1,2,1,C:\\rec\\clips\\b.mp4,10",
    ]
    Path("spans.csv").write_text("\n".join([head, *rows]))
    columns = "Media file name=clip,Behavior=step,Start (s)=start,Stop (s)=end"
    said = run(capsys, "--answers", "spans.csv", "--steps", "steps.txt", "--columns", columns)
    assert "columns that differ between the spans of a clip, left out: Duration (s), Image index start" in said
    assert solutions() == ["0.5-1.0 (1) insert fan\n1.0-2.5 (2) close lid", "1.0-2.0 (2) close lid"]
    first, second = json.loads(Path("clips/records.json").read_text())
    assert (first["Observation id"], second["Observation id"]) == ("o", "p") and "Duration (s)" not in second
    Path("spans.csv").write_text(Path("spans.csv").read_text().replace("C:\\rec\\clips\\b", "C:\\rec\\other\\b"))
    argv = ("--answers", "spans.csv", "--steps", "steps.txt", "--columns", columns, "--overwrite")
    assert "'C:/rec/other/b.mp4' is a clip of 'C:/rec/other'" in refused(capsys, *argv)


@pytest.mark.parametrize(
    ("clip", "more", "message"),
    [
        ("/v/clips/a.mp4;/v/clips/b.mp4", {}, "'/v/clips/a.mp4;/v/clips/b.mp4' names several clips"),
        ("C:\\clips\\a.mp4 | C:\\clips\\b.mp4", {}, "'C:/clips/a.mp4 | C:/clips/b.mp4' names several clips"),
        ("/v/clips/b.mp4", {"Media duration (s)": "3.0;3.0"}, "is of an observation of several media"),
        ("/v/clips/b.mp4", {"Source": "player #1:/v/a.mp4;/v/b.mp4"}, "is of an observation of several media"),
        ("/v/clips/b.mp4", {"Source": "player #1:/a.mp4|player #2:/b.mp4"}, "is of an observation of several media"),
        ("/v/clips/b.mp4", {"Time offset (s)": "0.500"}, "is of an observation with a time offset of 0.500 s"),
        ("/v/clips/b.mp4", {"Time offset (s)": "0.000", "Source": "x;y", "Media duration (s)": "3.0"}, None),
    ],
)
def test_times_of_boris_are_those_of_one_clip(folder, capsys, clip, more, message):
    """BORIS counts from the start of the observation, whatever clips it has."""
    head = ["clip", "step", "start", "end", *more]
    cells = [clip, "insert fan", "0.5", "1", *more.values()]
    Path("spans.tsv").write_text("\t".join(head) + "\n" + "\t".join(cells) + "\n")
    argv = ("--answers", "spans.tsv", "--steps", "steps.txt")
    if message is None:
        run(capsys, *argv)
    else:
        assert f"spans.tsv:2: {message}" in refused(capsys, *argv)


@pytest.mark.parametrize("column", ["Total length", "Media duration (s)", "Media file"])
def test_an_observation_of_boris_that_names_several_clips_is_refused(folder, capsys, column):
    """BORIS 7 names the clip of each row, and counts from the start of the first one."""
    head = f"Observation id,clip,{column},step,start,end"
    rows = ["o,a.mp4,6.0,1,0.5,1", "p,b.mp4,3.0,1,0.5,1"]
    argv = ("--answers", "spans.csv", "--steps", "steps.txt")
    Path("spans.csv").write_text("\n".join([head, *rows, "o,c.mp4,6.0,2,1,2"]))
    assert "spans.csv:4: is of an observation of several media" in refused(capsys, *argv)
    Path("spans.csv").write_text("\n".join([head, *rows]))
    run(capsys, *argv)
    assert len(solutions()) == 2
    without = [line.partition(",")[2] for line in (head, *rows)]
    Path("spans.csv").write_text("\n".join(without))
    run(capsys, *argv, "--overwrite")
    assert len(solutions()) == 2


def test_two_observations_of_one_clip_are_not_merged(folder, capsys):
    """They may be those of two people, who have labelled the same clip."""
    head = "Observation id,clip,step,start,end"
    rows = ["anna,a.mp4,1,0.5,1", "anna,b.mp4,1,0.5,1", "ben,a.mp4,1,0.6,1.1"]
    Path("spans.csv").write_text("\n".join([head, *rows]))
    argv = ("--answers", "spans.csv", "--steps", "steps.txt")
    said = refused(capsys, *argv)
    assert "spans.csv, observation 'ben': has labels of a.mp4, and so has spans.csv, observation 'anna'" in said
    Path("spans.csv").write_text("\n".join([head, *rows[:2]]))
    run(capsys, *argv)
    assert solutions() == ["0.5-1.0 (1) insert fan", "0.5-1.0 (1) insert fan"]


def test_a_name_in_other_characters_of_the_same_letters_is_found(folder, capsys):
    shutil.copy("clips/a.mp4", "clips/Pru\N{COMBINING DIAERESIS}fung.mp4")
    Path("spans.csv").write_text("clip,step,start,end\nPr\N{LATIN SMALL LETTER U WITH DIAERESIS}fung.mp4,1,0,1\n")
    run(capsys, "--answers", "spans.csv", "--steps", "steps.txt")
    assert solutions() == ["0.0-1.0 (1) insert fan"]


@pytest.mark.parametrize(
    ("times", "said"),
    [
        ((("00:00:00", "00:03.50"), ("00:03.50", "00:08:00")), "whole minutes"),
        ((("0", "00:01:00"), ("00:01:00", "00:02:00")), "whole minutes"),
        ((("00:00:00", "00:03.50"), ("00:03.50", "00:08.00")), ""),
        ((("00:00:00", "00:01:00"), ("00:01:00", "00:01:30")), ""),
        ((("0", "0.00694444444"), ("0.00694444444", "0.00625")), "keeps 0.004861111 days"),
        ((("0.5333333333", "0.9333333333"), ("0.9333333333", "2")), ""),
        ((("0.0", "0.25"), ("0.25", "0.5")), ""),
    ],
)
def test_times_that_a_spreadsheet_has_changed_are_said(times, said):
    spans = [LabelledSpan("t:1", "a.mp4", "1", start, end) for start, end in times]
    assert said in notice_about_times(spans) and bool(said) == bool(notice_about_times(spans))


def test_spans_of_one_step_that_overlap_are_named(folder, capsys):
    argv = ("--answers", "spans.csv", "--steps", "steps.txt", "--overwrite")
    Path("spans.csv").write_text("clip,step,start,end\na,1,0,1.5\na,2,0.5,1\na,1,1.5,2\n")
    assert "overlap" not in run(capsys, *argv)
    Path("spans.csv").write_text("clip,step,start,end\na,1,0.1,1.6\na,2,0.5,1\na,1,0,1.5\nb,1,0,1\n")
    said = run(capsys, *argv)
    assert "spans of one step overlap in 1 clip ('insert fan' in a.mp4), as where two people have labelled it" in said


@pytest.mark.parametrize(
    ("files", "argv", "message"),
    [
        ({"s.csv": "clip,step,start,end\na,1,0,1\n"}, [], "s.csv:2: '1' is a number; give the names"),
        ({"s.csv": "clip,step,start,end\na,2.0,0,1\n"}, [], "s.csv:2: '2.0' is a number; give the names"),
        (
            {"s.csv": "clip,step,start,end\na,take,0,1\na,take,0,1.0\n"},
            [],
            "s.csv:3: a.mp4 has 'take' at 0.0 s twice; leave one out",
        ),
        (
            {"s.csv": "clip,step,start,end,start_frame,end_frame\na,take,0,1,3,9\n"},
            [],
            "s.csv:2: has a span in seconds and one in frames",
        ),
        ({"s.csv": "clip,step,start,end\na,lid (2),0,1\n"}, [], "s.csv:2: 'lid (2)'"),
        ({"s.csv": "clip,step,start,end\na,盖②,0,1\n"}, [], "s.csv:2: '盖②'"),
        ({"s.csv": "clip,step,start,end\na,转 2～3 次,0,1\n"}, [], "s.csv: step 1, '转 2～3 次': ranges"),
        *(
            ({"s.csv": f"clip,step,start,end\na,{one},0,1\nb,{other},0,1\n"}, [], f"and {one!r} would be step 1; give")
            for one, other in (("2. insert fan", "1. take lid"), ("Step 2", "Step 1"))
        ),
        ({"s.csv": "clip,step,start_frame,end_frame\na,1,0,40\n"}, ["--steps", "steps.txt"], "s.csv:2: frame 41 is"),
        ({"s.csv": "clip,step,start_frame,end_frame\na,1,0,9.5\n"}, ["--steps", "steps.txt"], "s.csv:2: end_frame"),
        ({"s.csv": "clip,step,start,end\na,turn 2-3 times,0,1\n"}, [], "s.csv: step 1, 'turn 2-3 times'"),
        ({"s.csv": "clip,step,start,end,id\na,lid,0,1,3\n"}, [], "the column 'id' has another meaning"),
        ({"s.csv": "clip,answer\na,1\n"}, ["--steps", "steps.txt", "--label_fps", "5"], "--label_fps has no effect"),
        (
            {"s.csv": "clip,step,start,end\na,lid,0,1\n"},
            ["--label_fps", "5"],
            "--label_fps has no effect: the spans of s.csv are in seconds",
        ),
        ({"s.csv": "clip,step,start,end\na,lid,0,1\n"}, ["--label_fps", "0"], "--label_fps must be above 0"),
        ({"s.csv/x.txt": "lid\n"}, [], "no label of a clip in it; expected files such as a.txt"),
        ({"s.csv/a.txt": "lid\n\nlid\n"}, [], "a.txt:2: expected a label for each frame"),
        ({"s.csv/a.txt": "1-5 lid\nlid\n"}, [], "a.txt:2: expected a span like that of line 1"),
        ({"s.csv/a.txt": "0-5 lid\n"}, [], "a.txt:1: a span begins before the first frame"),
        ({"s.csv/a.txt": "0-5 SIL\n6-9 lid\n"}, [], "a.txt:1: a span begins before the first frame"),
        ({"s.csv/a.txt": "lid\n" * 40}, [], "a.txt:1: frame 40 is beyond the clip"),
    ],
)
def test_bad_tables_of_spans_and_bad_labels_are_refused_with_their_line(files, argv, message, folder, capsys):
    for name, text in files.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)
    assert message in refused(capsys, "--answers", "s.csv", *argv)


def test_label_files_of_no_clip_are_named(folder, capsys):
    Path("labels/night").mkdir(parents=True)
    for name in ("a", "b1", "night/c2"):
        Path(f"labels/{name}.txt").write_text("1-10 close_lid\n")
    out = run(capsys, "--answers", "labels", "--steps", "steps.txt")
    assert "2 label files of no clip, left out: b1.txt, night/c2.txt" in out
    assert "no label files" not in out
    for name in ("b.csv", "night/c.SRT", ".hidden", "c.mp4"):
        Path(f"labels/{name}").write_text("0,1,close_lid\n")
    out = run(capsys, "--answers", "labels", "--steps", "steps.txt", "--overwrite")
    assert "2 files beside them that are no label files, left out: b.csv, night/c.SRT" in out
    Path("labels/night/x.EAF").write_text(EAF.replace("a.mp4", "b.mp4"))
    run(capsys, "--answers", "labels", "--steps", "steps.txt", "--overwrite")
    assert solutions()[1] == "0.0-1.25 (1) insert fan"


@pytest.mark.parametrize("lines", ["0,1\t2,9\ttake", "0,1 2,9 take", "0,1,2,9,take", "0.5, 2 take"])
def test_label_files_with_decimal_commas_are_refused(folder, capsys, lines):
    Path("labels").mkdir()
    Path("labels/a.txt").write_text(lines)
    problem = "labels/a.txt:1: expected start, end and label, with decimal points"
    assert problem in refused(capsys, "--answers", "labels")


@pytest.mark.parametrize("line", ["0 0.5 1.5 take", "0,0.5,1.5,take", "0\t1\t2, take"])
def test_an_index_in_front_of_spans_is_refused(folder, capsys, line):
    Path("labels").mkdir()
    Path("labels/a.txt").write_text(line)
    assert "labels/a.txt:1: expected start, end and label, got three numbers" in refused(capsys, "--answers", "labels")


@pytest.mark.parametrize("line", ["0.5 2 take", "0.5\t2.0\ttake", "0.5,2,take", "0.5, 2, take"])
def test_label_files_have_blanks_or_commas_between_start_end_and_label(folder, capsys, line):
    Path("labels").mkdir()
    Path("labels/a.txt").write_text(line)
    run(capsys, "--answers", "labels")
    assert solutions() == ["0.5-2.0 (1) take"]


def test_files_of_labels_and_steps_are_utf8(folder, capsys):
    Path("labels").mkdir()
    Path("labels/a.txt").write_bytes("0 1 drück\n".encode("latin-1"))
    assert "labels/a.txt: expected UTF-8 text, found b'\\xfc'" in refused(capsys, "--answers", "labels")
    Path("steps.txt").write_bytes("drück\n".encode("latin-1"))
    said = refused(capsys, "--answers", "labels", "--steps", "steps.txt")
    assert "steps.txt: expected UTF-8 text, found" in said


@pytest.mark.parametrize(
    ("table", "columns", "both"),
    [
        ("clip,corrected,answer\na,2,1\n", "corrected=answer", "'corrected' and 'answer'"),
        ("clip,corrected,answer\na,,1\nb,2,\n", "corrected=answer", "'answer' and 'corrected'"),
        ("file,clip,answer\na,b,1\n", "file=clip", "'file' and 'clip'"),
        ("clip,step,start,end,Start (s)\na,1,0,1,2\n", "Start (s)=start", "'start' and 'Start (s)'"),
        ("clip,step,start,end,Start\na,1,0,1,2\n", "", "'start' and 'Start'"),
    ],
)
def test_no_column_hides_another(folder, capsys, table, columns, both):
    """Which of two columns counts must not depend on their order."""
    Path("labels.csv").write_text(table)
    renamed = ("--columns", columns) if columns else ()
    err = refused(capsys, "--answers", "labels.csv", "--steps", "steps.txt", *renamed)
    assert f"labels.csv: the columns {both} would both be read as" in err


@pytest.mark.parametrize("name", ["fps", "nframes", "resized_height", "video_start"])
def test_columns_that_would_be_settings_of_frames_are_refused(folder, capsys, name):
    Path("labels.csv").write_text(f"clip,answer,{name}\na,1,28\n")
    assert f"the column '{name}' has another meaning" in refused(
        capsys, "--answers", "labels.csv", "--steps", "steps.txt"
    )
    Path("spans.csv").write_text(f"clip,step,start,end,{name}\na,1,0,1,28\n")
    assert f"the column '{name}' has another meaning" in refused(
        capsys, "--answers", "spans.csv", "--steps", "steps.txt"
    )


def test_a_renamed_column_must_be_in_the_table(folder, capsys):
    Path("labels.csv").write_text("clip,answer\na,1\n")
    err = refused(capsys, "--answers", "labels.csv", "--steps", "steps.txt", "--columns", "Foo=clip")
    assert "labels.csv: --columns names 'Foo'; the table has clip, answer" in err


def test_a_column_gives_its_name_to_another(folder, capsys):
    Path("labels.csv").write_text("clip,corrected,answer\na,2,1\n")
    columns = "corrected=answer,answer=draft"
    run(capsys, "--answers", "labels.csv", "--steps", "steps.txt", "--columns", columns)
    assert solutions() == ["(2) close lid"] and records()[0].fields["draft"] == "1"
