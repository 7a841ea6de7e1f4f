"""The pictures of a report: the right frames in the right places, each made once, and a reason where there is none."""

import os

import numpy as np
import pytest
from PIL import Image

from qwenvl.commands.report import main
from qwenvl.data.media.open import open_clip
from qwenvl.inspection.pictures import COLUMNS, WIDTH, make_pictures
from qwenvl.inspection.run_report import add_pictures, make_report
from qwenvl.run_log.report.pages import Strip
from qwenvl.types import FrameInfo
from tests.run_log.runs import group


@pytest.fixture
def clip(make_clip):
    """A clip of 24 frames, twice as wide as high."""
    return str(make_clip("clip.mp4", 24, size=(320, 160)))


def test_frames_stand_row_by_row(clip, tmp_path):
    indices = (0, 3, 5, 8, 10, 12, 15, 17, 20, 23)
    strip = Strip(clip, indices)
    made = make_pictures([strip], tmp_path / "pictures", most=1)[strip.key]
    height = WIDTH // 2
    assert made == {"columns": COLUMNS, "rows": 2, "ratio": 2.0}
    with Image.open(tmp_path / "pictures" / f"{strip.key}.jpg") as sheet:
        pixels = np.asarray(sheet.convert("RGB")).astype(int)
    assert pixels.shape == (2 * height, COLUMNS * WIDTH, 3)
    with open_clip(clip) as opened:
        frames = opened.read(indices).permute(0, 2, 3, 1).numpy()
    for n, frame in enumerate(frames):
        row, column = divmod(n, COLUMNS)
        here = pixels[row * height : row * height + height, column * WIDTH : column * WIDTH + WIDTH]
        plain = np.asarray(Image.fromarray(frame).resize((WIDTH, height), Image.Resampling.BILINEAR)).astype(int)
        assert abs(here - plain).mean() < 6, f"frame {indices[n]}"


def test_each_picture_is_made_once_and_deleted_when_no_longer_shown(clip, tmp_path):
    strips = [Strip(clip, (n,)) for n in range(3)]
    folder = tmp_path / "pictures"
    assert list(make_pictures(strips, folder, most=1)) == [strips[0].key]
    first = folder / f"{strips[0].key}.jpg"
    written = first.stat().st_mtime_ns
    assert list(make_pictures(strips, folder, most=1)) == [strip.key for strip in strips[:2]]
    assert first.stat().st_mtime_ns == written
    assert list(make_pictures(strips[2:], folder, most=1)) == [strips[2].key] and not first.exists()


def test_a_picture_follows_a_clip_that_was_replaced_under_the_same_name(clip, make_clip, tmp_path):
    """A person who labels must not see the frames of the old clip."""
    strip = Strip(clip, (0, 5))
    folder = tmp_path / "pictures"
    make_pictures([strip], folder, most=1)
    first = (folder / f"{strip.key}.jpg").read_bytes()
    make_clip("clip.mp4", 24, size=(160, 320))
    assert make_pictures([strip], folder, most=0) == {}, "the old one is not shown in place of one that is not made"
    assert make_pictures([strip], folder, most=1)[strip.key]["ratio"] == 0.5
    second = (folder / f"{strip.key}.jpg").read_bytes()
    assert second != first
    os.unlink(clip)
    assert make_pictures([strip], folder, most=0)[strip.key]["ratio"] == 0.5, "kept where the clip is gone"


def test_a_missing_picture_says_why(clip, tmp_path):
    (tmp_path / "text.mp4").write_text("no clip")
    strips = [
        Strip(str(tmp_path / "gone.mp4"), (0,)),
        Strip(clip, (0, 24)),
        Strip("https://example.org/a.mp4", (0,)),
        Strip(str(tmp_path / "text.mp4"), (0,)),
    ]
    problems = [each["problem"] for each in make_pictures(strips, tmp_path / "pictures", most=9).values()]
    assert problems[0] == "the file is gone" and "has fewer frames" in problems[1] and "fetches nothing" in problems[2]
    assert problems[3] and str(tmp_path) not in problems[3]


