"""Calls of tools: read, executed on real clips, and answered in tokens that continue a conversation."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from qwenvl.data.collator import GRPOCollator
from qwenvl.data.dataset import load_dataset
from qwenvl.data.options import SampleOptions
from qwenvl.demo.tiny import make_processor
from qwenvl.evaluate.questions import toolbox_under
from qwenvl.model.inputs import InputBuilder, PixelScale, PromptInputs
from qwenvl.model.positions import PositionRule
from qwenvl.tools.functions import Video, resolve_tools, schemas_of
from qwenvl.tools.options import ToolOptions
from qwenvl.tools.toolbox import Toolbox, calls_in

END = "<|im_end|>"
JSON_CALL = '<tool_call>\n{{"name": "{}", "arguments": {}}}\n</tool_call>'
XML_CALL = "<tool_call>\n<function={}>\n{}</function>\n</tool_call>"
TOOLS = '''
from qwenvl import tool, Video

@tool
def halves(video: Video, time: float):
    """Show both halves of a picture.

    Args:
        time: seconds.
    """
    picture = video.frame(time)
    return [picture.crop(0, 0, 500, 1000), "left and right", picture.crop(500, 0, 1000, 1000)]

class Counter:
    def reset(self, **fields):
        self.count = fields.get("start", 0)

    def add(self, amount: int):
        """Add to the count.

        Args:
            amount: a number.
        """
        self.count += amount
        return f"the count is {self.count}"
'''


@pytest.fixture
def world(tmp_path, make_clip, write_rows, make_row, monkeypatch):
    """``world(family, **options)`` -> a toolbox, its record, and what a turn of the model is answered with."""
    monkeypatch.chdir(tmp_path)
    clip = make_clip("clip.mp4", 48, fps=8)  # 6 s
    path = write_rows([make_row(prompt="<video>\nWhich?", video=str(clip.name), start=5)], "data.json")
    (tmp_path / "own.py").write_text(TOOLS)

    def make(family="qwen3_vl", tools=("look", "zoom"), **options):
        flags = SimpleNamespace(**vars(SampleOptions()), **vars(ToolOptions(tools=list(tools), **options)))
        collator = GRPOCollator(make_processor(family), tools=schemas_of(flags))
        record = load_dataset(path, ruler=collator.ruler).record(0)
        scales = tuple(PixelScale.of(getattr(collator.processor, f"{kind}_processor")) for kind in KINDS)
        time = {"qwen2_5_vl": "seconds", "qwen2_vl": "index"}.get(family, "timestamp")
        ids = (getattr(collator.processor, f"{kind}_token_id") for kind in KINDS)
        build = InputBuilder(PositionRule(*ids, 2, time, 2.0), scales)
        toolbox = Toolbox.of(flags, collator)
        conversations = toolbox.begin([record] * 3, build)

        def answer(*texts):
            tokenizer = collator.processor.tokenizer
            turns = {n: tokenizer(text)["input_ids"] for n, text in enumerate(texts)}
            rows = conversations.answer(turns)
            texts = {row: tokenizer.decode(inputs.input_ids[0]) for row, inputs in rows.items()}
            return texts | ({"inputs": PromptInputs.join([*rows.values()])} if rows else {})

        return SimpleNamespace(toolbox=toolbox, record=record, answer=answer, conversations=conversations)

    return make


KINDS = ("image", "video")


def look(start, end) -> str:
    return JSON_CALL.format("look", f'{{"start": {start}, "end": {end}}}') + END


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl", "qwen3_5"])
def test_a_look_shows_the_frames_of_a_span_at_their_times(world, family):
    made = world(family, look_frames=4)
    got = made.answer(f"Let me see. {look(2.0, 3.0)}", "<answer>1</answer>" + END, look(2, 3.0))
    assert got.keys() == {0, 2, "inputs"} and got[0] == got[2]
    [[first]], [()], [[third]] = (each.calls for each in made.conversations.each)
    assert first.name == "look" and first.error is None and first.clips[0].times == (2.0, 2.375, 2.625, 3.0)
    assert third.tokens == first.tokens == int(got["inputs"].attention_mask[0].sum())
    assert got[0].startswith("\n<|im_start|>user\n<tool_response>\n2.0 to 3.0 seconds:")
    assert got[0].endswith(f"</tool_response>{END}\n<|im_start|>assistant\n")
    if family != "qwen2_5_vl":
        assert "<2.2 seconds>" in got[0] and "<2.8 seconds>" in got[0], "the times are those of the file"
    assert got["inputs"].videos_per_prompt == [1, 1] and len(got["inputs"].video_grid_thw) == 2


def test_a_zoom_shows_a_part_of_a_picture_enlarged(world):
    made = world()
    got = made.answer(JSON_CALL.format("zoom", '{"time": 1, "x1": 0, "y1": 0, "x2": 500, "y2": 500}') + END)
    assert got["inputs"].images_per_prompt == [1]
    picture = Video(made.toolbox.dataset, made.record, made.toolbox.options).frame(1.0)
    part = picture.crop(0, 0, 500, 500)
    assert part.pixels.shape == picture.pixels.shape
    height, width = picture.pixels.shape[1:]
    quarter = picture.pixels[:, : height // 2, : width // 2].float()
    torch.testing.assert_close(part.pixels.float().mean((1, 2)), quarter.mean((1, 2)), atol=2.0, rtol=0)


@pytest.mark.parametrize(
    "call, error",
    [
        (JSON_CALL.format("look", '{"start": 3, "end": 2}'), "start 3 is after end 2"),
        (JSON_CALL.format("look", '{"start": 7, "end": 9}'), "7 to 9 is not in the video, which goes from 0 to 6"),
        (JSON_CALL.format("look", '{"start": NaN, "end": 2}'), "start must be of type number, got 'nan'"),
        (JSON_CALL.format("look", '{"start": 1}'), "look lacks end"),
        (JSON_CALL.format("look", '{"start": 1, "end": 2, "fps": 3}'), "look takes start, end, and no 'fps'"),
        (JSON_CALL.format("watch", "{}"), "there is no tool 'watch', only look, zoom"),
        ("<tool_call>look at 3 to 4</tool_call>", "this call could not be read"),
        (JSON_CALL.format("zoom", '{"time": 1, "x1": 9, "y1": 0, "x2": 9, "y2": 5}'), "the box 9, 0, 9, 5 is empty or"),
    ],
)
def test_what_cannot_be_answered_is_said_in_a_sentence(world, call, error):
    made = world()
    got = made.answer(call + END)
    assert f"<tool_response>\nError: {error}" in got[0] and got["inputs"].vision() == {}
    [[call]] = made.conversations.each[0].calls
    assert call.error.startswith(error) and not call.clips and call.tokens > 0


def test_calls_are_read_in_both_forms_and_answered_in_order(world):
    xml = XML_CALL.format("look", "<parameter=start>\n1.5\n</parameter>\n<parameter=end>\n2\n</parameter>\n")
    text = f"First {xml} then {JSON_CALL.format('zoom', '{}')}"
    assert calls_in(text) == [("look", {"start": "1.5", "end": "2"}), ("zoom", {})]
    got = world(look_frames=2).answer(look(1, 2).removesuffix(END) + look(3, 4))
    assert got[0].index("1.0 to 2.0 seconds") < got[0].index("3.0 to 4.0 seconds")
    assert got["inputs"].videos_per_prompt == [2]


def test_the_last_turn_has_to_answer_and_a_cut_turn_is_not_answered(world):
    made = world(max_turns=2)
    assert 0 in made.answer(look(1, 2), look(1, 2).removesuffix(END))
    assert made.answer(look(2, 3)) == {}
    assert made.conversations.each[0].calls[1][0].error == "the last turn has to answer"
    assert made.conversations.each[1].calls == []


def test_a_look_is_given_whole_or_refused(world):
    whole = world(look_frames=8).answer(look(0, 6))["inputs"].attention_mask.sum()
    made = world(look_frames=8, look_tokens=int(whole) + 10)
    assert "seconds:" in made.answer(look(0, 6))[0]
    refused = made.answer(look(0, 6))
    assert f"this would take {whole} tokens, and 10 are left: answer now" in refused[0]
    assert refused["inputs"].vision() == {}


def test_the_same_look_is_decoded_and_encoded_once(world, monkeypatch):
    made = world()
    opened, encoded = [], []
    of, encode = type(made.toolbox.dataset).open, made.conversations.encode
    monkeypatch.setattr(type(made.toolbox.dataset), "open", lambda *args: opened.append(args) or of(*args))
    made.conversations.encode = lambda batch: encoded.append(len(batch)) or encode(batch)
    first = made.answer(look(1, 2), look(1, 2), look(1.0, 2.0))
    assert made.answer(look(1, 2))[0] == first[1] and len(opened) == 1 and encoded == [1]


def test_own_tools_and_environments(world):
    made = world(tools=("own.py:halves", "trl:own.py:Counter"))
    add = JSON_CALL.format("add", '{"amount": 2}') + END
    got = made.answer(JSON_CALL.format("halves", '{"time": 0.5}') + END, add, add)
    assert got["inputs"].images_per_prompt == [2, 0, 0] and "left and right" in got[0]
    assert "the count is 7" in got[1] and "the count is 7" in got[2], "each completion has an object of its own"
    assert "the count is 9" in made.answer("", add)[1]


def test_tools_that_do_not_exist_are_refused(world):
    for name, error in (
        ("loook", "--tools loook: did you mean look\\?"),
        ("own.py:nothing", "--tools own.py:nothing: own.py has no nothing"),
        ("trl:own.py:halves", "--tools trl:own.py:halves: expected a class with reset and at least one other"),
    ):
        with pytest.raises(ValueError, match=error):
            world(tools=(name,))


def test_schemas_come_from_annotations_and_docstrings():
    [schema] = [tool.schema["function"] for tool in resolve_tools(["look"]).values()]
    number = {"type": "number", "description": "the span, in seconds."}
    assert schema["name"] == "look" and schema["parameters"] == {
        "type": "object",
        "properties": {"start": number, "end": number},
        "required": ["start", "end"],
    }
    untyped = lambda x: x
    untyped.__doc__ = "Text."
    with pytest.raises(TypeError, match="tool <lambda>: Argument x is missing a type hint"):
        resolve_tools([untyped])


PLAIN = """{% for each in messages %}<|im_start|>{{ each.role }}
{% if each.content is string %}{{ each.content }}{% else %}{% for part in each.content %}{% if part.type == 'video' %}\
<|vision_start|><|video_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def test_prompts_offer_the_tools_also_where_the_template_knows_none(world):
    made = world()
    ruler, processor = made.toolbox.collator.ruler, made.toolbox.collator.processor
    text = lambda role, words: {"role": role, "content": [{"type": "text", "text": words}]}
    assert "look(start, end)" in ruler.text([text("user", "Which?")])
    processor.chat_template = PLAIN
    for chat, start in (
        ([], "<|im_start|>system\nYou may call"),
        ([text("system", "Be brief.")], "Be brief.\n\nYou may"),
    ):
        offered = ruler.text([*chat, text("user", "Which?")])
        assert start in offered and '"name": "look"' in offered and '"name": "zoom"' in offered
    got = made.answer(look(1, 2))
    assert got[0].startswith("\n<|im_start|>user\n<tool_response>\n1.0 to 2.0 seconds:")
    assert got[0].endswith(f"\n</tool_response>{END}\n<|im_start|>assistant\n")


def test_controls_change_what_looks_show(world):
    made = world(look_frames=4, max_turns=9)
    under = lambda control: replace(made.conversations, toolbox=toolbox_under(control, made.toolbox, 0), known={})
    turn = {0: made.toolbox.collator.processor.tokenizer(look(1, 2))["input_ids"]}
    as_asked, grey, elsewhere, refused = (
        under(control).answer(turn)[0] for control in ("none", "blank", "other_span", "no_look")
    )
    calls = [each[0] for each in made.conversations.each[0].calls]
    assert [call.clips[0].times[0] for call in calls[:3]] == [1.0, 1.0, 4.0]
    assert calls[3].error == "the video cannot be looked at again" and refused.vision() == {}
    assert grey.input_ids.tolist() == as_asked.input_ids.tolist() and grey.pixel_values_videos.unique().numel() == 1
    assert elsewhere.pixel_values_videos.shape == as_asked.pixel_values_videos.shape
