import base64
import html
import io
import re

import numpy as np
import pytest
from PIL import Image

from qwenvl.commands.preview import main as main


def page_of(tmp_path, *argv):
    assert main([*map(str, argv), "--out", str(tmp_path / "page.html")]) == 0
    return (tmp_path / "page.html").read_text()


def pictures(page):
    return [np.array(Image.open(io.BytesIO(base64.b64decode(data)))) for data in re.findall(r"base64,([^\"]+)", page)]


def test_the_page_shows_the_frames_that_the_model_sees(
    tmp_path, make_clip, write_rows, make_row, number_of, never_at_full_size
):
    make_clip("a.mp4", 25, size=(112, 112))
    meta = {"frame_cnts": [10, 15], "min_frames": 2, "max_frames": 2, "dynamic_sample": True}
    path = write_rows([make_row(id="x<y", prompt="<video>\nWhich & why?", video="a.mp4", meta=meta)])
    page = page_of(tmp_path, path, "--seed", 7)
    labels = re.findall(r"<b>([\d.]+) s</b><br>frame (\d+), segment (\d)<", page)
    assert [int(number) for _, number, _ in labels] == [number_of(picture) for picture in pictures(page)]
    assert [float(time) for time, _, _ in labels] == [int(number) / 10 for _, number, _ in labels]
    assert [segment for _, _, segment in labels] == ["0", "0", "1", "1"]
    assert "x&lt;y" in page
    assert "Which &amp; why?" in page
    assert not re.search(r"<script|<link(?! rel=\"icon\" href=\"data:,\")|@import|url\(|https?:", page)
    assert all(source.startswith("data:image/jpeg") for source in re.findall(r'src="([^"]*)', page))
    assert "read as actions [1]; as an answer it would score accuracy 1.0" in page


def test_the_page_names_the_frame_settings_of_a_row(tmp_path, make_clip, write_rows, make_row):
    make_clip("a.mp4", 60, size=(112, 112))
    Image.new("RGB", (112, 140)).save(tmp_path / "b.png")
    clip = {"video": "a.mp4", "fps": 2, "video_start": 1.0}
    image = {"image": "b.png", "resized_height": 56, "resized_width": 84}
    page = page_of(tmp_path, write_rows([make_row(prompt="<video><image>?", video=clip, image=image)]))
    assert "<b>a.mp4</b>: 10 frames" in page and "by video_start 1, fps 2" in page
    assert "112 x 140 pixels, the model sees 84 x 56, by resized_height 56, resized_width 84" in page


def test_prompts_have_their_vision_tokens_folded(
    tmp_path, make_clip, write_rows, make_row, tiny_checkpoint, never_at_full_size
):
    make_clip("a.mp4", 25, size=(120, 90))
    Image.new("RGB", (112, 140)).save(tmp_path / "b.png")
    row = make_row(prompt="<video> and <image>?", video="a.mp4", image="b.png", meta={"min_frames": 6, "max_frames": 6})
    path = write_rows([row])
    # frames of 112 x 84 pixels in patches of 14; the image in 10 x 8; each 2 x 2 of them are one token
    page = html.unescape(page_of(tmp_path, path, "--model", tiny_checkpoint("qwen2_5_vl"), "--max_prompt_length", 999))
    assert "<video: 36 tokens><|vision_end|> and <|vision_start|><image: 20 tokens><|vision_end|>?<|im_end|>" in page
    tokens = int(re.search(r"(\d+) tokens: 56 vision", page)[1])
    assert f"{999 - tokens} below --max_prompt_length" in page
    assert f"frames of a clip: min 6, median 6, max 6; tokens of a prompt: min {tokens}, median {tokens}, max" in page
    assert "120 x 90 pixels, the model sees 112 x 84" in page
    assert [picture.shape for picture in pictures(page)] == [(84, 112, 3)] * 6 + [(140, 112, 3)]
    # Qwen3-VL has patches of 16 and a time for every pair of frames: 0, 5, 10 | 14, 19, 24 tenths of a second
    page = html.unescape(page_of(tmp_path, path, "--model", tiny_checkpoint("qwen3_vl")))
    assert page.count("<video: 12 tokens>") == 3
    assert "<0.2 seconds><|vision_start|><video" in page


