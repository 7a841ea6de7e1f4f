import json
import os

import pytest

from qwenvl.data.errors import RecordError
from qwenvl.data.records.catalog import DatasetSource
from qwenvl.data.records.parse import ReadOptions
from qwenvl.data.records.record_file import open_records
from qwenvl.types import ClipMeta, Message


def read(path, percent=100.0, seed=0, **options):
    return open_records(DatasetSource("steps", path, path.parent, percent), seed=seed, **options)


class TestWhatIsRead:
    def test_a_full_row(self, write_rows, tmp_path):
        row = {
            "id": 17,
            "conversations": [
                {"from": "system", "value": "You watch a station."},
                {"from": "human", "value": "<video>\nWhich steps?"},
                {"from": "gpt", "value": "(1)?"},
                {"from": "human", "value": "Look again."},
                {"from": "gpt", "value": " <answer>(2) fan</answer>\n"},
            ],
            "video": "clips/a b é.mp4",
            "meta": {"frame_cnts": [3, 4.5], "min_frames": 2, "max_frames": 4.0, "dynamic_sample": True, "note": "x"},
            "station": {"line": 7},
        }
        path = write_rows([row])
        (record,) = read(path)
        assert record.id == "17"
        assert record.messages == (
            Message("system", "You watch a station."),
            Message("user", "<video>\nWhich steps?"),
            Message("assistant", "(1)?"),
            Message("user", "Look again."),
        )
        assert record.solution == " <answer>(2) fan</answer>\n", "raw, white space and all"
        assert record.videos == (str(tmp_path / "clips" / "a b é.mp4"),)
        assert record.clip_meta == (ClipMeta((3.0, 4.5), 2, 4, True),)
        assert record.fields == row, "unknown keys reach the reward functions"
        assert record.where == f"{path}[0]"

    def test_an_array_and_json_lines_give_the_same_records(self, write_rows, make_row):
        rows = [make_row(id=i, image="a.png", prompt="<image> what?") for i in range(3)]
        array, lines = read(write_rows(rows)), read(write_rows(rows, "data.jsonl"))
        assert [r.messages for r in array] == [r.messages for r in lines]
        assert [r.where[-3:] for r in array] == ["[0]", "[1]", "[2]"]
        assert [r.where[-2:] for r in lines] == [":1", ":2", ":3"]

    def test_the_format_is_told_by_content_a_byte_order_mark_aside(self, make_row, tmp_path):
        path = tmp_path / "lines.json"
        path.write_bytes(b"\xef\xbb\xbf" + json.dumps(make_row()).encode() + b"\n\n" + json.dumps(make_row()).encode())
        assert [record.where for record in read(path)] == [f"{path}:1", f"{path}:3"]

    def test_rows_without_id_are_numbered(self, write_rows, make_row):
        assert [r.id for r in read(write_rows([make_row(), make_row(id="x"), make_row()]))] == ["data-0", "x", "data-2"]

    def test_several_media_and_one_meta_for_each(self, write_rows, make_row, tmp_path):
        row = make_row(
            prompt="<video><image> then <video>",
            video=["a.mp4", "b.mp4"],
            image="c.png",
            meta=[None, {"max_frames": 2}],
        )
        (record,) = read(write_rows([row]))
        assert record.videos == (str(tmp_path / "a.mp4"), str(tmp_path / "b.mp4"))
        assert record.images == (str(tmp_path / "c.png"),)
        assert record.clip_meta == (None, ClipMeta(max_frames=2))

    def test_a_tag_in_the_solution_is_text(self, write_rows, make_row):
        assert read(write_rows([make_row(solution="<video> (1) a")]))[0].solution == "<video> (1) a"


class TestPercent:
    def test_takes_a_seeded_share_in_file_order(self, write_rows, make_row):
        path = write_rows([make_row(id=i) for i in range(40)])
        taken = [int(r.id) for r in read(path, percent=25)]
        assert len(taken) == 10
        assert taken == sorted(taken)
        assert taken == [int(r.id) for r in read(path, percent=25)]
        assert taken != [int(r.id) for r in read(path, percent=25, seed=1)]

    def test_never_takes_nothing(self, write_rows, make_row):
        assert len(read(write_rows([make_row(), make_row()]), percent=1)) == 1


