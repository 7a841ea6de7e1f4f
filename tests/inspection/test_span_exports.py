"""Labels with times as Label Studio and ELAN export them, made to records."""

import json
import shutil
from pathlib import Path

import pytest

from tests.inspection.from_folder import EAF, records, refused, run, solutions


def test_exports_of_label_studio_become_timelines(folder, capsys):
    frames = {"ranges": [{"start": 6, "end": 15}], "timelinelabels": ["insert fan"]}
    seconds = {"start": 1.5, "end": 3, "channel": 0, "labels": ["close lid"]}
    results = [
        [{"type": "timelinelabels", "value": frames}, {"type": "choices", "value": {"choices": ["good"]}}],
        [{"type": "labels", "value": seconds}],
    ]
    clips = ["/data/upload/1/0a1b2c3d-a.mp4", "/data/local-files/?d=station/b.mp4"]
    tasks = [
        {"data": {"video": clip}, "annotations": [{"was_cancelled": True, "result": []}, {"result": result}]}
        for clip, result in zip(clips, results, strict=True)
    ]
    Path("export.json").write_text(json.dumps(tasks))
    run(capsys, "--answers", "export.json", "--steps", "steps.txt")
    assert solutions() == ["0.5-1.5 (1) insert fan", "1.5-3.0 (2) close lid"]
    run(capsys, "--answers", "export.json", "--steps", "steps.txt", "--label_fps", "5", "--overwrite")
    assert solutions()[0] == "1.0-3.0 (1) insert fan"
    frames["ranges"] = [{"start": 6.5, "end": 15}]
    Path("export.json").write_text(json.dumps(tasks))
    said = refused(capsys, "--answers", "export.json", "--steps", "steps.txt", "--overwrite")
    assert "export.json[0].result[0]: expected numbers of frames, got 6.5 to 15" in said


@pytest.mark.parametrize(
    ("address", "clip"),
    [
        ("/data/local-files/?d=station-1/one.mp4", "station-1/one.mp4"),
        ("file:///C:/clips/station-2/one.mp4", "station-2/one.mp4"),
        ("C:\\clips\\station-2\\one.mp4", "station-2/one.mp4"),
        ("/data/local-files/?d=station-3/one.mp4", None),
        ("/data/upload/1/0a1b2c3d-one.mp4", None),  # has no folder
        ("/data/local-files/?d=station-1/two.mp4", "station-1/two.mp4"),
        ("/data/local-files/?d=station-2/two.mp4", None),  # that of another station
        ("/data/upload/1/0a1b2c3d-two.mp4", "station-1/two.mp4"),
        ("/data/local-files/?d=videos/a.mp4", "a.mp4"),  # another name of the whole folder
    ],
)
def test_a_clip_of_an_export_is_found_by_its_folders_too(folder, capsys, address, clip):
    for other in ("station-1/one.mp4", "station-2/one.mp4", "station-1/two.mp4"):
        Path(f"clips/{other}").parent.mkdir(exist_ok=True)
        shutil.copy("clips/a.mp4", f"clips/{other}")
    value = {"ranges": [{"start": 6, "end": 15}], "timelinelabels": ["insert fan"]}
    result = [{"type": "timelinelabels", "value": value}]
    Path("export.json").write_text(json.dumps([{"data": {"video": address}, "annotations": [{"result": result}]}]))
    argv = ("--answers", "export.json", "--steps", "steps.txt")
    if clip is None:
        assert "export.json[0].result[0]: " in refused(capsys, *argv)
    else:
        run(capsys, *argv)
        [record] = json.loads(Path("clips/records.json").read_text())
        assert record["id"] == clip


def region(label, start, end, **more):
    value = {"start": start, "end": end, "labels": [label]}
    return {"type": "labels", "value": value, **more}


def exported(data, *annotations) -> None:
    Path("export.json").write_text(json.dumps([{"data": data, "annotations": list(annotations)}]))


