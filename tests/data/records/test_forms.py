"""The forms of rows and of ``meta``: what a record takes from them, and what is wrong with a row."""

import json
from pathlib import Path

import pytest

from qwenvl.data.errors import RecordError
from qwenvl.data.records.cells import with_types
from qwenvl.data.records.forms import draft_of
from qwenvl.data.records.parse import ReadOptions, Row, parse_columns, read_row, record_hints
from qwenvl.types import ClipMeta, Message

PARTS = [
    {"type": "video", "video": "a.mp4", "fps": 2, "max_frames": 6, "video_start": 1.5},
    {"type": "text", "text": "Then "},
    {"type": "image_url", "image_url": {"url": "b.png"}},
    {"type": "text", "text": " which?"},
]
U = {"role": "user", "content": "a"}
H, G = {"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}


def parsed(row, root="/media", **options):
    return read_row(Row("d[0]", "d-0", row), Path(root), ReadOptions(**options))


class TestConversations:
    def test_a_row_keeps_turns_media_meta_and_unknown_keys(self, tmp_path):
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
        record = parsed(row, tmp_path)
        assert (record.id, record.where) == ("17", "d[0]")
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

    def test_keys_and_roles_of_other_trainers_are_read(self):
        says = [{"from": "human", "value": "<image>Which?"}, {"from": "gpt", "value": "<image>?"}]
        record = parsed({"id": "a", "conversations": says, "video": "a.mp4", "image": None, "system": "Be brief."})
        assert record.id == "d-0", "rows of a clip share its id in LLaVA-Video-178K"
        assert record.messages == (Message("system", "Be brief."), Message("user", "<video>Which?"))
        assert (record.videos, record.solution) == (("/media/a.mp4",), "<image>?"), "a clip, as in LLaVA-Video-178K"
        says = [{"from": "user", "value": "Which?"}, {"from": "bot", "value": "?"}, U]
        record = parsed({"messages": says, "videos": ["a.mp4"], "images": ["b.png"]})
        assert [m.text for m in record.messages] == ["<video><image>Which?", "?", "a"]
        turns = [{"role": "user", "content": "Which?"}]
        for answer in ({"answer": "x"}, {"completion": [{"role": "assistant", "content": "x"}]}, {"solution": "x"}):
            record = parsed({"prompt": turns, "image": "b.png"} | answer)
            assert (record.messages, record.solution) == ((Message("user", "<image>Which?"),), "x")

    def test_each_of_several_media_has_its_own_meta(self):
        turns = [{"from": "human", "value": "<video><image> then <video>"}, {"from": "gpt", "value": "<video> (1) a"}]
        media = {"video": ["a.mp4", "b.mp4"], "image": "c.png", "video_start": 1}
        record = parsed({"conversations": turns, "meta": [None, {"video_start": 2, "max_frames": 2}]} | media)
        assert (record.videos, record.images) == (("/media/a.mp4", "/media/b.mp4"), ("/media/c.png",))
        assert record.clip_meta == (ClipMeta(video_start=1.0), ClipMeta(video_start=2.0, max_frames=2))
        assert record.solution == "<video> (1) a", "a tag in the solution is text"


class TestMessages:
    def test_tags_in_text_name_the_media_beside_the_turns(self):
        row = {
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "<image><video>Which?"},
                {"role": "assistant", "content": "(1) a"},
            ],
            "images": ["b.png"],
            "videos": ["a.mp4"],
        }
        draft = draft_of(row, "d[0]")
        assert draft.messages == [Message("system", "Be brief."), Message("user", "<image><video>Which?")]
        assert draft.solution == "(1) a", "the trailing assistant turn, for want of another"
        assert draft.videos == [("d[0].videos[0]", "a.mp4")]
        assert draft.images == [("d[0].images[0]", "b.png")]

    def test_typed_parts_carry_their_media_and_meta(self):
        row = {"messages": [{"role": "user", "content": PARTS}], "solution": "x"}
        draft = draft_of(row | {"meta": {"max_frames": 9, "min_frames": 2}}, "d[0]")
        assert draft.messages == [Message("user", "<video>Then <image> which?")]
        assert draft.videos == [("d[0].messages[0].content[0].video", "a.mp4")]
        assert draft.images == [("d[0].messages[0].content[2].image_url", "b.png")]
        assert draft.metas == [{"max_frames": 9, "min_frames": 2}]
        assert draft.clip_settings[0].part == {"fps": 2, "max_frames": 6, "video_start": 1.5}

    def test_typed_parts_may_leave_the_media_to_the_columns(self):
        content = [{"type": "image"}, {"type": "text", "text": "?"}]
        draft = draft_of({"messages": [{"role": "user", "content": content}], "images": [b"PNG"], "solution": "x"}, "d")
        assert (draft.messages, draft.images) == ([Message("user", "<image>?")], [("d.images[0]", b"PNG")])

    def test_a_solution_of_its_own_replaces_the_trailing_turn(self):
        turns = [{"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "Two."}]
        for solution in (2, 2.0):  # whole numbers of a column with gaps are floats
            draft = draft_of({"messages": turns, "solution": solution}, "d")
            assert (draft.messages, draft.solution) == ([Message("user", "1 + 1?")], "2")
        assert draft_of({"messages": turns, "solution": 2.5}, "d").solution == "2.5"

    def test_the_last_turn_of_conversations_and_a_solution_say_the_same(self):
        turns = [{"from": "human", "value": "1 + 1?"}, {"from": "gpt", "value": "<think>x</think><answer>2</answer>"}]
        draft = draft_of({"conversations": turns, "solution": " 2"}, "d")
        assert draft.solution == "<think>x</think><answer>2</answer>"
        with pytest.raises(RecordError, match=r"d.conversations\[1\]: the last turn is another solution than"):
            draft_of({"conversations": turns, "solution": "3"}, "d")
        with pytest.raises(RecordError, match=r"d.conversations\[1\]: the last turn is another solution than"):
            draft_of({"conversations": turns, "solution": 3}, "d")

    def test_media_beside_the_content_of_a_turn_are_refused(self):
        for key, value in (("video", "a.mp4"), ("images", ["a.png"])):
            turns = [{"role": "user", "content": "Which?", key: value}]
            with pytest.raises(RecordError, match=rf"d.messages\[0\].{key}: media beside the content of a turn"):
                draft_of({"messages": turns, "solution": "x"}, "d")
        turns = [{"role": "user", "content": "Which?", "images": []}]
        assert draft_of({"messages": turns, "solution": "x"}, "d").messages == [Message("user", "Which?")]

    @pytest.mark.parametrize("part", [{"text": "?"}, {"type": "video", "text": "?"}, {"type": "text", "text": "?"}])
    def test_a_part_with_a_text_and_a_medium_is_refused(self, part):
        turns = [{"role": "user", "content": [part | {"video": "a.mp4"}]}]
        with pytest.raises(RecordError, match="has a text and video; write a part for each of them"):
            draft_of({"messages": turns, "solution": "x"}, "d")

    def test_several_texts_as_the_content_of_a_turn_are_refused(self):
        """They would be one: of "1" and "2" it was "12"."""
        for turns in ([H, G | {"value": ["1", "2"]}], [H | {"value": ["Which?", "When?"]}, G]):
            with pytest.raises(RecordError, match=r"value: expected one text or typed parts, got list"):
                draft_of({"conversations": turns}, "d")
        assert draft_of({"conversations": [H, G | {"value": ["1"]}]}, "d").solution == "1"

    def test_settings_in_the_object_of_an_address_are_read(self):
        part = {"type": "video_url", "video_url": {"url": "a.mp4", "fps": 1, "max_frames": 16}}
        record = parsed({"messages": [{"role": "user", "content": [part]}], "solution": "x"})
        assert (record.clip_meta[0].count.fps, record.clip_meta[0].count.max_frames) == (1, 16)


class TestPrompt:
    def test_the_ground_truth_of_a_reward_model_is_the_solution(self):
        row = {
            "data_source": "geo",
            "prompt": [{"role": "user", "content": "<image>Area?"}],
            "images": [{"bytes": b"x", "path": None}],
            "reward_model": {"style": "rule", "ground_truth": ["4"]},
        }
        draft = draft_of(row, "d")
        assert draft.solution == "4"
        assert draft_of(row | {"reward_model": {"ground_truth": 0}}, "d").solution == "0"
        assert draft_of(row | {"reward_model": {"ground_truth": "4"}, "solution": "4"}, "d").solution == "4"
        with pytest.raises(RecordError, match="`solution` and `ground_truth` are other ones"):
            draft_of(row | {"reward_model": {"ground_truth": "4"}, "solution": "5"}, "d")
        empty = {"reward_model": {"ground_truth": []}, "solution": [], "answer": "5"}
        assert draft_of(row | empty, "d").solution == "5"
        assert draft.images == [("d.images[0]", {"bytes": b"x", "path": None})]

    def test_several_texts_are_no_solution_that_an_answer_could_equal(self):
        two = ["4", "four"]
        for row in ({"solution": two}, {"answer": two}, {"reward_model": {"ground_truth": two}}):
            with pytest.raises(RecordError, match=r"d.solution: expected one text, got list .* join them"):
                draft_of({"prompt": "Which?"} | row, "d")
        assert draft_of({"prompt": "Where?", "solution": [[1, 2], [3, 4]]}, "d").solution == "[[1, 2], [3, 4]]"

    def test_a_completion_that_a_cell_holds_as_text_is_its_turns(self):
        text = json.dumps([{"role": "assistant", "content": "insert the fan"}])
        assert draft_of({"prompt": "Which?", "completion": text}, "d").solution == "insert the fan"

    def test_turns_that_a_cell_holds_as_text_are_turns(self):
        turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "It's <video>. Which?"}]
        for text in (json.dumps(turns), json.dumps(json.dumps(turns)), str(turns), json.dumps(turns, indent=1)):
            draft = draft_of({"prompt": text, "video": "a.mp4", "solution": "x"}, "d")
            assert draft.messages == [Message("system", "Be brief."), Message("user", "It's <video>. Which?")]
        with pytest.raises(RecordError, match=r"d\.prompt: expected turns as JSON"):
            draft_of({"prompt": str(turns)[:-1], "video": "a.mp4", "solution": "x"}, "d")
        assert draft_of({"prompt": "[{x}] is what?", "solution": "x"}, "d").messages[0].text == "[{x}] is what?"

    def test_an_empty_list_of_clips_hides_no_clip(self):
        for row in ({"video": "a.mp4", "videos": []}, {"video": "", "videos": ["a.mp4"]}, {"videos": "a.mp4"}):
            assert [clip for _, clip in draft_of({"prompt": "?", "solution": "x"} | row, "d").videos] == ["a.mp4"]
        row = {"prompt": "?", "solution": "x", "image": "b.png", "images": ["b.png"]}
        assert len(draft_of(row, "d").images) == 1
        with pytest.raises(RecordError, match="d: `image` and `images` hold different media; keep one"):
            draft_of(row | {"images": ["b.png", "c.png"]}, "d")

    def test_a_plain_question_gets_its_media_in_front(self):
        draft = draft_of({"prompt": "Which?", "video": "a.mp4", "image": "b.png", "solution": "x"}, "d")
        assert draft.messages == [Message("user", "<video><image>Which?")]
        draft = draft_of({"prompt": "Here: <image>", "image": "b.png", "solution": "x", "meta": "by hand"}, "d")
        assert draft.messages == [Message("user", "Here: <image>")], "unless it says where"
        assert draft.metas == [], "without clips meta is a key like others"


