"""Fixtures of the tests of label and serve."""

import shutil

import pytest
from PIL import Image

from qwenvl.data.options import FrameOptions, PromptOptions
from qwenvl.data.prompt_settings import PromptSettings
from qwenvl.data.records.framing import Framing
from tests.made_clips import write_clip
from tests.use.running import Running


@pytest.fixture(scope="module")
def with_model(tiny_checkpoint, tmp_path_factory):
    """A folder with a model that has settings of its own."""
    folder = tmp_path_factory.mktemp("made")
    shutil.copytree(tiny_checkpoint(initializer_range=0.1), folder / "model")
    settings = PromptSettings(
        frames=FrameOptions(base_interval=0.5, video_max_frames=6),
        prompts=PromptOptions(video_max_frame_pixels=3136),
        base_model="base",
        system="Be brief.",
        prompt_template="Look well. {prompt}",
        framing=Framing(between="\n", before_text="\n"),
    )
    settings.save(folder / "model")
    return folder


@pytest.fixture(scope="module")
def made_media(with_model):
    """A folder with a model that has settings of its own, two clips and a picture."""
    folder = with_model
    write_clip(folder / "media/one.mp4", 40, size=(160, 120))
    write_clip(folder / "media/two.mp4", 20, size=(120, 120))
    Image.new("RGB", (90, 60), (200, 30, 30)).save(folder / "media/part.png")
    (folder / "secret.txt").write_text("secret")
    (folder / "media/link.mp4").symlink_to(folder / "secret.txt")
    return folder


@pytest.fixture(scope="module")
def running(made_media):
    """A running server that the tests of a file share."""
    server = Running(made_media, "--max_media", "2", "--max_body_mb", "1")
    yield server
    server.end()