def test_several_annotations_of_a_task_have_the_same_labels_or_one_is_the_truth(folder, capsys):
    argv = ("--answers", "export.json", "--steps", "steps.txt", "--overwrite")
    one, two = ({"result": [region(label, 0, 1)]} for label in ("insert fan", "close lid"))
    exported({"video": "a.mp4"}, one, two)
    assert "export.json[0]: has 2 annotations with different labels; keep one" in refused(capsys, *argv)
    choice = {"type": "choices", "value": {"choices": ["good"]}}
    more = {"result": [choice, *one["result"], {"type": "relation", "from_id": "a", "to_id": "b"}]}
    truth = one | {"ground_truth": True}
    for annotations in ((one, one), (more, one), (two, truth), (two | {"was_cancelled": True}, one)):
        exported({"video": "a.mp4"}, *annotations)
        run(capsys, *argv)
        assert solutions() == ["0.0-1.0 (1) insert fan"]
    both = [region("insert fan", 0, 1), region("close lid", 1, 2)]
    exported({"video": "a.mp4"}, {"result": both}, {"result": both[::-1]})
    run(capsys, *argv)
    assert solutions() == ["0.0-1.0 (1) insert fan\n1.0-2.0 (2) close lid"]


def test_labels_of_another_folder_are_not_those_of_clips_of_the_same_name(folder, capsys):
    def export(*paths):
        tasks = []
        for path in paths:
            result = [region("insert fan", 0, 1)]
            tasks.append({"data": {"video": f"/data/local-files/?d={path}"}, "annotations": [{"result": result}]})
        Path("export.json").write_text(json.dumps(tasks))

    argv = ("--answers", "export.json", "--steps", "steps.txt", "--overwrite")
    export("clips/a.mp4", "station-2/b.mp4")
    said = refused(capsys, *argv)
    assert "'station-2/b.mp4' is a clip of 'station-2', and other labels are of clips of 'clips'" in said
    export("station-1/a.mp4", "station-2/b.mp4")
    assert "of 'station-2', and other labels are of clips of 'station-1'" in refused(capsys, *argv)
    export("Clips/a.mp4", "b.mp4")
    assert "are taken for" not in run(capsys, *argv)
    export("station-2/a.mp4", "station-2/b.mp4")
    assert "labels of the clips of 'station-2' are taken for those of this folder" in run(capsys, *argv)
    assert len(solutions()) == 2


def test_a_name_with_signs_of_addresses_is_found(folder, capsys):
    shutil.copy("clips/a.mp4", "clips/a#2?.mp4")
    Path("a.eaf").write_text(EAF.replace("file:///home/me/a.mp4", "file:///C:/rec/clips/a#2?.mp4"))
    run(capsys, "--answers", "a.eaf", "--overwrite")
    assert [record["id"] for record in json.loads(Path("clips/records.json").read_text())] == ["a#2?.mp4"]
    absolute = 'MEDIA_URL="file:///home/me/a.mp4"'
    Path("b.eaf").write_text(EAF.replace(absolute, 'MEDIA_URL="" RELATIVE_MEDIA_URL="./a#2?.mp4"'))
    run(capsys, "--answers", "b.eaf", "--steps", "steps.txt", "--overwrite")
    assert [record.id for record in records()] == ["a#2?.mp4"], "and not a.mp4"


def test_a_region_without_a_label_is_refused(folder, capsys):
    empty = {"type": "timelinelabels", "value": {"ranges": [{"start": 6, "end": 15}], "timelinelabels": []}}
    exported({"video": "a.mp4"}, {"result": [region("insert fan", 0, 1), empty]})
    said = refused(capsys, "--answers", "export.json", "--steps", "steps.txt")
    assert "export.json[0].result[1]: expected the name of a step, got a region without a label" in said
    box = {"type": "labels", "value": {"sequence": [{"frame": 1, "x": 2}], "labels": ["insert fan"]}}
    exported({"video": "a.mp4"}, {"result": [region("insert fan", 0, 1), box]})
    said = refused(capsys, "--answers", "export.json", "--steps", "steps.txt")
    assert "export.json[0].result[1]: expected a label of the clip with start and end, got" in said


def test_a_task_has_one_clip(folder, capsys):
    argv = ("--answers", "export.json", "--steps", "steps.txt", "--overwrite")
    result = [region("insert fan", 0, 1, to_name="left"), region("close lid", 0, 1, to_name="right")]
    exported({"left": "a.mp4", "right": "b.mp4"}, {"result": result})
    assert "export.json[0]: has labels of several media; make tasks of one clip each" in refused(capsys, *argv)
    exported({"left": "a.mp4", "right": "b.mp4"}, {"result": result[:1]})
    assert "several media" in refused(capsys, *argv)
    exported({"video": "a.mp4", "video2": "b.mp4"}, {"result": result[:1]})
    assert "several media" in refused(capsys, *argv)
    exported({"text": "1.5 mm", "clip": "a.mp4", "poster": "a.jpg"}, {"result": result[:1]})
    run(capsys, *argv)
    assert solutions() == ["0.0-1.0 (1) insert fan"]


