"""What the tests of label and serve share."""

import shutil

import pytest

from qwenvl.data.options import FrameOptions, PromptOptions
from qwenvl.data.records.framing import Framing
from qwenvl.data.saved_processor import PromptSettings


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