H, G = {"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([1], r"[0]: expected an object with `conversations`, `messages` or `prompt`, got list [1]"),
        ("x", "[0]: expected an object with `conversations`, `messages` or `prompt`, got string"),
        ({}, "[0]: expected an object with `conversations`, `messages` or `prompt`, got object {}"),
        ({"conversations": "a"}, "[0].conversations: expected a list of turns {'from': ..., 'value': ...}, got string"),
        ({"conversations": []}, "[0].conversations: expected a list of turns"),
        ({"conversations": ["a"]}, "[0].conversations[0]: expected {'from': ..., 'value': ...}, got string \"a\""),
        (
            {"conversations": [{"from": "usr", "value": "a"}, G]},
            '[0].conversations[0].from: expected "human" or "gpt" (or a first "system"), got "usr"',
        ),
        ({"conversations": [{"value": "a"}, G]}, "[0].conversations[0].from: expected"),
        ({"conversations": [{"from": "human", "value": 3}, G]}, "[0].conversations[0].value: expected a string, got"),
        ({"conversations": [H]}, '[0].conversations[0].from: expected the last turn to be "gpt", the solution'),
        ({"conversations": [H, G, H]}, "[0].conversations[2].from: expected the last turn"),
        ({"conversations": [G]}, "[0].conversations: expected a user turn right before the solution"),
        ({"conversations": [H, G, G]}, "[0].conversations: expected a user turn right before"),
        ({"conversations": [H, {"from": "gpt", "value": " "}]}, "[0].conversations[1].value: the solution is empty"),
        (
            {"conversations": [H, {"from": "system", "value": "s"}, G]},
            "[0].conversations[1]: a system turn must be the first, this is turn 2",
        ),
        (
            {"conversations": [{"from": "human", "value": "<|video_pad|>"}, G]},
            "[0].conversations[0].value: contains the model's own token <|video_pad|>",
        ),
        *(
            (
                {"conversations": [{"from": "human", "value": f"Which?{token} More"}, G]},
                f"[0].conversations[0].value: contains the model's own token {token}",
            )
            for token in ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
        ),
        ({"id": 1.5, "conversations": [H, G]}, "[0].id: expected a string or a whole number, got number 1.5"),
        ({"id": True, "conversations": [H, G]}, "[0].id: expected a string or a whole number, got boolean true"),
    ],
)
def test_a_bad_conversation_says_where_and_what(write_rows, row, message):
    path = write_rows([row])
    with pytest.raises(RecordError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}{message}")


@pytest.mark.parametrize(
    ("meta", "message"),
    [
        ([], "[0].meta: expected one entry per video (1), got 0"),
        (
            3,
            "[0].meta: expected an object with some of frame_cnts, min_frames, max_frames, dynamic_sample,",
        ),
        ({"frame_cnts": ["5"]}, '[0].meta.frame_cnts[0]: expected a number of frames above 0, got string "5"'),
        ({"frame_cnts": [0]}, "[0].meta.frame_cnts[0]: expected a number of frames above 0, got number 0"),
        ({"frame_cnts": []}, "[0].meta.frame_cnts: expected a list of frame counts, got list []"),
        ({"frame_cnts": 5}, "[0].meta.frame_cnts: expected a list of frame counts, got number 5"),
        ({"frame_cnts": [float("inf")]}, "[0].meta.frame_cnts[0]: expected a number of frames"),
        ({"min_frames": "4"}, '[0].meta.min_frames: expected a whole number of frames of at least 1, got string "4"'),
        ({"max_frames": 2.5}, "[0].meta.max_frames: expected a whole number of frames"),
        ({"max_frames": float("nan")}, "[0].meta.max_frames: expected a whole number of frames"),
        ({"min_frames": 5, "max_frames": 4}, "[0].meta: expected min_frames <= max_frames, got 5 and 4"),
        ({"min_frames": 10**400}, "[0].meta.min_frames: expected a whole number of frames of at least 1"),
        ({"frame_counts": [5]}, "[0].meta: the key 'frame_counts' is not known; did you mean 'frame_cnts'? A key of"),
        ({"maxFrames": 5}, "[0].meta: the key 'maxFrames' is not known; did you mean 'max_frames'?"),
        ({"video-start": 5}, "[0].meta: the key 'video-start' is not known; did you mean 'video_start'?"),
        (
            {"dynamic_sampling": True},
            "[0].meta: the key 'dynamic_sampling' is not known; did you mean 'dynamic_sample'?",
        ),
        ({"dynamic_sample": "yes"}, '[0].meta.dynamic_sample: expected true or false, got string "yes"'),
        ({"span": [[1, 2]]}, "[0].meta: the key 'span' is not known; did you mean 'spans'?"),
        ({"spans": []}, "[0].meta.spans: expected a list of spans in seconds such as [[12.5, 20], [31, 40]], got list"),
        ({"spans": [1, 2]}, "[0].meta.spans[0]: expected two numbers of at least 0, got number 1"),
        ({"spans": [[1, 2, 3]]}, "[0].meta.spans[0]: expected two numbers of at least 0, got list [1, 2, 3]"),
        ({"spans": [[-1, 2]]}, "[0].meta.spans[0]: expected two numbers of at least 0, got list [-1, 2]"),
        ({"spans": [[1, 2], [5, 4]]}, "[0].meta.spans[1]: expected a start before the end, got 5 and 4"),
        ({"spans": [[3, 4], [1, 2]]}, "[0].meta.spans[1]: begins at 1 s, before the end of the one before it, 4 s; "),
        ({"spans": [[1, 3], [2, 4]]}, "[0].meta.spans[1]: begins at 2 s, before the end of the one before it, 3 s; "),
        ({"spans": [[1, 2]], "video_end": 5}, "[0].meta: spans say where frames are taken; expected no frame_cnts, "),
        ({"spans": [[1, 2]], "frame_cnts": [5]}, "[0].meta: spans say where frames are taken; expected no frame_cnts"),
    ],
)
def test_a_bad_meta_says_where_and_what(write_rows, make_row, meta, message):
    path = write_rows([make_row(prompt="<video>", video="a.mp4", meta=meta)])
    with pytest.raises(RecordError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}{message}")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"prompt": "no tag", "video": "a.mp4"}, "the prompt has 0 <video> tags but `video` names 1 files"),
        ({"prompt": "<image><image>", "image": "a.png"}, "the prompt has 2 <image> tags but `image` names 1 files"),
        (
            {"prompt": "<video><video>", "video": ["a", "b"], "meta": {}},
            "expected a list, one entry for each of 2 videos",
        ),
        ({"prompt": "<video>", "video": 7}, ".video: expected a path, got number 7"),
        ({"prompt": "<video>", "video": [""]}, '.video[0]: expected a path, got string ""'),
        ({"prompt": "<video>", "video": "a\0b"}, ".video: expected a path"),
    ],
)
def test_tags_and_media_must_agree(write_rows, make_row, keys, message):
    with pytest.raises(RecordError) as caught:
        read(write_rows([make_row(**keys)]))
    assert message in str(caught.value)


