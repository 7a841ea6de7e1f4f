"""The page of labels in a real browser: the doubtful ones first, confirmed, corrected and saved as records."""

import json

import pytest
from PIL import Image

from qwenvl.data.dataset import load_dataset
from qwenvl.run_log.report.evaluation import write_labels
from qwenvl.run_log.report.pages import Strip
from qwenvl.run_log.report.write import write_pictures

ROWS = "[...document.querySelectorAll('#list li')].map(each => each.querySelector('.id').textContent)"
TITLE = "document.querySelector('#group article .title')?.firstChild.textContent"
COUNT = "document.querySelector('#save').textContent"


def label(name: str, answer: str | None, agreement: float | None = None, **more) -> dict:
    row = {
        "id": f"cam/{name}.mp4",
        "prompt": [{"role": "user", "text": "<video>\nWhich?"}],
        "error": None,
        "images": [],
    }
    turns = [{"from": "human", "value": "<video>\nWhich?"}]
    row["record"] = {"id": row["id"], "conversations": turns, "video": f"/there/cam/{name}.mp4"}
    if answer is None:
        return row | {"error": f"{row['id']}: not a video <b>at all</b>"} | more
    clip = {"path": f"/there/cam/{name}.mp4", "indices": (0, 4), "times": (0.0, 0.5), "segments": None}
    row |= {"answer": answer, "agreement": agreement, "logprob": -0.25, "text": f"<answer>{answer}</answer>"}
    votes = [[answer, 3], ["(9) other", 1]]
    return row | {"frames": 2, "clips": [clip], "texts": ["x"] * 4, "votes": votes, "finish_reason": "stop"} | more


@pytest.fixture
def opened(browser, tmp_path):
    """The page of five labels, at a window's width, without what an earlier visit has noted."""
    rows = [
        label("sure", "(1) lid", 1.0),
        label("bad", None),
        label("torn", "(2) <i>fan</i>", 0.5),
        label("unread", "", 0.0),
        label("torn2", "(3) screw", 0.5, logprob=-0.5),
    ]
    written = write_labels(tmp_path, "run", rows, "qwenvl train")
    (tmp_path / "pictures").mkdir()
    key = Strip("/there/cam/torn.mp4", (0, 4)).key
    Image.new("RGB", (640, 240), (90, 120, 60)).save(tmp_path / "pictures" / f"{key}.jpg")
    write_pictures(tmp_path, {key: {"columns": 2, "rows": 1, "ratio": 4 / 3}})
    browser.errors.clear()

    def at(width=1280, dark=False, hash=""):
        browser.show(width, dark=dark)
        browser.open(written.page.as_uri() + hash)
        browser.wait("document.querySelector('#group article') !== null")
        return browser

    at().run("localStorage.clear()")
    yield at
    assert browser.errors == []


def test_the_doubtful_ones_come_first(opened):
    page = opened()
    assert page.run(ROWS) == [f"{name}.mp4" for name in ("unread", "torn2", "torn", "sure", "bad")]
    assert page.run(TITLE) == "unread.mp4" and page.run(COUNT) == "save 0 records"
    assert page.run("document.querySelector('#save').disabled")
    page = opened(hash="#id=cam/bad.mp4")
    assert "not a video <b>at all</b>" in page.run("document.querySelector('#group .bad').textContent")
    page = opened(hash="#id=cam/torn.mp4")
    assert page.run("document.querySelector('#answer').value") == "(2) <i>fan</i>"
    assert page.run("document.querySelectorAll('#group .picture').length") == 2
    shown = page.run("document.querySelector('#group article').textContent")
    assert "50 % of 4 completions agree" in shown and "mean log-prob -0.25" in shown and "2 frames" in shown


def test_labels_are_confirmed_corrected_and_saved_as_records(opened, tmp_path):
    page = opened(hash="#id=cam/torn2.mp4")
    page.press("y")  # confirmed, and the next is shown
    page.wait(f"{TITLE} === 'torn.mp4' && {COUNT} === 'save 1 record'")
    page.run("(box => { box.value = ' (4) hinge '; })(document.querySelector('#answer'))")
    page.run("document.querySelector('#correct').click()")
    page.wait(f"{TITLE} === 'sure.mp4' && {COUNT} === 'save 2 records'")
    page = opened()  # they stay
    assert page.run(COUNT) == "save 2 records"
    assert page.run("document.querySelector('#done').textContent") == "2 of 4 done"  # the one with an error cannot be checked
    page.run("document.querySelector('[data-jump=corrected]').click()")
    page.wait(f"{ROWS}.join() === 'torn.mp4'")
    keep = "blob.text().then((text) => (window.saved = text))"
    page.run(f"(own => {{ URL.createObjectURL = blob => ({keep}, own(blob)); }})(URL.createObjectURL.bind(URL)), true")
    page.run("document.querySelector('#save').click()")
    (tmp_path / "labels.json").write_text(page.wait("window.saved"))
    records = load_dataset(tmp_path / "labels.json", on_bad_sample="skip", allow_outside_media=True).records
    solutions = ["<answer>(3) screw</answer>", "<answer>(4) hinge</answer>"]
    assert [record.solution for record in records] == solutions
    assert [record.videos for record in records] == [("/there/cam/torn2.mp4",), ("/there/cam/torn.mp4",)]
    page.run("delete window.saved, document.querySelector('#unchecked').click()")
    assert page.run(COUNT) == "save 3 records"  # with the answer that nobody has looked at
    page.run("document.querySelector('#save').click()")
    assert len(json.loads(page.wait("window.saved"))) == 3
    page.run("document.querySelector('#undo').click()")
    page.wait(f"{COUNT} === 'save 3 records' && {ROWS}.length === 1")


def test_nothing_is_wider_than_the_window(opened):
    for width, dark in ((1280, False), (390, False), (390, True)):
        page = opened(width, dark, "#id=cam/torn.mp4")
        page.run("document.querySelector('.title').textContent = 'long_name_of_a_clip'.repeat(9)")
        page.wait(f"document.documentElement.scrollWidth <= {width}")  # a new size of the window takes a moment
        assert page.run("document.querySelector('.title').scrollWidth") <= width
        answer = page.run("document.querySelector('#answer').getBoundingClientRect().toJSON()")
        assert answer["width"] > 250 and answer["right"] <= width