def turns(text):
    return {"conversations": [{"from": "human", "value": text}, G]}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([1], "d[0]: expected an object with `conversations`, `messages` or `prompt`, got list [1]"),
        ({}, "d[0]: expected an object with `conversations`, `messages` or `prompt`, got object {}"),
        (
            {"question": "a", "answer": "b", "video_path": "c.mp4"},
            "; --columns question=prompt,answer=solution renames keys",
        ),
        ({"conversations": "a"}, "d[0].conversations: expected a list of turns {'from': ..., 'value': ...} or {'role'"),
        ({"conversations": ["a"]}, "d[0].conversations[0]: expected {'from': ..., 'value': ...} or the like, got str"),
        (
            {"conversations": [{"from": "usr", "value": "a"}, G]},
            'd[0].conversations[0].from: expected one of system, human, user, gpt, assistant, bot, model, got string "',
        ),
        ({"conversations": [{"from": "human", "value": 3}, G]}, "d[0].conversations[0].value: expected a string, got"),
        ({"conversations": [G]}, "d[0].conversations: expected a user turn right before the solution"),
        ({"conversations": [H, {"from": "gpt", "value": " "}]}, "d[0].conversations[1]: the solution is empty"),
        (
            {"conversations": [H, {"from": "system", "value": "s"}, G]},
            "d[0].conversations[1]: a system turn must be the first, this is turn 2",
        ),
        (turns("<|video_pad|>"), "d[0].conversations[0].value: it holds '<|video_pad|>', which the chat template"),
        (turns("a\ud83d b"), "d[0].conversations[0].value: it holds '\\ud83d', which is half a character"),
        ({"prompt": "a", "solution": "b<|im_end|>"}, "d[0]: the solution: it holds '<|im_end|>', which the chat"),
        ({"id": 1.5} | turns("a"), "d[0].id: expected a string or a whole number, got number 1.5"),
        ({"messages": [{"role": "human"}]}, "d[0].messages[0].content: expected a string, got nothing"),
        (
            {"messages": [{"role": "user", "content": [{"type": "audio"}]}], "solution": "x"},
            "d[0].messages[0].content[0]: expected a part of type text, image or video, got object",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "<image>"}]}], "solution": "x"},
            "typed parts name media by",
        ),
        ({"messages": [{"role": "user", "content": PARTS}], "solution": "x", "images": ["c.png"]}, "expected one"),
        ({"prompt": "a", "solution": b"x"}, "d[0].solution: expected text or what JSON can hold"),
        (turns("no tag") | {"video": "a.mp4"}, "the prompt has 0 <video> tags but `video` names 1 files"),
        ({"prompt": "<image><image>", "images": ["a"], "solution": "x"}, "the prompt has 2 <image> tags but `images`"),
        (turns("<video><video>") | {"video": ["a", "b"], "meta": {}}, "expected a list, one entry for each of 2"),
        (turns("<video>") | {"video": 7}, ".video: expected a path, got number 7"),
    ],
)
def test_a_bad_row_is_refused_with_its_place_and_key(row, message):
    with pytest.raises(RecordError) as caught:
        parsed(row)
    assert str(caught.value).startswith(message) if message.startswith("d[0]") else message in str(caught.value)