def test_an_image_is_one_picture(tmp_path):
    Image.new("RGB", (40, 80), "red").save(tmp_path / "red.png")
    strip = Strip(str(tmp_path / "red.png"))
    made = make_pictures([strip], tmp_path / "pictures", most=1)[strip.key]
    assert made == {"columns": 1, "rows": 1, "ratio": 0.5}


def test_a_report_makes_pictures_and_a_later_report_keeps_them(clip, make_run, capsys):
    seen = [FrameInfo(path, (0, 5), (0.0, 0.2), None) for path in (clip, "/gone/17.mp4")]
    first, second = (group([0.0, 1.0], step=n + 1, clips=(each,)) for n, each in enumerate(seen))
    run = make_run(rollouts=first + second)
    assert main([str(run), "--pictures", "1"]) == 0
    told = capsys.readouterr().out.splitlines()[1]
    assert told == (
        "with pictures of 0 of 2 clips and images; 1 can't be shown, each with its reason on the page; "
        "another call makes more"
    ), "the newest first"
    assert main([str(run)]) == 0
    assert "with pictures of 1 of 2 clips and images; 1 can't be shown" in capsys.readouterr().out
    listed = run / "report" / "data" / "pictures.js"
    before = listed.read_text()
    assert '"columns":2,"rows":1,"ratio":2.0' in before and '"problem":"the file is gone"' in before
    assert main([str(run), "--pictures", "0"]) == 0
    assert listed.read_text() == before and len(list((run / "report" / "pictures").glob("*.jpg"))) == 1
    [made] = (run / "report" / "pictures").glob("*.jpg")
    whole = made.read_bytes()
    for cut in (b"", whole[:100]):  # a disk was full
        made.write_bytes(cut)
        assert main([str(run)]) == 0
        assert made.read_bytes() == whole and listed.read_text() == before


def test_a_run_without_media_has_no_line_about_pictures(make_run):
    run = make_run(rollouts=group([0.0, 1.0]))
    assert add_pictures(make_report([run], run / "report")) == ""


def test_the_page_shows_pictures_in_a_browser(browser, clip, make_run):
    frames = FrameInfo(clip, tuple(range(10)), tuple(n / 10 for n in range(10)), (0,) * 5 + (1,) * 5)
    gone = FrameInfo("/gone/17.mp4", (0,), (0.0,), None)
    run = make_run(rollouts=group([0.0, 1.0], clips=(frames, gone)))
    assert main([str(run)]) == 0
    browser.errors.clear()
    browser.show(1280)
    browser.open((run / "report" / "index.html").as_uri())
    browser.wait("document.querySelector('#group article') !== null")
    shown = "[...document.querySelectorAll('.picture')].map(each => each.style.backgroundPosition)"
    assert browser.run(shown)[7:9] == ["100% 0%", "0% 100%"]
    file = "document.querySelector('.picture').style.backgroundImage.slice(5, -2)"
    size = browser.run(f"(i => (i.src = {file}, i.decode().then(() => i.naturalWidth)))(new Image())")
    assert size == COLUMNS * WIDTH
    assert "17.mp4 1 frame: the file is gone" in browser.run("document.querySelector('#group').textContent")
    assert browser.run("document.querySelectorAll('.clip .legend .key').length") == 2
    browser.run("document.querySelector('.picture').click()")
    caption = "document.querySelector('dialog[open] p').textContent"
    assert browser.run(caption) == "0.00 s frame 0 (1 of 10)"
    browser.press("ArrowRight")
    browser.wait(f"{caption} === '0.10 s frame 1 (2 of 10)'")
    assert browser.run("document.querySelector('.large').style.backgroundPosition").startswith("14.28")
    browser.run("document.querySelector('dialog').close()")
    browser.wait("document.querySelector('dialog') === null")
    assert browser.errors == []
