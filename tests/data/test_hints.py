import pytest
import torch
import torch.nn.functional as F

from qwenvl.data.hints import few_frames, picture_hints, setting_hints, size_hints
from qwenvl.data.options import FrameOptions, PromptOptions
from qwenvl.data.prompt_length import MediaSizes
from qwenvl.types import ClipMeta, FrameInfo, LibraryCount, LibrarySize, VideoClip

LARGE = (720, 1280)


def test_a_clip_that_is_shrunk_much_is_hinted_at_with_the_flag_and_its_cost():
    """16 : 9 below 32 * 28 * 28 pixels in multiples of 28: 7 x 4 tokens. Below four times as many: 15 x 8."""
    ((kind, message),) = size_hints(MediaSizes((LARGE, LARGE), (None, ClipMeta()), ()), PromptOptions())
    assert kind == "seen small"
    assert message == (
        "clips of 1280 x 720 pixels are seen at 196 x 112; --video_max_frame_pixels 100352 shows 420 x 224, for 120 "
        "tokens a pair of frames in place of 28"
    )
    ((_, message),) = size_hints(MediaSizes((), (), ((3000, 4000),)), PromptOptions())
    assert "images of 4000 x 3000 pixels are seen at 756 x 560; --max_pixels 1806336 shows 1540 x 1148" in message


def test_no_hint_where_a_size_was_chosen_or_hardly_shrinks():
    options, large = PromptOptions(), MediaSizes((LARGE,), (None,), ())
    assert size_hints(MediaSizes(((200, 300),), (None,), ((720, 1280),)), options) == []
    assert size_hints(large._replace(metas=(ClipMeta(max_pixels=9999),)), options) == [], "the record's own bound"
    assert size_hints(large, PromptOptions(video_max_frame_pixels=9999)) == []


def test_short_clips_name_the_rate_that_shows_more_frames():
    # 1.9 s at one frame in 2 s is 1, below 4; 8 frames are 5 a second, rounded up
    clips = [(0.2, 6), (1.9, 57), (2.9, 87), (60.0, 1800)]
    ((kind, message),) = few_frames(clips, FrameOptions())
    assert kind == "few frames"
    assert message == (
        "3 of 4 clips are so short that they show 4 frames (--video_min_frames): --base_interval and "
        "--video_max_frames change nothing there; --video_fps 5 shows 8 of a clip of 1.9 s"
    )
    ((_, message),) = few_frames([(0.2, 6)], FrameOptions(video_max_frames=32))
    assert message.endswith("--video_fps 30 shows 6 of a clip of 0.2 s"), "no more than the clip has"
    for silent in ([(60.0, 1800)], [(0.2, 5)], [(1.9, 57), (9.0, 90), (9.0, 90)]):
        assert few_frames(silent, FrameOptions()) == []
    assert few_frames(clips, FrameOptions(video_fps=5.0)) == []


def test_a_size_of_a_row_that_is_rounded_or_lowered_is_hinted_at():
    info = FrameInfo("a.mp4", (0, 1, 2, 3), (0.0, 1.0, 2.0, 3.0))
    fixed = LibrarySize(resized_height=28, resized_width=28)
    of_clip = MediaSizes((LARGE,), (ClipMeta(size=fixed),), (), (info,))
    ((kind, message),) = setting_hints(of_clip)
    assert kind == "frame settings"
    assert message.startswith("resized_height 28 and resized_width 28 become 56 and 56: sides are multiples of 28")
    assert setting_hints(MediaSizes((), (), (LARGE,), (), (fixed,))) == setting_hints(of_clip)
    exact = LibrarySize(resized_height=280, resized_width=420)
    assert setting_hints(of_clip._replace(metas=(ClipMeta(size=exact),))) == []
    # the package's most for a frame: 768 tokens of 28 x 28 pixels
    high = LibrarySize(max_pixels=10**6)
    ((_, message),) = setting_hints(of_clip._replace(metas=(ClipMeta(size=high),)))
    assert message.startswith("max_pixels 1000000 of a frame is lowered to 602112, as in qwen_vl_utils")
    assert setting_hints(of_clip._replace(metas=(ClipMeta(size=LibrarySize(max_pixels=602112)),))) == []
    assert size_hints(of_clip, PromptOptions()) == [], "the row says how large its frames are"


def test_a_number_of_frames_that_was_taken_for_a_note_is_hinted_at():
    info = FrameInfo("a.mp4", (0, 600, 1200, 1799), (0.0, 20.0, 40.0, 60.0))
    meta = ClipMeta(count=LibraryCount(nframes=1800, beside_turns=True))
    ((_, message),) = setting_hints(MediaSizes((LARGE,), (meta,), (), (info,)))
    assert "--columns nframes=NAME" in message
    shown = ClipMeta(count=LibraryCount(nframes=5, beside_turns=True))  # 4 by the package's rule
    assert setting_hints(MediaSizes((LARGE,), (shown,), (), (info,))) == []


def clip_of(*frames: torch.Tensor) -> VideoClip:
    count = len(frames)
    info = FrameInfo("a.mp4", tuple(range(count)), tuple(map(float, range(count))))
    return VideoClip(torch.stack(frames).to(torch.uint8), info)


BLACK = torch.full((3, 8, 8), 4)
DARK = torch.zeros(3, 8, 8)
DARK[:, :2, :2] = 200  # a lamp at night
SCENE = torch.arange(192).view(3, 8, 8)
LATER = SCENE.flip(2)


@pytest.mark.parametrize(
    ("frames", "kinds", "word"),
    [
        ((SCENE, LATER), [], ""),
        ((DARK, DARK.flip(2)), [], ""),
        ((SCENE, LATER, BLACK), ["black frames"], "video_end"),
        ((BLACK, SCENE, LATER), ["black frames"], "video_start"),
        ((SCENE, BLACK, LATER), ["black frames"], "between"),
        ((BLACK, BLACK), ["black frames"], "from their first"),
        ((SCENE, SCENE, SCENE), ["frozen"], "the same frame"),
        ((SCENE,), [], ""),
    ],
)
def test_black_and_frozen_clips_are_worth_a_look(frames, kinds, word):
    found = picture_hints([clip_of(*frames), clip_of(*frames)])
    assert [hint.kind for hint in found] == kinds
    assert all(word in hint.message for hint in found)


def test_clips_without_detail_are_blurred_and_sharp_or_plain_ones_are_not():
    draws = torch.Generator().manual_seed(0)
    coarse = [torch.randint(40, 215, (1, 3, 4, 4), generator=draws).float() for _ in range(2)]
    smooth = [F.interpolate(each, size=(64, 64), mode="bicubic").clamp(0, 255)[0] for each in coarse]
    blocks = [F.interpolate(each, size=(64, 64))[0] for each in coarse]  # the same colours with sharp edges
    plain = torch.full((3, 64, 64), 120)
    assert [hint.kind for hint in picture_hints([clip_of(*smooth)])] == ["blurred"]
    assert picture_hints([clip_of(*blocks)]) == []
    assert picture_hints([clip_of(smooth[0], blocks[1])]) == []
    assert [hint.kind for hint in picture_hints([clip_of(plain, plain)])] == ["frozen"]
