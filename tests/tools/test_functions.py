"""The functions that completions call: parts of a picture, schemas, and names of tools."""

from __future__ import annotations

import pytest
import torch
from PIL import Image

from qwenvl.tools.errors import ToolError
from qwenvl.tools.functions import Still, look, resolve_tools, schema_of, tool, zoom

BICUBIC = Image.Resampling.BICUBIC.value


def quarters() -> Still:
    """A picture of 40 x 60 pixels in four colours: 10 and 20 above, 30 and 40 below."""
    pixels = torch.empty(3, 40, 60, dtype=torch.uint8)
    pixels[:, :20, :30], pixels[:, :20, 30:] = 10, 20
    pixels[:, 20:, :30], pixels[:, 20:, 30:] = 30, 40
    return Still(pixels, BICUBIC)


@pytest.mark.parametrize(
    ("box", "colour"),
    [((0, 0, 500, 500), 10), ((500, 0, 1000, 500), 20), ((0, 500, 500, 1000), 30), ((500, 500, 1000, 1000), 40)],
)
def test_a_part_of_a_picture_is_enlarged_to_as_many_pixels(box, colour):
    part = quarters().crop(*box)
    assert part.pixels.shape == (3, 40, 60) and part.resample == BICUBIC
    assert part.pixels.unique().tolist() == [colour]


def test_the_shape_of_a_part_is_kept():
    # 300 x 1000 thousandths of 60 x 40 pixels are 18 x 40: scaled by the root of 2400 / 720 they are 33 x 73.
    assert quarters().crop(0, 0, 300, 1000).pixels.shape == (3, 73, 33)


@pytest.mark.parametrize("box", [(500, 0, 500, 1000), (0, 0, 1001, 10), (-1, 0, 10, 10), (10, 20, 5, 30)], ids=str)
def test_a_box_that_is_no_part_is_refused(box):
    with pytest.raises(ToolError, match="empty or not within 0 to 1000"):
        quarters().crop(*box)


def test_a_box_that_is_too_thin_is_refused():
    wide = Still(torch.zeros(3, 10, 4000, dtype=torch.uint8), BICUBIC)
    with pytest.raises(ToolError, match="too thin"):
        wide.crop(0, 0, 1000, 100)


def test_a_schema_has_the_arguments_that_the_model_gives():
    function = look.schema["function"]
    assert (function["name"], function["description"]) == ("look", "Look at a span of the video again, in more frames.")
    assert set(function["parameters"]["properties"]) == {"start", "end"}
    assert function["parameters"]["required"] == ["start", "end"]
    assert set(zoom.schema["function"]["parameters"]["properties"]) == {"time", "x1", "y1", "x2", "y2"}


def test_functions_without_types_texts_or_names_are_no_tools():
    def untyped(time):
        """Do something.

        Args:
            time: seconds.
        """

    def undescribed(time: float):
        """Do something."""

    def many(*times: float):
        """Do something.

        Args:
            times: seconds.
        """

    async def later(time: float):
        """Do something.

        Args:
            time: seconds.
        """

    for function in (untyped, undescribed, many, later):
        with pytest.raises(TypeError, match=f"tool {function.__name__}: "):
            schema_of(function)


def test_a_type_that_is_imported_for_type_checkers_alone_is_named(tmp_path):
    (tmp_path / "late.py").write_text(
        "from __future__ import annotations\nfrom typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from qwenvl.tools import Video\n"
        'def shows(video: Video) -> str:\n    """Show it."""\n    return ""\n'
    )
    reason = r"--tools .*late\.py:shows: tool shows: .* name 'Video' is not defined; import it outside of"
    with pytest.raises(ValueError, match=reason):
        resolve_tools([f"{tmp_path / 'late.py'}:shows"])


def half(time: float) -> str:
    """Halve a time.

    Args:
        time: seconds.
    """
    return f"{time / 2} s"


def test_tools_are_found_by_name_and_taken_from_scripts():
    found = resolve_tools(["look", half])
    assert list(found) == ["look", "half"] and found["look"].is_built_in and not found["half"].is_built_in
    assert found["half"](time=3.0) == "1.5 s"
    with pytest.raises(ValueError, match="two tools are named half"):
        resolve_tools([half, tool(half)])
    with pytest.raises(ValueError, match="got 7"):
        resolve_tools([7])


def test_tools_come_from_files_and_classes(tmp_path):
    (tmp_path / "mine.py").write_text(
        "def clock(time: float) -> str:\n"
        '    """Say a time.\n\n    Args:\n        time: seconds.\n    """\n'
        "    return str(time)\n\n"
        "class Station:\n"
        "    def reset(self, **row): ...\n"
        "    def light(self, on: bool) -> str:\n"
        '        """Switch the light.\n\n        Args:\n            on: whether it is on.\n        """\n'
        '        return "done"\n'
        "    @staticmethod\n"
        "    def helper(x): ...\n\n"
        "class Silent:\n"
        "    def reset(self, **row): ...\n"
    )
    own = resolve_tools([f"{tmp_path}/mine.py:clock", f"trl:{tmp_path}/mine.py:Station"])
    assert list(own) == ["clock", "light"] and own["light"].environment.__name__ == "Station"
    assert own["clock"].source.endswith("mine.py:clock")
    with pytest.raises(ValueError, match="has no missing"):
        resolve_tools([f"{tmp_path}/mine.py:missing"])
    with pytest.raises(ValueError, match="at least one other public method"):
        resolve_tools([f"trl:{tmp_path}/mine.py:Silent"])
