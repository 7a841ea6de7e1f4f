import pytest

from qwenvl.data.errors import RecordError
from qwenvl.data.records.schemas import draft_of, with_types
from qwenvl.types import Message

PARTS = [
    {"type": "video", "video": "a.mp4", "fps": 2, "max_frames": 6, "video_start": 1.5},
    {"type": "text", "text": "Then "},
    {"type": "image_url", "image_url": {"url": "b.png"}},
    {"type": "text", "text": " which?"},
]


class TestMessages:
    def test_tags_in_text_with_media_beside(self):
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

    def test_typed_parts_carry_their_media_and_what_is_said_of_them(self):
        draft = draft_of({"messages": [{"role": "user", "content": PARTS}], "solution": "x"}, "d[0]")
        assert draft.messages == [Message("user", "<video>Then <image> which?")]
        assert draft.videos == [("d[0].messages[0].content[0].video", "a.mp4")]
        assert draft.images == [("d[0].messages[0].content[2].image_url", "b.png")]
        assert draft.metas == [{"video_fps": 2, "max_frames": 6, "video_start": 1.5}]

    def test_typed_parts_may_leave_the_media_to_the_columns(self):
        content = [{"type": "image"}, {"type": "text", "text": "?"}]
        draft = draft_of({"messages": [{"role": "user", "content": content}], "images": [b"PNG"], "solution": "x"}, "d")
        assert draft.messages == [Message("user", "<image>?")]
        assert draft.images == [("d.images[0]", b"PNG")]

    def test_a_solution_of_its_own_replaces_the_trailing_turn(self):
        turns = [{"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "Two."}]
        draft = draft_of({"messages": turns, "solution": 2}, "d")
        assert (draft.messages, draft.solution) == ([Message("user", "1 + 1?")], "2")


class TestPrompt:
    def test_the_ground_truth_of_a_reward_model_is_the_solution(self):
        row = {
            "data_source": "geo",
            "prompt": [{"role": "user", "content": "<image>Area?"}],
            "images": [{"bytes": b"x", "path": None}],
            "reward_model": {"style": "rule", "ground_truth": ["4", "four"]},
        }
        draft = draft_of(row, "d")
        assert draft.solution == '["4", "four"]'
        assert draft.images == [("d.images[0]", {"bytes": b"x", "path": None})]

    def test_a_plain_question_gets_its_media_in_front(self):
        draft = draft_of({"prompt": "Which?", "video": "a.mp4", "image": "b.png", "solution": "x"}, "d")
        assert draft.messages == [Message("user", "<video><image>Which?")]
        draft = draft_of({"prompt": "Here: <image>", "image": "b.png", "solution": "x"}, "d")
        assert draft.messages == [Message("user", "Here: <image>")], "unless it says where"


def test_what_a_row_says_of_all_its_clips():
    turns = [{"from": "human", "value": "<video><video>"}, {"from": "gpt", "value": "x"}]
    row = {"conversations": turns, "video": ["a", "b"], "video_start": 1, "meta": [None, {"video_start": 2}]}
    assert draft_of(row, "d").metas == [{"video_start": 1}, {"video_start": 2}]


def test_what_a_row_says_of_its_clips_gives_way_to_what_a_part_says():
    row = {
        "messages": [{"role": "user", "content": PARTS}],
        "solution": "x",
        "meta": {"max_frames": 9, "min_frames": 2},
    }
    assert draft_of(row, "d").metas == [{"video_fps": 2, "max_frames": 6, "min_frames": 2, "video_start": 1.5}]


def test_without_clips_meta_is_a_key_like_others():
    assert draft_of({"prompt": "a", "solution": "x", "meta": "made by hand"}, "d").metas == []


U = {"role": "user", "content": "a"}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"question": "a", "answer": "b", "video_path": "c.mp4"},
            "; pass --columns question=prompt,answer=solution,video_path=video",
        ),
        ({"question": "a"}, "d: expected an object with `conversations`, `messages` or `prompt`, got object"),
        ({"messages": "a", "solution": ""}, "d: the solution is empty"),
        ({"messages": []}, r"d.messages: expected a list of messages"),
        ({"messages": [U]}, r"d: expected a `solution`, `reward_model.ground_truth`, or a last assistant turn"),
        (
            {"messages": [{"role": "human", "content": "a"}]},
            r'd.messages\[0\].role: expected "system", "user", "assistant"',
        ),
        (
            {"messages": [{"role": "user", "content": 3}], "solution": "x"},
            r"d.messages\[0\].content: expected a string",
        ),
        ({"messages": [U, {"role": "system", "content": "s"}], "solution": "x"}, "a system turn must be the first"),
        ({"messages": [{"role": "assistant", "content": "a"}], "solution": "x"}, "expected a user turn right before"),
        (
            {"messages": [{"role": "user", "content": [{"type": "audio"}]}], "solution": "x"},
            r"d.messages\[0\].content\[0\]: expected a part of type text, image or video, got object",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "<image>"}]}], "solution": "x"},
            "typed parts name media by",
        ),
        ({"messages": [{"role": "user", "content": PARTS}], "solution": "x", "images": ["c.png"]}, "expected one"),
        ({"prompt": "<image><image>", "images": ["a"], "solution": "x"}, "the prompt has 2 <image> tags"),
        ({"prompt": "a", "solution": b"x"}, "d.solution: expected text or what JSON can hold"),
    ],
)
def test_what_is_wrong_is_named(row, message):
    with pytest.raises(RecordError, match=message):
        draft_of(row, "d")


def test_cells_of_a_file_without_types():
    row = {"video": '["a.mp4", "b.mp4"]', "meta": '{"max_frames": 4}', "video_start": "1.5", "solution": "2"}
    assert with_types(row) == {
        "video": ["a.mp4", "b.mp4"],
        "meta": {"max_frames": 4},
        "video_start": 1.5,
        "solution": "2",
    }
    as_they_are = {"video": "17", "image": "[1] lid.png", "video_end": "late", "prompt": "[1, 2]"}
    assert with_types(as_they_are) == as_they_are