class TestMediaRoot:
    @pytest.fixture
    def root(self, tmp_path):
        (tmp_path / "root").mkdir()
        (tmp_path / "secret.mp4").write_text("x")
        os.symlink(tmp_path / "secret.mp4", tmp_path / "root" / "link.mp4")
        return tmp_path / "root"

    @pytest.mark.parametrize("path", ["../secret.mp4", "a/../../secret.mp4", "link.mp4", "/etc/hostname", "/dev/zero"])
    def test_paths_may_not_leave_it(self, root, write_rows, make_row, path):
        source = DatasetSource("s", write_rows([make_row(prompt="<video>", video=path)]), root)
        with pytest.raises(RecordError, match=r"\[0\].video: .* leads out of the media root .*--allow_outside_media"):
            open_records(source, seed=0)
        (record,) = open_records(source, seed=0, options=ReadOptions(allow_outside_media=True))
        assert record.videos == (os.path.realpath(root / path),)

    def test_absolute_paths_inside_and_a_root_that_is_a_link_are_fine(self, root, tmp_path, write_rows, make_row):
        os.symlink(root, tmp_path / "alias")
        row = make_row(prompt="<video><video>", video=[str(tmp_path / "alias" / "a.mp4"), "sub/../b.mp4"])
        (record,) = open_records(DatasetSource("s", write_rows([row]), tmp_path / "alias"), seed=0)
        assert record.videos == (str(root / "a.mp4"), str(root / "b.mp4"))


class TestFiles:
    def test_truncated_json_names_line_and_column(self, tmp_path):
        path = tmp_path / "data.json"
        path.write_text('[\n {"id": 1,\n')
        with pytest.raises(RecordError, match=r"data.json\[0\]: not valid JSON: .* at line 3 column 1"):
            read(path)

    def test_a_bad_line_names_its_number(self, tmp_path, make_row):
        path = tmp_path / "data.jsonl"
        path.write_text(json.dumps(make_row()) + "\n{oops\n")
        with pytest.raises(RecordError, match=r"data.jsonl:2: not valid JSON"):
            read(path)

    def test_bytes_that_are_not_utf8(self, tmp_path):
        (tmp_path / "data.json").write_bytes(b'[{"id": "\xff"}]')
        with pytest.raises(RecordError, match="expected UTF-8 text, found"):
            read(tmp_path / "data.json")

    @pytest.mark.parametrize("content", ["", "[]", "\n \n"])
    def test_no_records(self, tmp_path, content):
        (tmp_path / "data.json").write_text(content)
        with pytest.raises(RecordError, match="no records in the file"):
            read(tmp_path / "data.json")

    def test_a_bottomless_row(self, tmp_path):
        (tmp_path / "data.json").write_text("[" * 100_000)
        with pytest.raises(RecordError, match=r"nested too deeply|not valid JSON"):
            read(tmp_path / "data.json")

    def test_the_same_id_twice_names_both_places(self, write_rows, make_row):
        with pytest.raises(RecordError, match=r"data.json\[1\].id: '7' is already the id of .*data.json\[0\]"):
            read(write_rows([make_row(id=7), make_row(id="7")]))


def test_a_solution_that_no_reward_can_score_is_refused(write_rows, make_row):
    check = lambda record: None if "(" in record.solution else "the solution names no action"
    path = write_rows([make_row(), make_row(solution="<answer></answer>")])
    with pytest.raises(RecordError, match=r"data.json\[1\]: the solution names no action"):
        read(path, check_record=check)
