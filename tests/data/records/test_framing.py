"""A question asked later has the token ids of the same question in training, for every form, preset and family."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from qwenvl.data.chat import chat_messages
from qwenvl.data.errors import RecordError
from qwenvl.data.options import FrameOptions, PromptOptions
from qwenvl.data.prompt_length import Ruler
from qwenvl.data.prompt_settings import PromptSettings
from qwenvl.data.records.framing import Framing, asked_record, framed_question
from qwenvl.data.records.parse import ReadOptions, Row, read_row
from qwenvl.data.records.presets import PRESETS
from qwenvl.demo.tiny import make_processor
from qwenvl.rewards.kinds import CHOICE, SPAN, WORDS, YES_NO
from qwenvl.types import Message

ROOT = Path("/media")
QUESTION = "What moves?"


def turns(text: str) -> list[dict]:
    return [{"from": "human", "value": text}, {"from": "gpt", "value": "a block"}]


def typed(*parts) -> list[dict]:
    content = [{"type": "text", "text": each} if isinstance(each, str) else each for each in parts]
    return [{"role": "user", "content": content}]


CLIP = {"type": "video", "video": "c.mp4"}
PICTURE = {"type": "image", "image": "p.png"}
FORMS = {
    "prompt without tags": {"prompt": QUESTION, "video": "c.mp4"},
    "prompt with a new line": {"prompt": f"<video>\n{QUESTION}", "video": "c.mp4"},
    "prompt with a tag": {"prompt": f"<video>{QUESTION}", "video": "c.mp4"},
    "prompt with a space": {"prompt": f"<video> {QUESTION}", "video": "c.mp4"},
    "prompt of turns": {"prompt": [{"role": "user", "content": QUESTION}], "video": "c.mp4"},
    "messages without tags": {"messages": [{"role": "user", "content": QUESTION}], "videos": ["c.mp4"]},
    "typed parts": {"messages": typed(CLIP, QUESTION)},
    "typed parts with a new line": {"messages": typed(CLIP, f"\n{QUESTION}")},
    "conversations": {"conversations": turns(f"<video>\n{QUESTION}"), "video": "c.mp4"},
    "conversations without a new line": {"conversations": turns(f"<video>{QUESTION}"), "video": "c.mp4"},
    "image": {"prompt": QUESTION, "image": "p.png"},
    "clip and image": {"prompt": QUESTION, "video": "c.mp4", "image": "p.png"},
    "two clips, a line each": {"prompt": f"<video>\n<video>\n{QUESTION}", "videos": ["c.mp4", "d.mp4"]},
    "two clips in a line": {"prompt": f"<video><video>\n{QUESTION}", "videos": ["c.mp4", "d.mp4"]},
    "typed image and clip": {"messages": typed(PICTURE, "\n", CLIP, f"\n{QUESTION}")},
    "text alone": {"prompt": QUESTION},
    "with a system turn": {"prompt": QUESTION, "video": "c.mp4", "system": "Look at the hands."},
}
OPTIONS = ["a block", "a hand"]
ROWS = {
    "video-r1": {
        "problem": QUESTION,
        "problem_type": "multiple choice",
        "options": ["A. a block", "B. a hand"],
        "solution": "<answer>A</answer>",
        "path": "c.mp4",
        "data_type": "video",
    },
    "easyr1": {"problem": QUESTION, "answer": "a block", "videos": ["c.mp4"]},
    "question-answer": {"question": QUESTION, "options": OPTIONS, "answer": "A", "video": "c.mp4"},
    "videomme": {"videoID": "c", "question": QUESTION, "options": ["A. a block", "B. a hand"], "answer": "B"},
    "mvbench": {"video": "c.mp4", "question": QUESTION, "candidates": OPTIONS, "answer": "a hand"},
    "activitynet": {"video_id": "c", "timestamp": [1, 2], "sentence": "A block moves."},
    "charades-sta": {"video_id": "c", "start": 1, "end": 2, "sentence": "A block moves."},
    "label-studio": {
        "data": {"video": "c.mp4", "question": QUESTION},
        "annotations": [{"result": [{"type": "choices", "value": {"choices": ["block"]}}]}],
    },
}


@pytest.fixture(scope="module", params=("qwen2_vl", "qwen2_5_vl", "qwen3_vl"))  # Qwen3.5 has that of Qwen3-VL
def ruler(request):
    """The ruler of each family, which measures prompts."""
    return Ruler(make_processor(request.param), (4 * 28 * 28, 32 * 28 * 28), (16 * 28 * 28, 576 * 28 * 28))


def ids(ruler: Ruler, record) -> list[int]:
    return ruler.processor.tokenizer(ruler.text(chat_messages(record)))["input_ids"]


def trained(row: dict, reading: ReadOptions):
    return read_row(Row("rows[0]", "rows-0", row), ROOT, reading)


def media_of(record) -> list[tuple[str, str]]:
    """Kind and path of each medium, in the order of the tags."""
    paths = {"video": iter(record.videos), "image": iter(record.images)}
    kinds = [part["type"] for turn in chat_messages(record) for part in turn["content"] if part["type"] in paths]
    return [(kind, next(paths[kind])) for kind in kinds]


@pytest.mark.parametrize("template", [None, "Look well. {prompt} Be quick."])
@pytest.mark.parametrize("form", FORMS)
def test_a_question_looks_like_the_records_of_every_form(ruler, form, template):
    reading = ReadOptions(prompt_template=template)
    record = trained(FORMS[form], reading)
    asked = asked_record(QUESTION, media_of(record), Framing.of([record] * 3, reading), reading)
    assert ids(ruler, asked) == ids(ruler, record)
    assert (asked.videos, asked.images, asked.solution) == (record.videos, record.images, "")


@pytest.mark.parametrize("template", [None, "{prompt} Write <answer></answer>."])
@pytest.mark.parametrize("preset", PRESETS)
def test_a_question_looks_like_the_records_of_every_preset(ruler, preset, template):
    reading = ReadOptions(prompt_template=template, format=preset)
    row = ROWS[preset]
    record = trained(row, reading)
    question = 'When does the following happen in the video? "A block moves."' if "sentence" in row else QUESTION
    asked = asked_record(
        question,
        media_of(record),
        Framing.of([record] * 3, reading),
        reading,
        options=OPTIONS if "candidates" in row or "options" in row else (),
    )
    assert ids(ruler, asked) == ids(ruler, record)
    assert ("First think" in record.messages[-1].text) == (template is None)


def test_the_framing_is_that_of_most_records(ruler):
    rows = [{"prompt": f"<video>\n{QUESTION}", "video": "c.mp4"}, {"prompt": QUESTION, "video": "c.mp4"}]
    records = [trained(rows[0], ReadOptions())] * 2 + [trained(rows[1], ReadOptions())]
    assert Framing.of(records, ReadOptions()) == Framing(between="\n", before_text="\n")
    assert Framing.of([], ReadOptions()) == Framing()
    briefly = replace(records[0], messages=(Message("system", "Be brief."), *records[0].messages))
    left_out = replace(records[0], messages=(Message("user", "A row that can't be read."),), problem="d[1]: bad")
    assert Framing.of([briefly, left_out], ReadOptions()).system == "Be brief."
    inside = trained({"prompt": f"{QUESTION} <video>", "video": "c.mp4"}, ReadOptions())
    assert Framing.of([inside], ReadOptions()) == Framing()


def test_the_kind_that_is_requested_follows_from_solution_and_options(ruler):
    framing, reading = Framing(kinds=(SPAN, CHOICE, YES_NO)), ReadOptions()

    def requested(question, **given):
        return asked_record(question, [], framing, reading, **given)

    assert "start and end in seconds" in requested(QUESTION).messages[0].text
    assert "yes or no" in requested("Does it?", solution="no").messages[0].text
    lettered = requested("Which?\nA. left\nB. right")
    assert lettered.messages[0].text.startswith("Which?\nA. left\nB. right\nFirst think")
    assert "the letter of the right option" in lettered.messages[0].text
    chosen = requested("Which?", options=["left", "right"], solution="right")
    assert chosen.messages[0].text.startswith("Which?\nA. left\nB. right\nFirst think")
    assert chosen.solution == "<answer>B</answer>" and chosen.fields["problem_type"] == CHOICE
    with pytest.raises(ValueError, match="'up' is none of the options"):
        requested("Which?", options=["left", "right"], solution="up")


def test_a_format_on_the_command_line_changes_the_requested_kinds_of_answers():
    framing = Framing(kinds=(SPAN,))
    assert framing.with_format("qwenvl").kinds == () and framing.with_format(None) is framing
    assert framing.with_format("question-answer").kinds == (SPAN,)
    assert Framing().with_format("question-answer").kinds == (WORDS,)
    asked = asked_record(QUESTION, [], framing.with_format("qwenvl"), ReadOptions(), solution="1 to 2")
    assert asked.messages[0].text == QUESTION and asked.solution == "1 to 2"


def test_settings_beside_the_weights_hold_the_framing(tmp_path):
    framing = Framing("", "\n", (CHOICE, WORDS), "Look.")
    PromptSettings(FrameOptions(), PromptOptions(), framing=framing).save(tmp_path)
    assert PromptSettings.load(tmp_path).framing == framing
    # Settings of an earlier version have none.
    saved = json.loads((tmp_path / "prompt_settings.json").read_text())
    del saved["framing"]
    (tmp_path / "prompt_settings.json").write_text(json.dumps(saved))
    assert PromptSettings.load(tmp_path).framing == Framing()


def test_the_example_of_a_card_is_a_prompt_of_training():
    assert framed_question(QUESTION, Framing("", "\n")) == f"\n{QUESTION}"
    asked = asked_record(QUESTION, [("video", "c.mp4")], Framing(kinds=(WORDS,)), ReadOptions())
    assert f"<video>{framed_question(QUESTION, Framing(kinds=(WORDS,)))}" == asked.messages[0].text


def test_a_template_and_a_system_turn_leave_each_medium_one_place():
    """Else a clip would be shown twice, or never, and training would end with the words of another library."""
    row = Row("a.json[0]", "0", {"prompt": "<video>Which?", "video": "c.mp4"})
    twice = ReadOptions(prompt_template="{prompt}\nAgain: {prompt}", allow_outside_media=True)
    with pytest.raises(RecordError, match=r"a.json\[0\]: the prompt has <video>, and --prompt_template has {prompt} 2"):
        read_row(row, ROOT, twice)
    untagged = read_row(Row("a.json[0]", "0", {"prompt": "Which?"}), ROOT, twice)
    assert untagged.messages[-1].text == "Which?\nAgain: Which?"
    said = [{"role": "system", "content": "The clip: <video>"}, {"role": "user", "content": "Which?"}]
    row = Row("a.json[0]", "0", {"messages": said, "videos": ["c.mp4"]})
    with pytest.raises(RecordError, match="has a medium in its system turn, which --system replaces"):
        read_row(row, ROOT, ReadOptions(system="Look.", allow_outside_media=True))