@pytest.mark.parametrize(
    ("meta", "message"),
    [
        ([], ": expected one entry per video (1), got 0"),
        (3, ": expected an object with some of frame_cnts, min_frames, max_frames, dynamic_sample,"),
        ({"frame_cnts": ["5"]}, '.frame_cnts: expected a list of numbers above 0, got list ["5"]'),
        ({"frame_cnts": []}, ".frame_cnts: expected a list of numbers above 0, got list []"),
        ({"frame_cnts": [5], "video_end": 5}, ": frame_cnts speak of the whole clip; expected no video_start"),
        ({"min_frames": "4"}, '.min_frames: expected a whole number of frames of at least 1, got string "4"'),
        ({"max_frames": 2.5}, ".max_frames: expected a whole number of frames"),
        ({"min_pixels": 0}, ".min_pixels: expected a whole number of pixels of at least 1, got number 0"),
        ({"min_frames": 5, "max_frames": 4}, ": expected min_frames <= max_frames, got 5 and 4"),
        ({"video_fps": 0}, ".video_fps: expected a number above 0, got number 0"),
        ({"video_start": -1}, ".video_start: expected a number of at least 0, got number -1"),
        ({"video_start": 2, "video_end": 1}, ": expected video_start <= video_end, got 2.0 and 1.0"),
        ({"frame_counts": [5]}, ": the key 'frame_counts' is not known; did you mean 'frame_cnts'? A key of your own"),
        ({"maxFrames": 5}, ": the key 'maxFrames' is not known; did you mean 'max_frames'?"),
        ({"dynamic_sample": "yes"}, '.dynamic_sample: expected true or false, got string "yes"'),
    ],
)
def test_a_bad_meta_is_refused_with_its_place_and_key(meta, message):
    with pytest.raises(RecordError) as caught:
        parsed(turns("<video>") | {"video": "a.mp4", "meta": meta})
    assert str(caught.value).startswith(f"d[0].meta{message}")


