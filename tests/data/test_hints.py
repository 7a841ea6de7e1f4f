import pytest
import torch

from qwenvl.data.hints import few_frames, picture_hints, size_hints
from qwenvl.data.options import FrameOptions, PromptOptions
from qwenvl.data.prompt_length import MediaSizes
from qwenvl.types import ClipMeta, FrameInfo, VideoClip

LARGE = (720, 1280)


def test_a_large_clip_is_told_with_the_flag_and_its_cost():
    """16 : 9 below 32 * 28 * 28 pixels in multiples of 28: 7 x 4 tokens. Below four times as many: 15 x 8."""
    ((kind, message),) = size_hints(MediaSizes((LARGE, LARGE), (None, ClipMeta()), ()), PromptOptions())
    assert kind == "seen small"
    assert message == (
        "clips of 1280 x 720 pixels are seen at 196 x 112; --video_max_frame_pixels 100352 shows 420 x 224, for 120 "
        "tokens a pair of frames in place of 28"
    )
    ((_, message),) = size_hints(MediaSizes((), (), ((3000, 4000),)), PromptOptions())
    assert "images of 4000 x 3000 pixels are seen at 756 x 560; --max_pixels 1806336 shows 1540 x 1148" in message


def test_what_is_meant_or_not_shrunk_much_is_not_told():
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
