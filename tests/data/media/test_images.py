"""Still images, and clips that are stored as such."""

import os
import struct
from functools import partial

import numpy as np
import pytest
from PIL import Image

from qwenvl.data.dataset import load_dataset
from qwenvl.data.errors import BadMediaError
from qwenvl.data.media.images import FORMATS, FrameFolder, image_size, load_image
from qwenvl.data.media.open import read_image
from qwenvl.data.media.source import frame_files


def test_a_photo_is_turned_as_its_exif_says(tmp_path):
    picture = Image.new("RGB", (4, 2), "black")
    picture.putpixel((0, 0), (255, 255, 255))
    exif = Image.Exif()
    exif[0x0112] = 6  # "rotate 90 degrees clockwise to view": the top left corner becomes the top right one
    picture.save(tmp_path / "a.png", exif=exif)
    image = load_image(str(tmp_path / "a.png"))
    assert image.shape == (3, 4, 2)
    assert image[0].nonzero().tolist() == [[0, 1]]


def test_a_photo_that_a_script_has_opened_is_turned_too(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    for name, mode in (("a.jpg", "RGB"), ("b.png", "P")):
        Image.new(mode, (64, 40)).save(tmp_path / name, exif=exif)
        with Image.open(tmp_path / name) as picture:
            sample = load_dataset([{"prompt": "<image>Which?", "images": [picture]}])[0]
        assert sample.images[0].shape == (3, 64, 40), name


def test_a_photo_is_turned_whatever_types_its_other_tags_have(tmp_path):
    """As some phones and editors write them: the unit of the resolution as a text."""
    orientation = struct.pack("<HHII", 0x112, 3, 1, 6)
    unit = struct.pack("<HHI4s", 0x128, 2, 2, b"2\0\0\0")
    data = b"Exif\0\0II*\0" + struct.pack("<IH", 8, 2) + orientation + unit + struct.pack("<I", 0)
    Image.new("RGB", (8, 16)).save(tmp_path / "a.jpg", exif=data)
    for kind in ("jpg", "png"):
        Image.open(tmp_path / "a.jpg").save(tmp_path / f"b.{kind}", exif=data)
        assert load_image(str(tmp_path / f"b.{kind}")).shape == (3, 8, 16)


def test_transparency_is_laid_on_white(tmp_path):
    Image.new("RGBA", (1, 1), (0, 100, 200, 51)).save(tmp_path / "a.png")  # 20 % opaque
    assert load_image(str(tmp_path / "a.png")).flatten().tolist() == [204, 224, 244]  # 0.8 * 255 + 0.2 * colour


def test_sixteen_bits_are_scaled_and_not_clipped(tmp_path):
    Image.fromarray(np.array([[0, 0x8000, 0xFFFF]], np.uint16)).save(tmp_path / "a.png")
    assert load_image(str(tmp_path / "a.png"))[0].tolist() == [[0, 0x80, 0xFF]]


@pytest.mark.skipif("AVIF" not in FORMATS, reason="Pillow reads AVIF here")
def test_a_damaged_avif_is_a_damaged_image(tmp_path):
    Image.effect_noise((64, 64), 50).convert("RGB").save(tmp_path / "a.avif")
    whole = (tmp_path / "a.avif").read_bytes()
    start = whole.index(b"mdat") + 4
    (tmp_path / "a.avif").write_bytes(whole[:start] + bytes(255 - byte for byte in whole[start:]))
    for read in (load_image, partial(read_image, timeout=60)):
        with pytest.raises(BadMediaError, match="damaged image"):
            read(str(tmp_path / "a.avif"))


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_numbers_without_a_black_and_a_white_are_refused(tmp_path, dtype):
    Image.fromarray(np.array([[0, 1, 30000]], dtype)).save(tmp_path / "a.tiff")
    with pytest.raises(BadMediaError, match=r"a\.tiff.*what is black.* 8 or 16 bits"):
        load_image(str(tmp_path / "a.tiff"))


@pytest.fixture
def folder(tmp_path):
    """A folder of twelve frames, whose red channel is their number, beside a file that is no image and a hidden one."""
    path = tmp_path / "clip"
    path.mkdir()
    for number in range(12):
        Image.new("RGB", (6, 4), (number, 0, 0)).save(path / f"frame_{number}.png")
    (path / "Thumbs.db").write_bytes(b"x")
    (path / "._frame_0.png").write_bytes(b"x")
    return path


def test_frames_are_ordered_by_number_and_not_by_letter(folder):
    clip = FrameFolder(str(folder), fps=4.0)
    assert (clip.frame_count, clip.duration, clip.frame_times[3]) == (12, 3.0, 0.75)
    frames = clip.read([2, 10, 11])
    assert frames.shape == (3, 3, 4, 6)
    assert frames[:, 0, 0, 0].tolist() == [2, 10, 11]


@pytest.mark.parametrize(
    "names",
    [
        ["0.0", "0.25", "0.5", "0.75", "1.0", "9.5", "10.0"],  # seconds, as Python writes them
        ["0", "0.5", "1", "1.25", "2"],  # and as %g does
        ["cam2_0.25s", "cam2_0.5s"],
        ["0.25", "0.50", "1.00"],
        ["1.8", "1.9", "1.10", "1.11", "2.1"],  # counted on behind the point
        ["shot1.9_frame2", "shot1.10_frame1"],
        ["frame1", "Frame2", "frame_3"],  # capitals and separators do not matter
        ["0,25", "0,5", "1,0"],
        ["1.2.1", "1.2.9", "1.10.0", "1.10.10"],  # three numbers
        ["1²3", "①001", "１", "２", "１０"],
        ["01", "1"],
    ],
)
def test_points_in_names_are_read_as_the_whole_folder_uses_them(tmp_path, names):
    for name in sorted(names, reverse=True):
        (tmp_path / f"{name}.png").touch()
    files = FrameFolder(str(tmp_path)).files
    found = [os.path.basename(file).removesuffix(".png") for file in files]
    if "1²3" in names:  # signs that are digits and no numbers
        assert [name for name in found if name not in ("1²3", "①001")] == names[2:]
    else:
        assert found == names


def test_names_with_two_orders_are_refused(tmp_path):
    for name in ("a0.5.png", "a0.25.png", "b1.png"):
        (tmp_path / name).touch()
    with pytest.raises(BadMediaError, match=r"order of a0\.5\.png and a0\.25\.png is not clear"):
        FrameFolder(str(tmp_path))


def test_hidden_files_of_a_folder_are_no_frames(folder):
    (folder / "._frame_0.png").write_bytes(b"resources")
    assert FrameFolder(str(folder)).frame_count == 12
    assert len(frame_files(str(folder))) == 12


def test_a_record_may_name_a_folder_or_a_list_of_frames_as_its_clip(
    folder, write_rows, make_row, monkeypatch, tmp_path
):
    monkeypatch.setenv("QWENVL_CACHE", str(tmp_path / "cache"))
    names = [f"clip/frame_{i}.png" for i in (5, 3, 1, 7)]
    rows = [
        make_row(prompt="<video>", video="clip", meta={"frames_fps": 2, "video_fps": 1}),
        make_row(prompt="<video>", video=[names]),
    ]
    dataset = load_dataset(str(write_rows(rows)))
    (clip,) = dataset[0].videos  # 6 s at one frame a second
    assert clip.info.indices == (0, 2, 4, 7, 9, 11)
    assert clip.info.times == (0.0, 1.0, 2.0, 3.5, 4.5, 5.5)
    (clip,) = dataset[1].videos
    assert clip.frames[:, 0, 0, 0].tolist() == [5, 3, 1, 7]
    assert clip.info.times == (0.0, 0.5, 1.0, 1.5)


def test_a_folder_without_images_or_with_frames_of_two_sizes_is_refused(folder, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadMediaError, match="a folder without images"):
        FrameFolder(str(tmp_path / "empty"))
    Image.new("RGB", (8, 4)).save(folder / "frame_3.png")
    with pytest.raises(BadMediaError, match=r"frame_3.png: 8 x 4 pixels in a clip whose first frame has 6 x 4"):
        FrameFolder(str(folder)).read([0, 3])


@pytest.mark.parametrize("suffix", ["gif", "webp", "png"])
def test_an_animation_is_no_picture(suffix, tmp_path):
    advice = "under `video`" if suffix == "gif" else "make a clip"
    frames = [Image.new("RGB", (8, 6), (40 * k, 0, 0)) for k in range(4)]
    path = tmp_path / f"moves.{suffix}"
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=100)
    with pytest.raises(BadMediaError, match=rf"moves.{suffix}: an animation of 4 frames .* {advice}"):
        load_image(str(path))
    frames[0].save(path)
    assert load_image(str(path)).shape == (3, 6, 8), "one that does not move is a picture"


