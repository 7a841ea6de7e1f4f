import numpy as np
import pytest
from PIL import Image

from qwenvl.data.errors import BadMediaError
from qwenvl.data.media.images import load_image


def test_rgb_as_channels_first(tmp_path):
    picture = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
    Image.fromarray(picture).save(tmp_path / "a.png")
    assert np.array_equal(load_image(str(tmp_path / "a.png")).numpy(), picture.transpose(2, 0, 1))


def test_a_photo_is_turned_as_its_exif_says(tmp_path):
    picture = Image.new("RGB", (4, 2), "black")
    picture.putpixel((0, 0), (255, 255, 255))
    exif = Image.Exif()
    exif[0x0112] = 6  # "rotate 90 degrees clockwise to view": the top left corner becomes the top right one
    picture.save(tmp_path / "a.png", exif=exif)
    image = load_image(str(tmp_path / "a.png"))
    assert image.shape == (3, 4, 2)
    assert image[0].nonzero().tolist() == [[0, 1]]


def test_transparency_is_laid_on_white(tmp_path):
    Image.new("RGBA", (1, 1), (0, 100, 200, 51)).save(tmp_path / "a.png")  # 20 % opaque
    assert load_image(str(tmp_path / "a.png")).flatten().tolist() == [204, 224, 244]  # 0.8 * 255 + 0.2 * colour


def test_a_palette_with_a_transparent_colour(tmp_path):
    picture = Image.new("P", (1, 1), 0)
    picture.putpalette([10, 20, 30])
    picture.save(tmp_path / "a.gif", transparency=0)
    assert load_image(str(tmp_path / "a.gif")).flatten().tolist() == [255, 255, 255]


def test_sixteen_bits_are_scaled_and_not_clipped(tmp_path):
    Image.fromarray(np.array([[0, 0x8000, 0xFFFF]], np.uint16)).save(tmp_path / "a.png")
    assert load_image(str(tmp_path / "a.png"))[0].tolist() == [[0, 0x80, 0xFF]]


def test_cmyk(tmp_path):
    Image.new("CMYK", (8, 8), (0, 0, 0, 0)).save(tmp_path / "a.jpg")
    assert load_image(str(tmp_path / "a.jpg")).float().mean() > 250


def test_a_bomb_is_refused_before_it_unfolds(tmp_path):
    Image.new("1", (8000, 8000)).save(tmp_path / "a.png")
    with pytest.raises(BadMediaError, match="8000 x 8000 pixels; expected at most 50,000,000"):
        load_image(str(tmp_path / "a.png"))


def test_damaged_and_foreign_files(tmp_path):
    Image.effect_noise((64, 64), 80).save(tmp_path / "a.png")
    (tmp_path / "half.png").write_bytes((tmp_path / "a.png").read_bytes()[:2000])
    (tmp_path / "text.png").write_text("words")
    (tmp_path / "empty.png").write_bytes(b"")
    for name, reason in (("half", "damaged image"), ("text", "not an image"), ("empty", "empty"), ("none", "No such")):
        with pytest.raises(BadMediaError, match=reason):
            load_image(str(tmp_path / f"{name}.png"))