def test_cells_of_a_file_without_types_become_lists_objects_and_numbers():
    row = {"video": '["a.mp4", "b.mp4"]', "meta": '{"max_frames": 4}', "video_start": "1.5", "solution": "2"}
    typed = {"video": ["a.mp4", "b.mp4"], "meta": {"max_frames": 4}, "video_start": 1.5, "solution": "2"}
    assert with_types(row) == typed
    of_rewards = {"evidence": "[[0.5, 1.5]]", "nums": "[3, 6]", "width": "640", "target": "9"}
    read = {"evidence": [[0.5, 1.5]], "nums": [3, 6], "width": 640, "target": 9}
    assert with_types(of_rewards) == read
    as_they_are = {"video": "17", "image": "[1] lid.png", "video_end": "late", "prompt": "[1, 2]"}
    as_they_are |= {"answer": '["saw", "hammer"]', "duration": "0:12"}
    for options in ({"options": '["a", "b", "c"]'}, {"A": "a", "B": "b", "C": "c"}, {"option1": "a"}):
        for cell, answer in (('["A", "C"]', ["A", "C"]), ("[1, 2]", "[1, 2]"), ("2", "2"), ("A", "A")):
            assert with_types({"answer": cell, **options})["answer"] == answer
    assert with_types(as_they_are) == as_they_are


