"""What the tests of label and serve share."""

import shutil

import pytest

from qwenvl.data.options import FrameOptions, PromptOptions
from qwenvl.data.prompt_settings import PromptSettings


@pytest.fixture(scope="module")
def with_model(tiny_checkpoint, tmp_path_factory):
    """A folder with a model that has settings of its own."""
    folder = tmp_path_factory.mktemp("made")
    shutil.copytree(tiny_checkpoint(initializer_range=0.1), folder / "model")
    settings = FrameOptions(base_interval=0.5, video_max_frames=6), PromptOptions(video_max_frame_pixels=3136)
    PromptSettings(*settings, "base", "Be brief.", "Look well. {prompt}").save(folder / "model")
    return folder