def test_further_pages_are_no_animation(tmp_path):
    pages = [Image.new("RGB", (8, 6), (40 * k, 0, 0)) for k in range(2)]
    pages[0].save(tmp_path / "scan.tiff", save_all=True, append_images=pages[1:])
    assert load_image(str(tmp_path / "scan.tiff")).shape == (3, 6, 8)


@pytest.mark.parametrize("name", ["EPS", "PPM", "PCX", "ICO", "PDF"])
def test_formats_that_other_programs_or_rare_decoders_read_are_no_images(tmp_path, monkeypatch, name):
    path = tmp_path / "picture.png"
    Image.new("RGB", (20, 20), "red").save(path, name)
    started = lambda *words, **_: pytest.fail(f"a program was started: {words}")
    monkeypatch.setattr("subprocess.Popen", started)
    monkeypatch.setattr("PIL.EpsImagePlugin.has_ghostscript", lambda: True)
    for read in (load_image, image_size):
        with pytest.raises(BadMediaError, match="PNG, JPEG, WEBP, GIF, BMP, TIFF"):
            read(str(path))


@pytest.mark.parametrize("name", FORMATS)
def test_pictures_of_every_supported_format_are_read(tmp_path, name):
    path = tmp_path / "picture"
    Image.new("RGB", (40, 20), "red").save(path, name)
    assert load_image(str(path)).shape == (3, 20, 40)
    assert image_size(str(path)) == (20, 40)