def test_an_export_of_another_kind_is_refused(folder, capsys):
    texts = {
        "{": "not valid JSON",
        "[" * 200_000: "nested too deeply",
        "{}": "list of tasks",
        '[{"data": 3}]': "export.json[0]: ",
    }
    for text, message in texts.items():
        Path("export.json").write_text(text)
        assert message in refused(capsys, "--answers", "export.json", "--steps", "steps.txt")


def test_files_of_elan_become_timelines(folder, capsys):
    Path("x.eaf").write_text(EAF)
    run(capsys, "--answers", "x.eaf", "--steps", "steps.txt")
    assert solutions() == ["0.0-1.25 (1) insert fan"]
    Path("labels").mkdir()
    Path("labels/one.eaf").write_text(EAF)
    Path("labels/._one.eaf").write_bytes(b"\0 of a Mac")  # hidden
    Path("labels/b.txt").write_text("close_lid\n" * 30)
    run(capsys, "--answers", "labels", "--steps", "steps.txt", "--overwrite")
    assert solutions() == ["0.0-1.25 (1) insert fan", "0.0-3.0 (2) close lid"]
    Path("x.eaf").write_text(EAF.replace('TIME_UNITS="milliseconds"', 'TIME_UNITS="PAL-frames"'))
    assert "x.eaf: expected TIME_UNITS" in refused(capsys, "--answers", "x.eaf", "--steps", "steps.txt")
    Path("x.eaf").write_text(EAF.replace('encoding="UTF-8"', 'encoding="X-MINE"'))
    assert "x.eaf: not valid XML" in refused(capsys, "--answers", "x.eaf", "--steps", "steps.txt")
    Path("x.eaf").write_text(EAF.replace('REF2="t2"', 'REF2="t3"'))
    assert "x.eaf[a1]: expected two time slots" in refused(capsys, "--answers", "x.eaf", "--steps", "steps.txt")


def test_a_clip_that_elan_names_from_the_file_alone_is_found(folder, capsys):
    absolute = 'MEDIA_URL="file:///home/me/a.mp4"'
    Path("b.eaf").write_text(EAF.replace(absolute, 'MEDIA_URL="" RELATIVE_MEDIA_URL="./a.mp4"'))
    run(capsys, "--answers", "b.eaf", "--steps", "steps.txt")
    [record] = records()
    assert record.id == "a.mp4"


def test_the_medium_of_an_old_elan_file_stands_in_its_header(folder, capsys):
    """Its own name is that of another clip."""
    descriptor = EAF[EAF.index("<MEDIA_DESCRIPTOR") : EAF.index("</HEADER>")]
    old = EAF.replace(descriptor, "").replace("<HEADER ", '<HEADER MEDIA_FILE="file:///C:/rec/clips/b.mp4" ')
    Path("a.eaf").write_text(old)
    run(capsys, "--answers", "a.eaf", "--steps", "steps.txt")
    assert [Path(record.videos[0]).name for record in records()] == ["b.mp4"]


def test_times_of_synchronized_media_in_elan_are_those_of_the_clip(folder, capsys):
    """A medium's TIME_ORIGIN is its time at the beginning of the file's. The first medium is the clip."""
    first = 'MIME_TYPE="video/mp4"/>'
    other = '<MEDIA_DESCRIPTOR MEDIA_URL="file:///home/me/other.mp4" TIME_ORIGIN="90"/>'
    Path("x.eaf").write_text(EAF.replace(first, f'TIME_ORIGIN="500" {first}{other}'))
    run(capsys, "--answers", "x.eaf", "--steps", "steps.txt")
    assert solutions() == ["0.5-1.75 (1) insert fan"]
    again = '<MEDIA_DESCRIPTOR MEDIA_URL="file:///home/me/a.mp4" TIME_ORIGIN="90"/>'
    Path("x.eaf").write_text(EAF.replace(first, f"{first}{again}"))
    message = refused(capsys, "--answers", "x.eaf", "--steps", "steps.txt", "--overwrite")
    assert "x.eaf: the file has several times at which a.mp4 begins (TIME_ORIGIN 0, 90)" in message
    Path("x.eaf").write_text(EAF.replace(first, f'TIME_ORIGIN="0.5 s" {first}'))
    assert "TIME_ORIGIN of a.mp4: expected milliseconds" in refused(
        capsys, "--answers", "x.eaf", "--steps", "steps.txt", "--overwrite"
    )