def hints(row, **options):
    return [tuple(hint) for hint in record_hints(parsed(row, **options))]


def test_keys_of_meta_without_a_meaning_are_hinted_at():
    metas = [{"fps": 25, "max_frames": 4}, {"note": "x", "fps": 5}]
    ((kind, message),) = hints(turns("<video><video>Which?") | {"video": ["a.mp4", "b.mp4"], "meta": metas})
    assert kind == "unknown key in meta"
    assert message.startswith("meta has fps, note, which change no frames and are left to the rewards; fps: video_fps")
    assert "known are frame_cnts, min_frames, max_frames" in message
    assert hints(turns("text alone") | {"meta": {"note": "x"}}) == []


@pytest.mark.parametrize(
    ("columns", "hinted"),
    [
        ({"A": "a cat", "B": "a dog"}, "the options in the columns A, B are not in the prompt"),
        ({"options": ["a cat", "a dog"]}, "the options in the column options are not in the prompt"),
        ({"choices": {"A": "a cat", "B": "a dog"}}, "the options in the column choices are not in the prompt"),
        ({"A": "four legs", "B": "two legs"}, None),  # which the prompt shows
        ({"options": ["four legs", "two legs"]}, None),
        ({"A": "a cat"}, None),  # one column of a letter is no list of options
        ({"options": "x"}, None),
    ],
    ids=str,
)
def test_options_that_no_prompt_shows_are_hinted_at(columns, hinted):
    found = hints(turns("Which? A. four legs B. two legs") | columns)
    assert [message[: len(hinted or "")] for _, message in found] == ([hinted] if hinted else [])


def test_the_flags_that_a_hint_names_write_the_options_into_the_prompt():
    row = {"prompt": "Which?", "solution": "A", "A": "a cat", "B": "a dog"}
    ((_, message),) = hints(row)
    flags = message.partition("choose; ")[2].split()
    assert flags[:4] == ["--columns", "prompt=question,solution=answer", "--format", "question-answer"]
    options = {"columns": parse_columns(flags[1]), "format": flags[3]}
    assert "A. a cat\nB. a dog" in parsed(row, **options).messages[0].text
    assert hints(row, **options) == []