def test_tools_are_in_the_prompt_and_a_look_is_shown(
    tmp_path, make_clip, write_rows, make_row, tiny_checkpoint, number_of, never_at_full_size
):
    make_clip("a.mp4", 40, size=(112, 112))  # 4 s
    row = {"prompt": "<video>\nWhich?", "video": "a.mp4", "meta": {"min_frames": 2, "max_frames": 2}}
    rows = [make_row(**row, evidence=[[1.0, 2.0]]), make_row(**row), make_row(**row, evidence=[[7, 8]])]
    flags = ("--model", tiny_checkpoint("qwen2_5_vl"), "--tools", "look", "--look_frames", 4)
    page = html.unescape(page_of(tmp_path, write_rows(rows), *flags))
    assert page.count("look(start, end)") == 3  # in each prompt, as the template of tiny models names tools
    assert "<b>look at 1 to 2 s, the evidence of the record</b>: 4 frames" in page
    assert [number_of(picture) for picture in pictures(page)][2:6] == [10, 13, 17, 20]
    assert "<b>look at 1.755 to 2.145 s, as an example</b>" in page  # a tenth of 0 to 3.9 s
    assert "refused: 7 to 8 is not in the video, which goes from 0 to 4" in page
    answers = re.findall(r"as the model reads it: (\d+) tokens</summary>\n<pre>(.*?)</pre>", page, re.S)
    looked = [text for _, text in answers if "1.0 to 2.0 seconds:<|vision_start|><video: 32 tokens>" in text]
    assert len(looked) == 1 and looked[0].startswith("<|im_start|>user\n<tool_response>")


def test_bad_records_are_shown_as_such(tmp_path, write_rows, make_row):
    path = write_rows([make_row(prompt="<video>", video="none.mp4"), make_row(solution=","), [1, 2], make_row(id="d")])
    page = html.unescape(page_of(tmp_path, path))
    assert "No such file" in page
    assert "can't be scored" in page
    assert "data.json[2]: expected an object with `conversations`, `messages` or `prompt`, got list [1, 2]" in page
    assert "4 records, 2 of them bad" in page
    assert re.findall(r'<a href="#r(\d)" class="bad">(.*?)</a>', page) == [("1", "data-0"), ("3", "bad row")]
    assert page.count('<section id="r') == 4
    assert "src=" not in page


def test_help_is_short_and_names_where_more_is(capsys):
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert len(shown.splitlines()) <= 30 and "--n " in shown and "--video_max_frames " in shown
    assert "--max_steps" not in shown and "A YAML" not in shown
    assert main(["--help", "all"]) == 0
    every = capsys.readouterr().out
    assert "--chat_template_kwargs" in every and "--epoch" in every
    assert not any(f"--{name} " in every for name in ("on_bad_sample", "max_turns", "learning_rate"))


def test_wrong_arguments_of_preview_are_refused(capsys):
    for argv, message in (
        (["no_such_set"], "no data set"),
        (["example", "--n", "0"], "--n must be at least 1, got 0"),
        (["example", "--epoch", "-1"], "--epoch must be at least 0, got -1"),
        (["example", "--tools", "look"], "--tools: give --model, whose chat template writes them into the prompt"),
        (["example", "--look_frames", "4"], "--look_frames has no effect without --tools"),
    ):
        with pytest.raises(SystemExit, match="2"):
            main(argv)
        assert message in capsys.readouterr().err


def test_a_prompt_that_records_share_is_shown_once(tmp_path, write_rows, make_row, tiny_checkpoint):
    rows = [make_row(id="a", prompt="Which steps?"), make_row(id="b", prompt="Which steps?")]
    path = write_rows([*rows, make_row(id="c", prompt="And here?")])
    page = page_of(tmp_path, path)
    assert "the prompt of 2 of these records" in page and page.count("Which steps?") == 1
    with_model = page_of(tmp_path, path, "--model", tiny_checkpoint("qwen2_5_vl"))
    # each record has the prompt as the model reads it besides: folded where the page has shown it, open where not
    assert with_model.count("Which steps?") == 3
    assert with_model.count("<details>") == 2 and with_model.count("<details open>") == 1


def test_the_page_fits_a_phone_and_enlarges_a_frame_in_place(tmp_path, make_clip, write_rows, make_row, browser):
    make_clip("a.mp4", 25, size=(160, 90))
    meta = {"frame_cnts": [10, 15], "min_frames": 2, "max_frames": 2}
    page_of(tmp_path, write_rows([make_row(id="x" * 99, prompt="<video>" + "y" * 300, video="a.mp4", meta=meta)]))
    overflow = "document.documentElement.scrollWidth - innerWidth"
    for dark in (False, True):
        for width in (1280, 390):
            browser.show(width, dark=dark)
            browser.open((tmp_path / "page.html").as_uri())
            browser.wait(f"{overflow} <= 0")  # a new size of the window takes a moment
            # Its own pixels where there is room for them, else half of the width.
            least, most = (168, 168) if width > 390 else (168, 194)
            shown = "document.querySelector('.frames img').width"
            browser.wait(f"{least} <= {shown} && {shown} <= {most}")
            browser.run("document.querySelector('.frames input').click()")
            browser.wait("document.querySelector('.frames img').width > 300")
            browser.wait(f"{overflow} <= 0")
    assert browser.errors == []


def test_a_page_replaces_a_page_and_no_other_file(tmp_path, write_rows, make_row, capsys):
    path = write_rows([make_row(prompt="Which?")])
    page_of(tmp_path, path)
    page_of(tmp_path, path)
    before = path.read_bytes()
    with pytest.raises(SystemExit):
        main([str(path), "--out", str(path)])
    assert f"--out {path}: exists already" in capsys.readouterr().err
    assert path.read_bytes() == before
