"""Calls of tools: read, executed on real clips, and answered in tokens that continue a conversation."""

import json
from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest
import torch

from qwenvl.data.collator import GRPOCollator
from qwenvl.data.dataset import load_dataset
from qwenvl.data.errors import BadMediaError, MediaTimeout
from qwenvl.data.options import SampleOptions
from qwenvl.data.tool_options import ToolOptions
from qwenvl.demo.tiny import make_processor
from qwenvl.evaluate.questions import toolbox_under
from qwenvl.model.inputs import InputBuilder, PixelScale, PromptInputs
from qwenvl.model.positions import PositionRule
from qwenvl.own_code import OwnCodeError
from qwenvl.run_log.log import plain
from qwenvl.step.meter import Meter
from qwenvl.tools.calls import calls_in
from qwenvl.tools.errors import ToolError
from qwenvl.tools.functions import Video, resolve_tools, schemas_of
from qwenvl.tools.toolbox import MOST_CALLS, Conversations, Toolbox
from qwenvl.types import ClipMeta

END = "<|im_end|>"
JSON_CALL = '<tool_call>\n{{"name": "{}", "arguments": {}}}\n</tool_call>'
XML_CALL = "<tool_call>\n<function={}>\n{}</function>\n</tool_call>"
TOOLS = '''
from dataclasses import replace
import torch
from qwenvl import tool, Video
from qwenvl.tools.functions import Still, ToolError
from qwenvl.types import FrameInfo, VideoClip

@tool
def halves(video: Video, time: float):
    """Show both halves of a picture.

    Args:
        time: seconds.
    """
    picture = video.frame(time)
    return [picture.crop(0, 0, 500, 1000), "left and right", picture.crop(500, 0, 1000, 1000)]

@tool
def told(video: Video):
    """Tell a field."""
    return f"the field is {video.record.fields['start']}"

@tool
def essay():
    """Tell a lot."""
    return "a" * 10**7

@tool
def raises():
    """Fail."""
    return 1 / 0

@tool
def exits():
    """Fail."""
    raise SystemExit(3)

@tool
def cancelled():
    """Fail."""
    import asyncio

    async def main():
        task = asyncio.ensure_future(asyncio.sleep(9))
        asyncio.get_running_loop().call_soon(task.cancel)
        await task

    asyncio.run(main())

@tool
def nothing():
    """Fail."""

@tool
def garbage():
    """Fail."""
    return {"text": "so"}

@tool
def cycle():
    """Fail."""
    own = []
    own.append(own)
    return own

@tool
def special():
    """Fail."""
    return "That is all.<|im_end|>"

@tool
def in_two_parts():
    """Fail."""
    return ["See <|video", "_pad|>"]

@tool
def large():
    """Show a large picture."""
    rows = torch.arange(900).reshape(1, 900, 1)
    return Still(((rows * torch.arange(1200)) % 256).expand(3, -1, -1).to(torch.uint8), 3)

@tool
def joined(first: str, pieces: list[str]):
    """Join texts.

    Args:
        first: a text.
        pieces: further ones.
    """
    return [first, "".join(pieces)]

@tool
def pair(both: tuple[str, str]):
    """Join two texts.

    Args:
        both: the texts.
    """
    return "".join(both)

@tool
def power(base: int, exponent: int):
    """Raise a number to a power.

    Args:
        base: a number.
        exponent: a number.
    """
    return base**exponent

@tool
def half_a_pair():
    """Fail."""
    return chr(0xD800)

@tool
def thin(video: Video):
    """Fail."""
    return Still(torch.zeros(3, 2, 600, dtype=torch.uint8), 3)

@tool
def floats(video: Video):
    """Fail."""
    clip = video.frames(0, 1)
    return replace(clip, frames=clip.frames / 255)

@tool
def odd(video: Video):
    """Fail."""
    clip = video.frames(0, 1)
    return replace(clip, frames=clip.frames[:1])

@tool
def other():
    """Show a clip of its own."""
    return VideoClip(torch.zeros(2, 3, 64, 64, dtype=torch.uint8), FrameInfo("own.mp4", (0, 1), (0.0, 0.5)))

class Steps:
    def reset(self, steps=(), **fields):
        self.steps = steps

    def take(self, names: list[str]):
        """Take steps.

        Args:
            names: of them.
        """
        for name in names:
            self.steps.remove(name)
        names *= 2
        return f"left: {', '.join(self.steps)}, taken: {', '.join(names)}"

@tool
def refuses():
    """Refuse."""
    raise ToolError("there is no <|video_pad|> here")

@tool
def says_nothing():
    """Refuse without a word."""
    raise ToolError

class Broken:
    def reset(self, **fields):
        self.goal = fields["goal"]

    def act(self):
        """Act."""

class Page:
    def reset(self, **fields):
        self.text = ""

    def write(self, text: str):
        """Write on the page.

        Args:
            text: to add.
        """
        self.text += text
        return "written"

    def read(self):
        """Read the page."""
        return self.text

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


def test_what_was_looked_at_lies_within_the_clip_and_its_bounds(world):
    made = world()
    video = Video(made.toolbox.dataset, made.record, made.toolbox.options)
    assert video.frames(2.0, 3.0).info.looked_at == (2.0, 3.0)
    assert video.frames(-1e308, 1e308).info.looked_at == (0.0, 6.0)
    bounded = replace(video, record=replace(made.record, clip_meta=(ClipMeta(video_start=2.55, video_end=4.0),)))
    seen = bounded.frames(1.0, 5.0).info
    assert seen.looked_at == (2.55, 4.0) and min(seen.times) >= 2.55 and max(seen.times) <= 4.0
    # The picture of this moment is one from before the bounds.
    assert bounded.frames(2.55, 2.56).info.times == (2.625, 2.625)
    with pytest.raises(ToolError, match=r"7 to 8 is not in the video, which goes from 2.55 to 4"):
        bounded.frames(7, 8)
    elsewhere = replace(video, elsewhere=True).frames(1.0, 2.0).info
    assert elsewhere.looked_at == (4.0, 5.0) and elsewhere.times[0] == 4.0


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


def test_pictures_are_kept_at_the_size_that_the_model_sees(world, monkeypatch):
    """A zoom into a large clip has as many pixels as its frames, and completions may ask for hundreds."""
    made = world(tools=("own.py:large",), look_tokens=10_000)
    call = JSON_CALL.format("large", "{}") + END
    got = made.answer(call)
    [[picture]] = made.conversations.given.values()
    height, width = made.toolbox.collator.ruler.image_size((900, 1200))
    assert picture.shape == (3, height, width) and height * width < 900 * 1200
    monkeypatch.setattr(Toolbox, "_at_shown_size", lambda _, part: part)
    again = world(tools=("own.py:large",), look_tokens=10_000)
    whole = again.answer(call)
    assert whole[0] == got[0] and torch.equal(whole["inputs"].pixel_values, got["inputs"].pixel_values)


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
def test_a_call_that_cannot_be_answered_gets_a_sentence(world, call, error):
    made = world()
    got = made.answer(call + END)
    assert f"<tool_response>\nError: {error}" in got[0] and got["inputs"].vision() == {}
    [[call]] = made.conversations.each[0].calls
    assert call.error.startswith(error) and not call.clips and call.tokens > 0


def test_calls_are_read_in_both_forms_and_answered_in_order(world):
    xml = XML_CALL.format("look", "<parameter=start>\n1.5\n</parameter>\n<parameter=end>\n2\n</parameter>\n")
    text = f"First {xml} then {JSON_CALL.format('zoom', '{}')}"
    assert calls_in(text) == [("look", {"start": "1.5", "end": "2"}), ("zoom", {})]
    made = world(look_frames=2)
    got = made.answer(look(1, 2).removesuffix(END) + look(3, 4))
    assert got[0].index("1.0 to 2.0 seconds") < got[0].index("3.0 to 4.0 seconds")
    assert got["inputs"].videos_per_prompt == [2]
    [calls] = made.conversations.each[0].calls
    assert sum(call.tokens for call in calls) == int(got["inputs"].attention_mask[0].sum())


def test_the_last_turn_has_to_answer_and_a_cut_turn_is_not_answered(world):
    made = world(max_turns=2)
    assert 0 in made.answer(look(1, 2), look(1, 2).removesuffix(END))
    assert made.answer(look(2, 3)) == {}
    assert made.conversations.each[0].calls[1][0].error == "the last turn has to answer"
    assert made.conversations.each[1].calls == []


def test_a_text_of_millions_of_characters_is_refused_before_its_tokens_are_found(world, monkeypatch):
    made = world(tools=("own.py:essay",), look_tokens=300)
    asked = []
    tokens = Toolbox.tokens

    def noted(toolbox, record, parts):
        asked.append(parts)
        return tokens(toolbox, record, parts)

    monkeypatch.setattr(Toolbox, "tokens", noted)
    refused = made.answer(JSON_CALL.format("essay", "{}") + END)
    assert "this has 10,000,000 characters, and 300 tokens are left: answer now" in refused[0]
    assert max(len(part) for parts in asked for answer in parts for part in answer if isinstance(part, str)) < 1000


def test_a_look_is_given_whole_or_refused(world):
    whole = world(look_frames=16).answer(look(0, 6))["inputs"].attention_mask.sum()
    made = world(look_frames=16, look_tokens=int(whole) + 150)
    assert "seconds:" in made.answer(look(0, 6))[0]
    refused = made.answer(look(0, 6))
    assert f"this would take {whole} tokens, and 150 are left: answer now" in refused[0]
    assert refused["inputs"].vision() == {}


@pytest.mark.parametrize("left", [0, 10, 60])
def test_a_completion_ends_where_no_refusal_fits(world, left):
    """Nothing is executed where nothing fits, and nothing is appended beyond ``look_tokens``."""
    whole = int(world(look_frames=16).answer(look(0, 6))["inputs"].attention_mask.sum())
    made = world(look_frames=16, look_tokens=whole + left, max_turns=9)
    assert 0 in made.answer(look(0, 6))
    assert made.answer(look(0, 6)) == {}
    [call] = made.conversations.each[0].calls[-1]
    assert call.error and call.tokens == 0 and made.conversations.each[0].tokens == whole


def test_calls_that_do_not_fit_are_refused_together_and_not_executed(world, monkeypatch):
    one = int(world(look_frames=16).answer(look(0, 6))["inputs"].attention_mask.sum())
    made = world(look_frames=16, look_tokens=one + 150, max_turns=9)
    opened = []
    of = type(made.toolbox.dataset).open
    monkeypatch.setattr(type(made.toolbox.dataset), "open", lambda *args: opened.append(args) or of(*args))
    spans = [look(start, 6).removesuffix(END) for start in (0, 1, 2, 3, 4)]
    got = made.answer("".join(spans) + END)
    assert got["inputs"].videos_per_prompt == [1], "the first fits"
    assert got[0].count("<tool_response>") == 2 and got[0].count("Error:") == 1
    assert len(opened) == 2, "the second was executed to learn its size, and no further one"
    assert int(got["inputs"].attention_mask.sum()) <= one + 150
    calls = made.conversations.each[0].calls[-1]
    assert len(calls) == 5 and calls[0].error is None and len({call.error for call in calls[1:]}) == 1


@pytest.mark.parametrize("calls", [MOST_CALLS, MOST_CALLS + 1, 5000])
def test_a_turn_has_a_bounded_number_of_calls(world, monkeypatch, calls):
    made = world(tools=("own.py:halves", "look"), look_tokens=20_000)
    executed = []
    run = Toolbox.run
    monkeypatch.setattr(Toolbox, "run", lambda *args: executed.append(args) or run(*args))
    each = [JSON_CALL.format("halves", f'{{"time": {time}}}') for time in range(900, 900 + calls)]
    got = made.answer("".join(each) + END)
    few = calls <= MOST_CALLS
    assert len(executed) == (calls if few else 0)
    assert got[0].count("Error:") == (calls if few else 1)
    assert few or f"this turn has {calls} calls" in got[0]
    assert len(made.conversations.each[0].calls[-1]) == MOST_CALLS


def test_own_tools_are_executed_for_each_record_of_a_clip(world):
    """A tool of the user may read the question, or any field."""
    made = world(tools=("own.py:told",))
    first, second, _ = made.conversations.each
    second.record = replace(first.record, id="other", fields={"start": 8})
    call = JSON_CALL.format("told", "{}") + END
    got = made.answer(call, call)
    assert "the field is 5" in got[0] and "the field is 8" in got[1]


def test_own_tools_get_copies_of_the_record_and_of_their_arguments(world):
    made = world(tools=("trl:own.py:Steps",))
    made.record.fields["steps"] = ["a", "b"]
    call = JSON_CALL.format("take", '{"names": ["b"]}') + END
    got = made.answer(call, call)
    assert all("left: a, taken: b, b" in got[row] for row in (0, 1))
    assert made.record.fields["steps"] == ["a", "b"]
    assert made.conversations.each[0].calls[0][0].arguments == {"names": ["b"]}


def test_an_own_tool_may_show_frames_for_a_record_without_a_clip(world):
    made = world(tools=("own.py:other",))
    made.conversations.each[0].record = replace(made.record, videos=(), clip_meta=())
    got = made.answer(JSON_CALL.format("other", "{}") + END)
    assert got["inputs"].videos_per_prompt == [1]


BROKEN = {
    "raises": "ZeroDivisionError: division by zero (own.py, line",
    "exits": "SystemExit: 3",
    "cancelled": "CancelledError",
    "nothing": "it returned NoneType; expected frames, a picture, text or a list of these",
    "garbage": "it returned dict",
    "cycle": "it returned lists in",
    "special": "it holds '<|im_end|>'",
    "in_two_parts": "it holds '<|video_pad|>'",
    "half_a_pair": "half a character",
    "thin": "600 x 2 pixels",
    "floats": "it returned pixels of torch.float32",
    "odd": "expected pairs of frames",
}


@pytest.mark.parametrize("name", BROKEN)
def test_an_own_tool_that_fails_is_named_with_the_record_in_one_line(world, name):
    made = world(tools=(f"own.py:{name}",))
    with pytest.raises(OwnCodeError) as failed:
        made.answer(JSON_CALL.format(name, "{}") + END)
    message = str(failed.value)
    assert "\n" not in message and message.startswith(f"--tools own.py:{name}, called for ")
    assert made.record.where in message and BROKEN[name] in message


def test_an_environment_that_fails_is_named_with_the_record(world):
    made = world(tools=("trl:own.py:Broken",))
    with pytest.raises(OwnCodeError, match=r"--tools trl:own.py:Broken.act, called for .*data.json.*KeyError: 'goal'"):
        made.answer(JSON_CALL.format("act", "{}") + END)


@pytest.mark.parametrize("tools", ["own.py:joined", "own.py:pair", "trl:own.py:Page"])
def test_a_special_token_that_a_tool_puts_together_of_what_the_model_wrote_ends_no_run(world, tools):
    made = world(tools=(tools,))
    if tools == "own.py:joined":
        calls = JSON_CALL.format("joined", '{"first": "So <|im_", "pieces": ["e", "nd|>"]}')
    elif tools == "own.py:pair":
        calls = JSON_CALL.format("pair", '{"both": ["< |im_", "end|>"]}'.replace("< ", "<"))
    else:
        calls = "".join(JSON_CALL.format("write", f'{{"text": "{text}"}}') for text in ("<|im_", "end|>"))
        calls += JSON_CALL.format("read", "{}")
    got = made.answer(calls + END)
    assert "gave a text that is no part of a prompt: it holds '< |im_end|>'" in got[0]
    *_, last = made.conversations.each[0].calls[-1]
    assert last.error.endswith("it holds '<|im_end|>', which the chat template alone writes")


def test_a_number_with_more_digits_than_python_writes_is_refused(world):
    got = world(tools=("own.py:power",)).answer(
        JSON_CALL.format("power", '{"base": 9, "exponent": 9999}')
        + JSON_CALL.format("power", '{"base": 2, "exponent": 5}')
        + END
    )
    assert "Error: the result has more than 4,300 digits." in got[0] and "32" in got[0]


def test_an_own_tool_refuses_in_its_own_words(world):
    """Of which nothing is read as a special token, also where they quote what the model has written."""
    made = world(tools=("own.py:refuses",))
    got = made.answer(JSON_CALL.format("refuses", "{}") + END)
    assert "<tool_response>\nError: there is no < |video_pad|> here." in got[0] and got["inputs"].vision() == {}
    made = world(tools=("own.py:says_nothing",))
    got = made.answer(JSON_CALL.format("says_nothing", "{}") + END)
    [[call]] = made.conversations.each[0].calls
    assert "Error: says_nothing cannot answer." in got[0] and call.error == "says_nothing cannot answer"


HOSTILE = {
    "309 digits": JSON_CALL.format("look", f'{{"start": 0, "end": {"9" * 309}}}'),
    "5,000 digits": JSON_CALL.format("look", f'{{"start": 0, "end": {"9" * 5000}}}'),
    "a large exponent": JSON_CALL.format("look", f'{{"start": 0, "end": 1e{"9" * 400}}}'),
    "infinity": JSON_CALL.format("look", '{"start": -Infinity, "end": Infinity}'),
    "digits in XML": XML_CALL.format("look", f"<parameter=start>{'9' * 400}</parameter><parameter=end>9</parameter>"),
    "brackets": "<tool_call>" + "[" * 5000,
    "nested arguments": JSON_CALL.format("look", '{"start": 0, "end": ' + '{"a": ' * 900 + "1" + "}" * 900 + "}"),
    "a list of pairs": JSON_CALL.format("look", '[[1, 2], ["b", 3]]'),
    "a name that is a picture": JSON_CALL.format("<|video_pad|><|image_pad|>", "{}"),
    "a name that ends the turn": JSON_CALL.format("<|im_end|>", "{}"),
    "a name of half a character": JSON_CALL.format("\\ud800", "{}"),
    "an argument that is a picture": JSON_CALL.format("look", '{"<|video_pad|>": 1, "start": 0, "end": 1}'),
    "a value that is a picture": JSON_CALL.format("look", '{"start": "<|image_pad|>", "end": 1}'),
    "a long name": JSON_CALL.format("look" * 5000, "{}"),
    "no object": "<tool_call>[1, 2]</tool_call><tool_call>null</tool_call><tool_call>7</tool_call>",
    "the least box": JSON_CALL.format("zoom", '{"time": 1, "x1": 0, "y1": 0, "x2": 5e-324, "y2": 1000}'),
    "the last box": JSON_CALL.format("zoom", '{"time": 1, "x1": 999.9999999999999, "y1": 0, "x2": 1000, "y2": 1e-300}'),
    "the whole of all times": JSON_CALL.format("look", '{"start": -1e308, "end": 1e308}'),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_calls_are_answered_with_pictures_or_a_sentence(world, name):
    """The appended turn has the structure of an answer, and for each call a picture or one short sentence."""
    made = world(look_fps=2.0, look_tokens=20_000)
    tokenizer = made.toolbox.collator.processor.tokenizer
    special = tokenizer.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>", "<|video_pad|>", "<|image_pad|>"])
    ordinary = tokenizer(HOSTILE[name], split_special_tokens=True)["input_ids"]
    inputs = made.conversations.answer({0: [*ordinary, special[1]]})[0]
    counts = [int((inputs.input_ids == each).sum()) for each in special]
    calls = made.conversations.each[0].calls[-1]
    assert counts[0] == len(calls) + 1 and counts[1] == len(calls)
    shown = sum(call.pictures + len(call.clips) for call in calls)
    assert (counts[2] + counts[3] > 0) == (shown > 0)
    for call in calls:
        assert (call.error is None) == bool(call.pictures or call.clips)
        assert len(call.error or "") < 200
    json.dumps(plain(asdict(calls[0])), allow_nan=False)


def test_boxes_that_are_too_thin_for_the_model_are_refused(world):
    made = world()
    picture = replace(Video(made.toolbox.dataset, made.record, made.toolbox.options).frame(1.0))
    wide = replace(picture, pixels=torch.zeros(3, 1080, 1920, dtype=torch.uint8))
    with pytest.raises(ToolError, match="at most 200 times"):
        wide.crop(0, 0, 0.1, 1000)
    assert max(wide.crop(0, 0, 5, 1000).pixels.shape[1:]) <= 200 * min(wide.crop(0, 0, 5, 1000).pixels.shape[1:])


def test_the_same_look_is_decoded_and_encoded_once(world, monkeypatch):
    made = world()
    opened, encoded = [], []
    of, encode = type(made.toolbox.dataset).open, made.conversations.encode
    monkeypatch.setattr(type(made.toolbox.dataset), "open", lambda *args: opened.append(args) or of(*args))
    made.conversations.encode = lambda batch: encoded.append(len(batch)) or encode(batch)
    first = made.answer(look(1, 2), look(1, 2), look(1.0, 2.0))
    assert made.answer(look(1, 2))[0] == first[1] and len(opened) == 1 and encoded == [1]


def test_a_tool_that_fails_is_told_where_others_must_go_on(world):
    """A server answers several people together."""
    made = world(tools=("own.py:raises", "look"))
    failed = []
    on_failure = lambda record, error: failed.append((record.id, str(error)))
    made.conversations.toolbox = replace(made.toolbox, on_failure=on_failure)
    answers = made.answer(JSON_CALL.format("raises", "{}") + END, look(1, 2))
    assert "raises has failed" in answers[0] and "<|video_pad|>" in answers[1]
    [(record, error)] = failed
    assert record == made.record.id and "ZeroDivisionError" in error


def test_a_look_that_fails_as_none_should_ends_a_run_and_no_request_of_others(world, monkeypatch):
    made = world(max_turns=9)

    def fails(dataset, record, number):
        raise RuntimeError("the decoding process failed")

    monkeypatch.setattr(type(made.toolbox.dataset), "open", fails)
    with pytest.raises(RuntimeError, match="the decoding process failed"):
        made.answer(look(1, 2))
    failed = []
    on_failure = lambda record, error: failed.append(str(error))
    made.conversations.toolbox = replace(made.toolbox, on_failure=on_failure)
    assert "look has failed" in made.answer(look(1, 3))[0] and failed == ["the decoding process failed"]


def test_a_call_that_fails_is_executed_once(world, monkeypatch):
    made = world(max_turns=9)
    opened = []

    def is_damaged(dataset, record, number):
        opened.append(number)
        raise BadMediaError(record.videos[number], "no frame at 1.5 s could be decoded")

    monkeypatch.setattr(type(made.toolbox.dataset), "open", is_damaged)
    first = made.answer(look(1, 2), look(1, 2), look(1.0, 2.0))
    assert first[0] == first[1] == first[2] and "no frame at 1.5 s" in first[0]
    assert made.answer(look(1, 2))[0] == first[0] and len(opened) == 1
    made.answer(look(1, 3))
    assert len(opened) == 2, "another call is another attempt"


def test_a_clip_that_hangs_costs_its_time_once_whatever_spans_completions_ask_for(world, monkeypatch):
    """16 calls of 8 completions may name 128 spans, and each would cost ``decode_timeout``."""
    made = world(max_turns=9, tools=["look", "zoom"])
    opened = []

    def hangs(dataset, record, number):
        opened.append(number)
        raise MediaTimeout(record.videos[number], "not decoded within 60 s (--decode_timeout)")

    monkeypatch.setattr(type(made.toolbox.dataset), "open", hangs)
    zoom = JSON_CALL.format("zoom", '{"time": 1, "x1": 0, "y1": 0, "x2": 500, "y2": 500}') + END
    first = made.answer(look(1, 2), look(1, 3), zoom)
    assert "not decoded within 60 s" in first[0] and first[0] == first[1] == first[2]
    assert made.answer(look(2, 3))[0] == first[0] and len(opened) == 1
    assert not made.toolbox.begin([made.record]).closed, "other completions try again"


def test_each_call_that_is_answered_is_progress(world):
    """Those of a step may take longer together than ``--stall_timeout``."""
    made = world(max_turns=9)
    meter = Meter()
    beats = [meter.beat()]

    def on_answer():
        meter.call_answered()
        beats.append(meter.beat())

    made.conversations.toolbox = replace(made.toolbox, on_answer=on_answer)
    made.answer(look(1, 2).removesuffix(END) + look(2, 3), look(7, 8), "no call" + END)
    assert len(beats) == len(set(beats)) == 4


def test_looks_at_a_clip_that_is_slow_to_decode_end_together(world):
    made = world(max_turns=9)
    dataset = made.toolbox.dataset
    assert made.answer(look(1, 2))[0].count("<|video_pad|>") > 0
    dataset.options = replace(dataset.options, decode_timeout=10.0)
    made.conversations.seconds.update({clip: 40.0 for clip in made.conversations.seconds})
    last, refused = made.answer(look(2, 3), look(3, 4))[0], made.answer(look(4, 5))[0]
    assert "<|video_pad|>" in last and "looks at this video have taken more than 40 s: answer now" in refused
    dataset.options = replace(dataset.options, decode_timeout=0.0)
    made.conversations.closed.clear()
    assert "<|video_pad|>" in made.answer(look(4, 6))[0], "without a bound on decoding there is none here"


def test_no_call_is_executed_for_a_completion_that_nobody_waits_for(world, monkeypatch):
    made = world()
    opened = []
    of = type(made.toolbox.dataset).open
    monkeypatch.setattr(type(made.toolbox.dataset), "open", lambda *args: opened.append(args) or of(*args))
    asked = []

    def is_awaited(record):
        asked.append(record)
        return len(asked) <= 2  # up to the second call

    made.conversations.toolbox = replace(made.toolbox, is_awaited=is_awaited)
    spans = [look(start, 6).removesuffix(END) for start in (0, 1, 2, 3, 4)]
    assert made.answer("".join(spans) + END, look(5, 6)) == {}
    assert len(opened) == 2 and asked[0] == made.record
    first, second, _ = made.conversations.each
    assert len(first.calls[0]) == 5 and all(call.error for call in (*first.calls[0], *second.calls[0]))


def test_own_tools_show_pictures_and_each_completion_has_its_own_environment(world):
    made = world(tools=("own.py:halves", "trl:own.py:Counter"))
    add = JSON_CALL.format("add", '{"amount": 2}') + END
    got = made.answer(JSON_CALL.format("halves", '{"time": 0.5}') + END, add, add)
    assert got["inputs"].images_per_prompt == [2, 0, 0] and "left and right" in got[0]
    assert "the count is 7" in got[1] and "the count is 7" in got[2], "each completion has an object of its own"
    assert "the count is 9" in made.answer("", add)[1]


def test_tools_that_do_not_exist_are_refused(world):
    for name, error in (
        ("loook", "--tools loook: did you mean look\\?"),
        ("own.py:missing", "--tools own.py:missing: own.py has no missing"),
        ("gone.py:half", "gone.py: no such Python file \\(--tools gone.py:half\\)"),
        ("trl:own.py:halves", "--tools trl:own.py:halves: expected a class"),
    ):
        with pytest.raises(ValueError, match=error):
            world(tools=(name,))


@pytest.mark.parametrize("given", [3, None])
def test_values_that_are_no_tools_are_refused(given):
    with pytest.raises(ValueError, match="--tools: expected names, functions or tools"):
        resolve_tools([given])


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


async def later(amount: int):
    """Do something."""


def positional(amount: int, /):
    """Do something."""


def several(**amounts: int):
    """Do something."""


@pytest.mark.parametrize("function", [later, positional, several])
def test_functions_that_no_call_can_name_the_arguments_of_are_refused(function):
    with pytest.raises(TypeError, match=f"tool {function.__name__}: "):
        resolve_tools([function])


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

    def under(control):
        """The same conversations under a control, with nothing made before."""
        toolbox = toolbox_under(control, made.toolbox, 0)
        return Conversations(toolbox, made.conversations.encode, made.conversations.each)

    turn = {0: made.toolbox.collator.processor.tokenizer(look(1, 2))["input_ids"]}
    as_asked, grey, elsewhere, refused = (
        under(control).answer(turn)[0] for control in ("none", "blank", "other_span", "no_look")
    )
    calls = [each[0] for each in made.conversations.each[0].calls]
    assert [call.clips[0].times[0] for call in calls[:3]] == [1.0, 1.0, 4.0]
    assert calls[3].error == "the video cannot be looked at again" and refused.vision() == {}
    # What lies beyond the clip is no part of a span's length.
    beyond = {0: made.toolbox.collator.processor.tokenizer(look(4, 99))["input_ids"]}
    lengths = []
    for control in ("none", "other_span"):
        under(control).answer(beyond)
        start, end = made.conversations.each[0].calls[-1][0].clips[0].looked_at
        lengths.append(end - start)
    assert lengths[0] == pytest.approx(lengths[1]) and start == pytest.approx(4 - (end - start + 4) / 2)
    assert grey.input_ids.tolist() == as_asked.input_ids.tolist() and grey.pixel_values_videos.unique().numel() == 1
    assert elsewhere.pixel_values_videos.shape == as_asked.pixel_values_videos.shape