def test_two_label_files_of_a_clip_are_refused(folder, capsys):
    """Those of two people would become one timeline with all spans twice."""
    Path("labels").mkdir()
    Path("labels/a.txt").write_text("1-10 close_lid\n")
    for name in ("a", "copy"):
        Path(f"labels/{name}.eaf").write_text(EAF)
    err = refused(capsys, "--answers", "labels", "--steps", "steps.txt")
    assert "labels/a.eaf: has labels of a.mp4, and so has labels/a.txt; keep one of the two" in err
    assert "labels/copy.eaf: has labels of a.mp4, and so has labels/a.txt" in err
    region = {"type": "labels", "value": {"start": 0, "end": 1, "labels": ["close lid"]}}
    task = {"data": {"video": "/data/a.mp4"}, "annotations": [{"result": [region]}]}
    Path("export.json").write_text(json.dumps([task, task]))
    err = refused(capsys, "--answers", "export.json", "--steps", "steps.txt")
    assert "export.json[1]: has labels of a.mp4, and so has export.json[0]; keep one of the two" in err


def test_what_is_no_span_in_an_export_is_left_out_and_named(folder, capsys):
    argv = ("--steps", "steps.txt", "--overwrite")
    box = {"type": "videorectangle", "value": {"sequence": [{"frame": 1, "x": 2}], "labels": ["insert fan"]}}
    choice = {"type": "choices", "value": {"choices": ["good"]}}
    arrow = {"type": "relation", "from_id": "1", "to_id": "2"}
    exported({"video": "a.mp4"}, {"result": [region("insert fan", 0, 1), box, box, choice, arrow]})
    said = run(capsys, "--answers", "export.json", *argv)
    assert "of other kinds than spans, left out: videorectangle (2), choices (1), relation (1)\n" in said
    exported({"video": "a.mp4"}, {"result": [region("insert fan", 0, 1)]})
    assert "of other kinds" not in run(capsys, "--answers", "export.json", *argv)
    note = "<ANNOTATION><REF_ANNOTATION ANNOTATION_ID='n' ANNOTATION_REF='a1'><ANNOTATION_VALUE>slow</ANNOTATION_VALUE>"
    tier = f"<TIER TIER_ID='notes'>{note}</REF_ANNOTATION></ANNOTATION></TIER></ANNOTATION_DOCUMENT>"
    Path("labels").mkdir()
    Path("labels/one.eaf").write_text(EAF.replace("</ANNOTATION_DOCUMENT>", tier))
    for answers in ("labels/one.eaf", "labels"):
        said = run(capsys, "--answers", answers, *argv)
        assert "of other kinds than spans, left out: without times, of the tier notes (1)\n" in said


def test_a_path_that_may_be_that_of_two_clips_is_refused(folder, capsys):
    """It ends with one of them, and the other one ends with it."""
    Path("clips/st1/cam").mkdir(parents=True)
    shutil.copy("clips/a.mp4", "clips/st1/cam/a.mp4")
    result = [{"type": "labels", "value": {"start": 0, "end": 1, "channel": 0, "labels": ["close lid"]}}]
    argv = ("--answers", "export.json", "--steps", "steps.txt", "--overwrite")
    for path, clip in (("cam/a.mp4", None), ("st1/cam/a.mp4", "st1/cam/a.mp4"), ("a.mp4", "a.mp4")):
        task = {"data": {"video": f"/data/local-files/?d={path}"}, "annotations": [{"result": result}]}
        Path("export.json").write_text(json.dumps([task]))
        if clip is None:
            said = refused(capsys, *argv)
            assert "'cam/a.mp4' may be a.mp4 or st1/cam/a.mp4; take the folder of one of them" in said
        else:
            run(capsys, *argv)
            assert [record.id for record in records()] == [clip]
