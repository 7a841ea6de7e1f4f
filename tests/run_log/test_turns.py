"""A completion of several turns in a real browser: what it says, its looks on a time bar, and their frames."""

from dataclasses import replace

import pytest

from qwenvl.inspection.run_report import RewardsReading, add_pictures, make_report
from qwenvl.run_log.log import EvaluationLog
from qwenvl.run_log.report.evaluation import write_evaluation
from qwenvl.types import FrameInfo, Turn
from tests.run_log.runs import CALL, LOOK, LOOKED, REFUSED, group
from tests.run_log.test_evaluation import facts, samples, score

TURNS = "document.querySelector('[data-sample=\"0\"] .turns')"
STYLES = "[...document.querySelectorAll('{}')].map(each => [each.style.left, each.style.right])"
WHY = "no pictures were made of it (another call of the command makes more)"


@pytest.fixture
def opened(browser, make_run, make_clip, tmp_path):
    """``opened(pictures)``: the page of a group of three on a clip of 6 s: a look, no call, a call that was refused."""
    clip = str(make_clip("clip.mp4", 48, fps=8, size=(160, 90)))
    seen = FrameInfo(clip, (0, 16, 32, 47), (0.0, 2.0, 4.0, 5.875), None, 2.0, duration=6.0)
    shown = FrameInfo(clip, (8, 12, 20, 24), (1.0, 1.5, 2.5, 3.0), None, 0.5, duration=6.0)
    look = replace(LOOK, arguments={"start": 1.0, "end": 3.0}, clips=(shown,))
    third = (Turn("<tool_call>look at x</tool_call>", (REFUSED,)), Turn("<answer>(1)</answer> " + CALL))
    turns = [(replace(LOOKED[0], calls=(look,)), LOOKED[1]), (Turn("<answer>(1)</answer>"),), third]
    texts = ["".join(turn.text for turn in each) for each in turns]
    rows = group([1.0, 0.5, 0.0], texts, clips=(seen,), evidence=((2.0, 3.0),))
    rows = [replace(row, turns=each) for row, each in zip(rows, turns, strict=True)]
    browser.errors.clear()

    def at(pictures=9, dark=False, width=1280):
        written = make_report([make_run(rollouts=rows)], tmp_path / "report")
        add_pictures(written, pictures)
        browser.show(width, dark=dark)
        browser.open(written.page.as_uri())
        browser.wait("document.querySelector('#group .turns') !== null")
        return browser

    yield at
    assert browser.errors == []


def test_a_look_stands_on_a_time_bar_between_the_texts_of_its_turns(opened):
    page = opened()
    assert page.run(f"[...{TURNS}.children].map(each => each.className || each.textContent)") == [
        *("Let me see.", "call", "<answer>(2) insert the fan</answer>")
    ]
    [[left, right]] = page.run(STYLES.format(".times .span"))
    assert float(left[:-1]) == pytest.approx(100 / 6, abs=1e-3) and right == "50%"
    [[left, right]] = page.run(STYLES.format(".times .evidence"))
    assert float(left[:-1]) == pytest.approx(100 / 3, abs=1e-3) and right == "50%"
    ticks = [float(left[:-1]) * 6 / 100 for left, _ in page.run(STYLES.format(".times .frame"))]
    assert ticks == pytest.approx([1.0, 1.5, 2.5, 3.0], abs=1e-3)
    dots = [float(left[:-1]) * 6 / 100 for left, _ in page.run(STYLES.format(".times .seen"))]
    assert dots == pytest.approx([0.0, 2.0, 4.0, 5.875], abs=1e-3)
    label = page.run("document.querySelector('.times').getAttribute('aria-label')")
    assert label == "1 to 3 s of 6.0 s; evidence 2 to 3 s; dots are the frames of the prompt"
    assert page.run(f"{TURNS}.querySelector('.call p').textContent") == "look start 1, end 3 4 frames · 88 tokens"


def test_the_frames_of_a_look_have_pictures_and_can_be_enlarged(opened):
    page = opened()
    assert page.run(f"[...{TURNS}.querySelectorAll('figcaption')].map(each => each.textContent.trim())") == [
        *("1.00 s", "1.50 s", "2.50 s", "3.00 s")
    ]
    pictures = f"[...{TURNS}.querySelectorAll('.picture')]"
    assert page.run(f"new Set({pictures}.map(each => each.style.backgroundImage)).size") == 1
    load = "(src => { const i = new Image(); i.src = src; return i.decode().then(() => i.width) })"
    assert page.run(f"{load}({pictures}[0].style.backgroundImage.slice(5, -2))") == 4 * 320
    page.run(f"{pictures}[1].click()")
    assert page.run("document.querySelector('dialog p').textContent").startswith("1.50 s")


def test_a_refused_call_shows_the_reason_and_the_written_text(opened):
    page = opened()
    third = "document.querySelector('[data-sample=\"2\"] .turns')"
    assert page.run(f"{third}.querySelector('.call .bad').textContent") == "refused: look lacks end"
    assert page.run(f"{third}.querySelector('.call pre').textContent") == "<tool_call>look at x</tool_call>"
    assert page.run(f"{third}.querySelectorAll('.call').length") == 1, "a call of a turn that was cut stays text"
    assert page.run(f"{third}.lastElementChild.textContent") == CALL
    plain = "document.querySelector('[data-sample=\"1\"]')"
    assert page.run(f"{plain}.querySelector('.turns') === null && {plain}.lastElementChild.tagName") == "PRE"


def test_without_pictures_a_look_names_its_times(opened):
    page = opened(pictures=0)
    assert page.run(f"{TURNS}.querySelector('.call .fine').textContent") == "frames at 1.00, 1.50, 2.50, 3.00 s"
    assert page.run(f"{TURNS}.querySelector('.call .fine').title") == WHY


def test_turns_fit_a_phone(opened):
    page = opened(dark=True, width=390)
    page.wait("document.documentElement.scrollWidth === 390")
    widths = "[...document.querySelectorAll('.call figure')].map(each => each.getBoundingClientRect().width)"
    assert all(60 < width < 100 for width in page.run(widths)), "four in a row"


def test_the_page_of_an_evaluation_shows_looks(browser, tmp_path):
    log, found = EvaluationLog(tmp_path / "evaluation"), facts()
    looks = {"looked": score(0.5), "calls": 1.25, "with_look": score(0.75), "without_look": score(0.25)}
    looks |= {"evidence_iou": {"mean": None, "low": None}, "refused": {"mean": 0.1}}
    found["numbers"][0] |= {"looks": looks}
    log.begin(found)
    log.log(replace(each, turns=LOOKED, evidence=((12.0, 15.5),)) for each in samples())
    written = write_evaluation(log.folder, tmp_path / "out", RewardsReading())
    assert [len(strip.indices) for strip in written.strips].count(4) == 1, "the look's strip, once"
    browser.errors.clear()
    browser.show(1280)
    browser.open(written.page.as_uri())
    browser.wait("document.querySelector('#group .turns') !== null")
    cells = "[...document.querySelectorAll('#again tbody tr *')].map(each => each.textContent)"
    assert browser.run(cells)[:5] == ["base", "as it is", "50.0 %", "1.25", "0.750 [0.650, 0.850]"]
    assert browser.run("document.querySelectorAll('.call .times .evidence').length") == 2  # of two models
    browser.press("c")
    browser.wait("document.querySelector('.warning').textContent === 'Every frame and image was grey.'")
    assert browser.run("document.querySelectorAll('.call').length") == 2
    assert browser.run("document.querySelectorAll('.call .fine').length") == 0, "frames that were not shown"
    assert browser.errors == []
