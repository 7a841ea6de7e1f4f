"""Against what the collator makes of the pixels themselves."""

import pytest
import torch

from qwenvl.data.chat import chat_messages
from qwenvl.data.collator import GRPOCollator
from qwenvl.data.lengths import Ruler
from qwenvl.demo.tiny import FAMILIES, make_processor
from qwenvl.types import ClipMeta, FrameInfo, Message, Record, Sample, VideoClip


@pytest.fixture(scope="module", params=FAMILIES)
def processor(request):
    return make_processor(request.param)


@pytest.fixture
def ruler(processor):
    return Ruler(processor, (4 * 28 * 28, 32 * 28 * 28), (16 * 28 * 28, 576 * 28 * 28))


def sample_of(text: str, clips, images, metas=None) -> Sample:
    """Clips as (times, height, width), images as (height, width), all of grey pixels."""
    videos = tuple(
        VideoClip(
            torch.full((len(times), 3, height, width), 128, dtype=torch.uint8),
            FrameInfo("a.mp4", tuple(range(len(times))), times, None, 0.5),
        )
        for times, height, width in clips
    )
    stills = tuple(torch.full((3, *size), 128, dtype=torch.uint8) for size in images)
    metas = metas or (None,) * len(videos)
    record = Record("1", (Message("user", text),), "a", ("v",) * len(videos), ("i",) * len(stills), metas, {}, "d[0]")
    return Sample(record, chat_messages(record), videos, stills)


@pytest.mark.parametrize(
    ("text", "clips", "images"),
    [
        ("Only words.", [], []),
        ("<video>\nWhich?", [((0.0, 0.5, 1.0, 1.5), 120, 200)], []),
        ("<image> and <image>", [], [(40, 300), (700, 500)]),
        (
            "<video><image> then <video>: 7<video>?",
            [((0.0, 9.9, 10.0, 100.25), 480, 640), ((0.0, 0.0), 3, 5), (tuple(i / 3 for i in range(12)), 90, 60)],
            [(200, 100)],
        ),
    ],
)
def test_the_length_is_that_of_the_prompt(processor, ruler, text, clips, images):
    sizes = [(times, ruler.frame_size((height, width), None)) for times, height, width in clips]
    sample = sample_of(text, clips, images)
    measured = ruler.length(sample.chat, sizes, [ruler.image_size(size) for size in images])
    assert measured == GRPOCollator(processor)([sample])["prompts"].input_ids.shape[1]


def test_sizes_by_hand():
    ruler = Ruler(make_processor("qwen2_5_vl"), (4 * 28 * 28, 32 * 28 * 28), (16 * 28 * 28, 576 * 28 * 28))
    # 480 x 640 pixels into 25,088: 480 / sqrt(307,200 / 25,088) = 137.2 and 182.9, down to multiples of 28
    assert ruler.frame_size((480, 640), None) == (112, 168)
    # half of 112 x 168 is 9,408: 480 / sqrt(307,200 / 9,408) = 84 and 112
    assert ruler.frame_size((480, 640), None, share=0.5) == (84, 112)
    # a hundredth is below the least, 3,136: 480 / sqrt(307,200 / 3,136) = 48.5 and 64.7
    assert ruler.frame_size((480, 640), None, share=0.01) == (28, 56)
    # the record's own bounds: 480 / sqrt(307,200 / 50,176) = 193.99 and 258.7
    assert ruler.frame_size((480, 640), ClipMeta(max_pixels=64 * 28 * 28)) == (168, 252)
    # a still keeps its size, to multiples of 28
    assert ruler.image_size((300, 405)) == (308, 392)