def test_an_eps_in_a_record_starts_no_program(tmp_path, make_row, write_rows, monkeypatch):
    Image.new("RGB", (20, 20), "red").save(tmp_path / "a.png")
    # The decoder's own process may run already: it starts with the first picture that is read.
    load_dataset(str(write_rows([make_row(prompt="<image>", image="a.png")])), video_backend="pyav")[0]
    monkeypatch.setattr("PIL.EpsImagePlugin.has_ghostscript", lambda: True)
    monkeypatch.setattr("subprocess.Popen", lambda *words, **_: pytest.fail(f"a program was started: {words}"))
    Image.new("RGB", (20, 20), "red").save(tmp_path / "a.eps", "EPS")
    dataset = load_dataset(str(write_rows([make_row(prompt="<image>", image="a.eps")])), video_backend="pyav")
    with pytest.raises(BadMediaError, match=r"a\.eps"):
        dataset[0]


def test_a_row_of_pixels_is_refused_before_it_is_decoded(tmp_path):
    Image.new("1", (40_000_000, 1)).save(tmp_path / "row.png")
    whole = (tmp_path / "row.png").read_bytes()
    (tmp_path / "row.png").write_bytes(whole[: len(whole) // 2])  # decoding would say that it is cut short
    with pytest.raises(BadMediaError, match="40000000 x 1 pixels; Qwen-VL takes sides of at most 200 : 1"):
        load_image(str(tmp_path / "row.png"))
