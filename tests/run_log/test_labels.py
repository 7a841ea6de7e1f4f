"""The page of labels in a real browser: the doubtful ones first, confirmed, corrected and saved as records."""

import json

import pytest
from PIL import Image

from qwenvl.data.dataset import load_dataset
from qwenvl.run_log.report.evaluation import write_labels
from qwenvl.run_log.report.pages import Strip
from qwenvl.run_log.report.write import write_pictures
from tests.made_clips import write_clip

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
    row["record"] = {"id": row["id"], "conversations": turns, "video": f"/there/cam/{name}.mp4", "frame": 2**60 + 1}
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


def test_doubtful_labels_come_first(opened):
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
    # The one with an error cannot be checked.
    assert page.run("document.querySelector('#done').textContent") == "2 of 4 done"
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
    # An integer that JavaScript has no number for.
    assert [record.fields["frame"] for record in records] == [2**60 + 1] * 2
    page.run("delete window.saved, document.querySelector('#unchecked').click()")
    assert page.run(COUNT) == "save 3 records"  # with the answer that nobody has looked at
    page.run("document.querySelector('#save').click()")
    assert len(json.loads(page.wait("window.saved"))) == 3
    page.run("document.querySelector('#undo').click()")
    page.wait(f"{COUNT} === 'save 3 records' && {ROWS}.length === 1")


def test_the_keys_of_spans_are_named_where_there_are_spans(opened, timelines):
    keys = "[...document.querySelectorAll('.keys kbd')].map(each => each.textContent).join(' ')"
    assert opened().run(keys) == "j k y e p /"
    assert timelines("one").run(keys) == "j k y e p n [ ] /"


def test_an_edited_answer_stays_until_it_is_saved(opened):
    done = "document.querySelector('#done').textContent"
    edit = "(box => {{ box.value = {!r}; box.dispatchEvent(new Event('input')); }})(document.querySelector('#answer'))"
    page = opened(hash="#id=cam/torn2.mp4")
    page.run(edit.format("(4) hinge"))
    assert page.run(done) == "0 of 4 done, 1 edited and not saved as a correction"
    page = opened(hash="#id=cam/torn2.mp4")  # the page is left, and opened once more
    assert page.run("document.querySelector('#answer').value") == "(4) hinge"
    page.run(edit.format("(3) screw"))  # as it was
    assert page.run(done) == "0 of 4 done"
    page.run(edit.format("(4) hinge"))
    page.run("document.querySelector('#correct').focus()")
    page.press("Enter")
    page.wait(f"{TITLE} === 'torn.mp4' && {done} === '1 of 4 done'")
    assert page.run("document.activeElement.id") == "group"


def test_the_key_of_a_right_answer_keeps_what_is_shown(opened):
    """``y`` keeps an edited or corrected answer: the model's own one would take its place."""
    kept = "report.list.done(1)?.answer + ' ' + report.list.done(1)?.state"
    words = "document.querySelector('#confirm').textContent"
    edit = "(box => {{ box.value = {!r}; box.dispatchEvent(new Event('input')); }})(document.querySelector('#answer'))"
    page = opened(hash="#id=cam/torn2.mp4")
    assert page.run(words) == "right"
    page.run(edit.format(" "))
    assert page.run("document.querySelector('#confirm').disabled")
    page.run(edit.format("(4) hinge"))
    assert page.run(words) == "right, as edited"
    page.press("y")
    page.wait(f"{kept} === '(4) hinge corrected'")
    page = opened(hash="#id=cam/torn2.mp4")
    assert page.run(words) == "right, as corrected"
    page.press("y")
    page.wait(f"{TITLE} === 'torn.mp4'")
    assert page.run(kept) == "(4) hinge corrected"
    page = opened(hash="#id=cam/torn2.mp4")
    page.run(edit.format("(3) screw"))  # the model's answer again
    assert page.run(words) == "right"
    page.press("y")
    page.wait(f"{kept} === '(3) screw confirmed'")


def test_labels_of_another_tab_are_kept_and_shown(opened):
    """Another tab notes something after this one was opened."""
    done = "document.querySelector('#done').textContent"
    page = opened(hash="#id=cam/torn2.mp4")
    page.run("document.querySelector('#confirm').click()")
    page.wait(f"{done} === '1 of 4 done'")
    # A tab gets this event of what the others store.
    page.run(
        "(() => { const name = Object.keys(localStorage).find((each) => !each.endsWith('drafts'));"
        "const noted = { [report.list.index.keys[0]]: { answer: '(5) box', state: 'corrected' } };"
        "localStorage.setItem(name, JSON.stringify({ ...JSON.parse(localStorage.getItem(name)), ...noted }));"
        "dispatchEvent(new StorageEvent('storage', { key: name })); })()"
    )
    page.wait(f"{done} === '2 of 4 done'")
    assert page.run("document.querySelector('#list [data-label=\"0\"] .signs').textContent").endswith("corrected")
    page = opened(hash="#id=cam/torn.mp4")
    page.run("document.querySelector('#confirm').click()")
    page.wait(f"{done} === '3 of 4 done'")


# ---- a browser that keeps nothing more

DONE = "document.querySelector('#done').textContent"
WARNING = "document.querySelector('#unkept').textContent"
STAYS = "document.querySelector('#stays').checkVisibility()"
ASKS = "!dispatchEvent(new Event('beforeunload', {cancelable: true}))"
CHECK = "report.list.check({n}, {{answer: {answer!r}}})"
OTHER = "qwenvl labels /other/index.html"
FILL = f"""(() => {{
    localStorage.setItem('{OTHER}', JSON.stringify(Object.fromEntries([['a', 'x'.repeat(9000)], ['b', 'y']])));
    localStorage.setItem('{OTHER} drafts', JSON.stringify({{c: 'z'}}));
    for (let size = 2 ** 20; size >= 1; size = Math.floor(size / 2)) {{
        try {{ for (let n = 0; ; n += 1) localStorage.setItem(`fill ${{size}} ${{n}}`, 'x'.repeat(size)); }} catch {{ }}
    }}
}})()"""


def test_a_full_storage_is_said_and_the_page_is_not_left_before_the_file_is_saved(opened):
    page = opened()
    assert page.run(WARNING) == "" and page.run(STAYS) and not page.run(ASKS)
    assert page.run("document.querySelector('#unkept').getAttribute('role')") == "alert"
    page.run(CHECK.format(n=1, answer="(3) screw"))
    assert page.run(DONE) == "1 of 4 done" and not page.run(ASKS)
    page.run(FILL)
    page.run(CHECK.format(n=2, answer="(4) hinge, " + "long " * 50))
    assert page.run(DONE) == "2 of 4 done, 1 neither kept nor saved" and page.run(ASKS)
    said = page.run(WARNING)
    assert "its storage is full" in said and "as a file now" in said and not page.run(STAYS)
    # It is seen wherever the reader is on the page.
    box = page.run("document.querySelector('#unkept').getBoundingClientRect().toJSON()")
    assert box["top"] >= 0 and box["bottom"] <= page.run("innerHeight")
    page.run("document.querySelector('#save-now').click()")
    page.wait(f"{DONE} === '2 of 4 done'")
    assert not page.run(ASKS) and "before you leave" in page.run(WARNING)
    page.run("report.list.draft(0, '(5) box, ' + 'long '.repeat(50), '')")
    assert page.run(DONE).endswith("1 neither kept nor saved") and "corrections first" in page.run(WARNING)
    page.run("report.list.draft(0, '', '')")
    assert not page.run(ASKS)


def test_a_storage_gets_room_where_the_reader_forgets_another_page(opened):
    page = opened()
    page.run(FILL)
    for n, answer in ((1, "(3) screw, " + "long " * 50), (2, "(4) hinge")):
        page.run(CHECK.format(n=n, answer=answer))
    assert page.run(DONE) == "2 of 4 done, 2 neither kept nor saved"
    others = "document.querySelector('#others')"
    assert "/other/index.html: 3 answers, 0.00" in page.run(f"{others}.textContent")
    page.run("window.confirm = (asked) => { window.asked = asked; return false; }, true")
    page.run(f"{others}.querySelector('button').click()")
    assert page.run("asked").startswith("Forget the 3 answers") and page.run(f"localStorage.getItem('{OTHER}')")
    page.run("window.confirm = () => true, true")
    page.run(f"{others}.querySelector('button').click()")
    assert page.run(f"localStorage.getItem('{OTHER}') ?? localStorage.getItem('{OTHER} drafts')") is None
    assert page.run(DONE) == "2 of 4 done" and page.run(WARNING) == "" and page.run(STAYS) and not page.run(ASKS)
    assert opened().run(DONE) == "2 of 4 done"  # both are kept


def test_what_other_tabs_store_or_remove_takes_no_answer_of_this_one(opened):
    page = opened()
    page.run(CHECK.format(n=1, answer="(3) screw"))
    page.run(FILL)
    page.run(CHECK.format(n=2, answer="(4) hinge, " + "long " * 50))
    store = "Object.keys(localStorage).find((each) => each.endsWith('labels/index.html'))"
    tell = f"dispatchEvent(new StorageEvent('storage', {{key: {store}}}))"
    page.run(tell)  # another tab has noted something
    assert page.run(DONE) == "2 of 4 done, 1 neither kept nor saved"
    page.run("(() => { localStorage.clear(); dispatchEvent(new StorageEvent('storage', {key: null})); })()")
    assert page.run(DONE) == "2 of 4 done" and page.run(WARNING) == ""
    assert opened().run(DONE) == "2 of 4 done"


def test_a_browser_that_keeps_nothing_is_named_at_once(opened):
    page = opened()
    refuse = "get: () => { throw new DOMException('no storage here', 'SecurityError'); }"
    script = f"Object.defineProperty(window, 'localStorage', {{{refuse}}})"
    added = page.send("Page.addScriptToEvaluateOnNewDocument", source=script)
    page = opened(hash="#id=cam/torn2.mp4")
    page.send("Page.removeScriptToEvaluateOnNewDocument", **added)
    assert "no storage here" in page.run(WARNING) and not page.run(STAYS) and not page.run(ASKS)
    page.run("document.querySelector('#confirm').click()")
    page.wait(f"{DONE} === '1 of 4 done, 1 neither kept nor saved'")
    assert page.run(ASKS)
    page.run("document.querySelector('#save').click()")
    page.wait(f"{DONE} === '1 of 4 done'")
    assert not page.run(ASKS)


def test_a_key_that_is_held_decides_once(opened):
    page = opened(hash="#id=cam/torn2.mp4")
    page.press("y", repeats=15)
    page.wait(f"{TITLE} === 'torn.mp4'")
    assert page.run(DONE) == "1 of 4 done"
    page.press("k", repeats=5)  # keys that move repeat
    page.wait(f"{TITLE} === 'unread.mp4'")
    count = "window.files = (window.files ?? 0) + 1"
    page.run(f"(own => {{ URL.createObjectURL = blob => ({count}, own(blob)); }})(URL.createObjectURL.bind(URL)), true")
    page.run("document.querySelector('#save').focus()")
    page.press("Enter", repeats=5)
    page.wait("document.querySelector('#saved').textContent !== ''")
    assert page.run("window.files") == 1


def test_labels_of_other_clips_outlive_a_page_without_them(browser, tmp_path):
    """The same folder of labels gets a page for one clip, for another one, and for both."""
    done = "document.querySelector('#done').textContent"
    for clips, expected in ((["one"], "1 of 1"), (["two"], "1 of 1"), (["one", "two"], "2 of 2")):
        written = write_labels(tmp_path, "run", [label(name, "(1) lid", 1.0) for name in clips], "qwenvl train")
        browser.open(written.page.as_uri())
        browser.wait("document.querySelector('#group article') !== null")
        if len(clips) == 1:
            browser.run("document.querySelector('#confirm').click()")
        browser.wait(f"{done} === '{expected} done'")
    browser.run("localStorage.clear()")


def test_a_page_whose_files_were_written_again_saves_nothing(browser, tmp_path, monkeypatch):
    """The same command with a further clip moves all labels by one, while the page is open."""
    monkeypatch.setattr("qwenvl.run_log.report.pages.PAGE_BYTES", 1)  # each label has a file
    again = "the files of this page were written again: load it again"
    rows = [label(f"clip{n}", f"(1) of {n}", 0.5, logprob=-1 + n / 10) for n in range(4)]
    browser.show(1280)
    browser.open(write_labels(tmp_path, "run", rows[1:], "qwenvl train").page.as_uri())
    browser.wait("document.querySelector('#group article') !== null")
    browser.run("localStorage.clear()")
    write_labels(tmp_path, "run", rows, "qwenvl train")
    browser.run("document.querySelector('#confirm').click()")  # it was loaded before: this label is the one of the list
    browser.wait(f"document.querySelector('#group .bad')?.textContent === '{again}'")
    assert json.loads(browser.run("localStorage.getItem(report.list.checked.name)")) == {
        "cam/clip1.mp4": {"answer": "(1) of 1", "state": "confirmed"}
    }
    browser.press("y")
    browser.run("report.list.check(2, {answer: '(1) of 2'})")
    assert browser.run("report.list.checked.size") == 1
    browser.run("URL.createObjectURL = () => { window.file = true; }, true")
    browser.run("document.querySelector('#unchecked').click(), document.querySelector('#save').click()")
    browser.wait(f"document.querySelector('#saved').textContent === 'Nothing was saved: {again}'")
    assert browser.run("window.file === undefined")
    browser.run("localStorage.clear()")


def test_the_page_is_never_wider_than_the_window(opened):
    for width, dark in ((1280, False), (390, False), (390, True)):
        page = opened(width, dark, "#id=cam/torn.mp4")
        page.run("document.querySelector('.title').textContent = 'long_name_of_a_clip'.repeat(9)")
        page.wait(f"document.documentElement.scrollWidth <= {width}")  # a new size of the window takes a moment
        assert page.run("document.querySelector('.title').scrollWidth") <= width
        answer = page.run("document.querySelector('#answer').getBoundingClientRect().toJSON()")
        assert answer["width"] > 250 and answer["right"] <= width


# ---- timelines: a bar of the model's spans, and one whose spans are edited

LISTED = [[1, "take the lid"], [2, "insert the fan"], [3, "fasten the screw"]]
PROMPT = "<video>\nWhich, and when?\n" + "\n".join(f"({number}) {name}" for number, name in LISTED)
SPANS = """[...document.querySelectorAll('.span-rows li')].map(row => [row.querySelector('select').value,
    ...[...row.querySelectorAll('input')].map(each => Number(each.value))].join())"""


def span(start, end, number=2):
    return {"start": start, "end": end, "number": number, "name": dict(LISTED).get(number, "")}


def timed(name: str, *spans: dict, **more) -> dict:
    row = label(name, "0.0-3.5 (2)" if spans else "I see")
    turns = [{"from": "human", "value": PROMPT}]
    row["record"] |= {"conversations": turns}
    row["clips"] = [row["clips"][0] | {"duration": 10.0}]
    votes = [[], [span(1.0, 2.0, 1)]]
    return row | {"steps": LISTED, "timeline": {"length": 10.0, "spans": list(spans)}, "vote_spans": votes} | more


@pytest.fixture
def timelines(browser, tmp_path):
    """``timelines(name)``: the page of three labels, at one of them."""
    clip = tmp_path / "clips" / "a b.webm"
    write_clip(clip, 40, fps=4, size=(64, 48), codec="libvpx")  # 10 s
    rows = [timed("one", span(0.0, 3.5), span(3.5, 9.0, 3)), timed("none"), timed("odd", span(1.0, 2.0, 7))]
    rows[0] |= {"files": ["../clips/a%20b.webm"]}
    rows[1] |= {"files": ["../clips/gone.webm"]}
    written = write_labels(tmp_path / "labels", "run", rows, "qwenvl train")
    browser.errors.clear()

    def at(name, width=1280):
        browser.show(width)
        browser.open(f"{written.page.as_uri()}#id=cam/{name}.mp4")
        browser.wait("document.querySelector('.lanes.editable') !== null")
        return browser

    at("one").run("localStorage.clear()")
    yield at
    # A file that is gone is said on the page; the browser notes it too.
    assert [each for each in browser.errors if "gone.webm" not in each] == []


def middle(page, selector) -> tuple[float, float]:
    page.run(f"document.querySelector({selector!r}).scrollIntoView({{block: 'center'}})")
    box = page.run(f"document.querySelector({selector!r}).getBoundingClientRect().toJSON()")
    return box["left"] + box["width"] / 2, box["top"] + box["height"] / 2


def second(page) -> float:
    return page.run("document.querySelector('.lanes.editable').getBoundingClientRect().width") / 10


def test_spans_are_edited_by_keyboard(timelines):
    page = timelines("one")
    assert page.run(SPANS) == ["2,0,3.5", "3,3.5,9"]
    page.press("e")  # to the first span, and on to its edges
    for _ in range(2):
        page.press("Tab")
    assert page.run("document.activeElement.getAttribute('aria-label')") == "end of (2) insert the fan"
    page.press("ArrowRight")
    page.press("ArrowRight", modifiers=8)
    assert page.run(SPANS) == ["2,0,4.6", "3,3.5,9"]
    page.press("1")
    page.press("9")  # no step of the list
    assert page.run(SPANS)[0] == "1,0,4.6"
    page.press("Tab")  # the second span as a whole: its end stays inside the clip
    page.press("ArrowRight", modifiers=8)
    page.press("ArrowRight", modifiers=8)
    assert page.run(SPANS) == ["1,0,4.6", "3,4.5,10"]
    page.press("Delete")
    assert page.run(SPANS) == ["1,0,4.6"]
    page.press("n")  # a span in the gap, of the first step that has none
    assert page.run(SPANS) == ["1,0,4.6", "2,4.6,5.6"]
    assert page.run("document.activeElement.classList.contains('chosen')")


def test_spans_are_edited_by_dragging(timelines):
    page = timelines("one")
    x, y = middle(page, ".editable .edge.end")
    page.drag((x, y), (x - 1.5 * second(page), y))
    assert page.run(SPANS)[0] == "2,0,2"
    page.drag((x + second(page), y), (x + 1.6 * second(page), y))  # the second span as a whole
    assert page.run(SPANS) == ["2,0,2", "3,4.1,9.6"]
    x, y = middle(page, ".editable .edge.end")
    page.drag((x, y), (x + 2.1 * second(page) + 4, y))  # near to the other span: it takes its time
    assert page.run(SPANS)[0] == "2,0,4.1"
    page.run("document.querySelector('.span-rows button').click()")
    x, y = middle(page, ".lanes.editable")
    page.drag((x - 4 * second(page), y), (x - 3 * second(page), y))  # on the empty bar: a new span
    assert page.run(SPANS) == ["1,1,2", "3,4.1,9.6"]


def test_a_timeline_is_saved_as_the_field_of_its_record(timelines, tmp_path):
    page = timelines("odd")
    for button in ("#correct", "#confirm"):
        assert page.run(f"document.querySelector('{button}').disabled")  # its step is not in the list
    page.run("document.querySelector('[data-step=\"3\"]').click()")  # nothing is chosen: a new span
    assert page.run(SPANS) == ["3,0,1", ",1,2"]
    page.run("document.querySelector('.editable .span').focus()")
    page.run("document.querySelector('[data-step=\"2\"]').click()")
    assert page.run(SPANS) == ["3,0,1", "2,1,2"]
    set_field = "(box => { box.value = '2.25'; box.dispatchEvent(new Event('change')); })"
    page.run(f"{set_field}(document.querySelectorAll('.span-rows li')[1].querySelectorAll('input')[1])")
    page.run("document.querySelector('#correct').click()")
    page.wait(f"{COUNT} === 'save 1 record'")
    page.run("document.querySelector('#unchecked').click()")
    assert page.run(COUNT) == "save 2 records"  # the answer without spans has nothing to save
    keep = "blob.text().then((text) => (window.saved = text))"
    page.run(f"(own => {{ URL.createObjectURL = blob => ({keep}, own(blob)); }})(URL.createObjectURL.bind(URL)), true")
    page.run("document.querySelector('#save').click()")
    (tmp_path / "labels.json").write_text(page.wait("window.saved"))
    records = load_dataset(tmp_path / "labels.json", on_bad_sample="skip", allow_outside_media=True).records
    timelines_saved = [record.fields["timeline"] for record in records]
    assert [{"step": 3, "start": 0, "end": 1}, {"step": 2, "start": 1, "end": 2.25}] in timelines_saved
    solutions = {record.solution for record in records}
    assert "<answer>0.0-1.0 (3) fasten the screw\n1.0-2.25 (2) insert the fan</answer>" in solutions
    assert timelines("odd").run(SPANS) == ["3,0,1", "2,1,2.25"]  # it stays in the browser


def test_spans_beyond_the_clip_are_saved_as_they_are_shown(browser, tmp_path):
    long = [span(1.0, 19.0), span(15.0, 19.0, 3)]
    rows = [timed("long", *long, vote_spans=[long, [span(1.0, 12.0, 1)]]), timed("other", *long)]
    written = write_labels(tmp_path, "run", rows, "qwenvl train")
    browser.show(1280)
    browser.open(f"{written.page.as_uri()}#id=cam/long.mp4")
    browser.wait("document.querySelector('.lanes.editable') !== null")
    browser.run("localStorage.clear()")
    assert browser.run(SPANS) == ["2,1,10", "3,9.9,10"]
    shown = browser.run("document.querySelector('.bar-of-spans').textContent")
    assert "cut at the end of the clip" in shown
    assert "19" not in browser.run("document.querySelector('.bar-of-spans .lanes').getAttribute('aria-label')")
    assert "1-12" not in browser.run("document.querySelector('.votes').textContent")
    browser.run("document.querySelector('#confirm').click()")
    browser.wait(f"{COUNT} === 'save 1 record'")
    assert browser.run("report.list.done(0).state") == "confirmed"
    browser.run("document.querySelector('#unchecked').click()")
    keep = "blob.text().then((text) => (window.saved = text))"
    own = "URL.createObjectURL.bind(URL)"
    browser.run(f"(own => {{ URL.createObjectURL = blob => ({keep}, own(blob)); }})({own}), true")
    browser.run("document.querySelector('#save').click()")
    expected = [{"step": 2, "start": 1, "end": 10}, {"step": 3, "start": 9.9, "end": 10}]
    # Also of the label that nobody has looked at.
    assert [record["timeline"] for record in json.loads(browser.wait("window.saved"))] == [expected] * 2


def test_spans_are_stored_short_and_those_of_earlier_pages_are_read(timelines):
    page = timelines("one")
    page.run("document.querySelector('#confirm').click()")
    page.wait("document.querySelector('#done').textContent === '1 of 3 done'")
    stored = page.run("Object.values(localStorage).find((each) => each.includes('confirmed'))")
    [[key, value]] = json.loads(stored).items()
    assert value == {"timeline": [[0, 3.5, 2, "insert the fan"], [3.5, 9, 3, "fasten the screw"]], "state": "confirmed"}
    earlier = {"answer": "1-2 (1)", "timeline": [span(1.0, 2.0, 1)], "state": "corrected"}
    page.run(f"localStorage.setItem(report.list.checked.name, {json.dumps(json.dumps({key: earlier}))})")
    page.run(f"localStorage.setItem(report.list.drafts.name, {json.dumps(json.dumps({key: [span(1.0, 3.0, 1)]}))})")
    page = timelines("one")
    assert page.run(SPANS) == ["1,1,3"]
    assert page.run("report.list.done(report.list.chosen).answer") == "1-2 (1) take the lid"


def test_an_edited_timeline_is_confirmed_as_it_is_shown(timelines):
    page = timelines("one")
    page.press("e")
    page.press("Delete")
    page.run("document.activeElement.blur()")
    page.press("y")
    page.wait("report.list.checked.size === 1")
    assert page.run("[...report.list.checked.values.values()][0].answer") == "3.5-9 (3) fasten the screw"


def test_steps_that_are_not_in_the_list_are_not_saved(timelines):
    """The next training would end at such a record."""
    page = timelines("odd")
    page.press("y")
    assert page.run("report.list.checked.size") == 0
    page.run("document.querySelector('#unchecked').click()")
    assert page.run(COUNT) == "save 1 record"
    assert page.run(DONE) == "0 of 3 done, 1 left out: a step is not in the list"
    # An earlier page has confirmed it.
    noted = "{ timeline: [[1, 2, 7, '']], state: 'confirmed' }"
    own = "report.list.index.keys[report.list.chosen]"
    page.run(f"localStorage.setItem(report.list.checked.name, JSON.stringify({{ [{own}]: {noted} }}))")
    page = timelines("odd")
    page.run("document.querySelector('#save').click()")
    said = "saved 0 as labels.json, without 1 whose step is not in the list"
    page.wait(f"document.querySelector('#saved').textContent === '{said}'")


def test_equal_records_keep_their_own_answers(browser, tmp_path):
    rows = [label(name, "(1) lid", 0.5, key=key) for name, key in (("a", "K"), ("b", "K 2"), ("c", "K"))]
    page = write_labels(tmp_path, "run", rows, "qwenvl train").page.as_uri()
    browser.open(f"{page}#id=cam/a.mp4")
    browser.wait("document.querySelector('#group article') !== null")
    browser.run("localStorage.clear()")
    assert browser.run("report.list.index.keys") == ["K", "K 2", "K 3"]
    browser.run("report.list.check(0, {answer: '(2) fan'}).then(() => true)")
    browser.open(f"{page}#id=cam/c.mp4")
    browser.wait("document.querySelector('#answer')?.value === '(1) lid'")
    assert browser.run(DONE) == "1 of 3 done"
    browser.run("localStorage.clear()")


FIELD = "document.querySelector(\".span-rows input[aria-label^='{}']\")"
KEPT = "[...report.list.checked.values.values()].map(each => `${each.answer} ${each.state}`).join('; ')"
CONTROL = 2  # Chromium's number of the key


def type_into(page, name: str, text: str) -> None:
    """As a reader does: the field tells of no change before it loses the focus."""
    page.run(f"{FIELD.format(name)}.focus(), {FIELD.format(name)}.select()")
    for letter in text:
        page.press(letter)


def test_what_is_being_typed_is_saved_too(timelines):
    page = timelines("one")
    type_into(page, "end", "7.25")
    page.press("Enter", modifiers=CONTROL)
    page.wait("report.list.checked.size === 1")
    assert page.run(KEPT) == "0-7.25 (2) insert the fan; 3.5-9 (3) fasten the screw corrected"
    assert page.run("report.list.drafts.size") == 0
    page = timelines("odd")  # no step of the list: a name is no way out, the button stays disabled
    page.run(f"{FIELD.format('end')}.focus()")
    page.press("Enter", modifiers=CONTROL)
    assert page.run("report.list.checked.size") == 1


def test_what_is_being_typed_is_a_draft_where_the_label_is_left(timelines):
    page = timelines("one")
    type_into(page, "end", "7")
    page.run("report.list.choose(report.list.index.ids.indexOf('cam/odd.mp4'))")
    page.wait(f"{TITLE} === 'odd.mp4'")
    assert timelines("one").run(SPANS) == ["2,0,7", "3,3.5,9"]
    type_into(page, "start", "2")
    assert timelines("one").run(SPANS) == ["2,2,7", "3,3.5,9"]  # the page is loaded again


def test_nothing_is_saved_while_seconds_are_refused(timelines):
    page = timelines("one")
    type_into(page, "end", "99")
    page.run("document.activeElement.blur()")
    for act in ("document.querySelector('#correct').click()", "document.querySelector('#confirm').click()"):
        page.run(act)
        assert page.run("document.activeElement.value") == "99" and page.run(KEPT) == ""
    page.run("document.querySelectorAll('.editable .span')[1].focus()")  # another span is chosen
    assert page.run(f"{FIELD.format('end')}.value") == "99"
    type_into(page, "end", "4")
    page.press("Enter", modifiers=CONTROL)
    page.wait(f"{KEPT}.startsWith('0-4 (2)')")
    page = timelines("one")
    type_into(page, "start", "6")  # after the end, which is typed next
    type_into(page, "end", "8")
    page.press("Enter", modifiers=CONTROL)
    page.wait(f"{KEPT}.includes('6-8 (2)')")


def test_a_name_of_a_step_that_is_being_typed_is_saved(browser, tmp_path):
    rows = [timed(name, span(1.0, 5.0), steps=[]) for name in ("a", "b")]
    browser.show(1280)
    browser.open(f"{write_labels(tmp_path, 'run', rows, 'qwenvl train').page.as_uri()}#id=cam/a.mp4")
    browser.wait("document.querySelector('.lanes.editable') !== null")
    browser.run("localStorage.clear()")
    type_into(browser, "step", "")
    browser.run("document.activeElement.value = ''")
    browser.press("Enter", modifiers=CONTROL)
    assert browser.run(KEPT) == "" and browser.run(f"{FIELD.format('step')}.validationMessage") != ""
    type_into(browser, "step", "weld")
    browser.press("Enter", modifiers=CONTROL)
    browser.wait(f"{KEPT} === '1-5 weld corrected'")


def test_a_held_delete_removes_one_span(timelines):
    page = timelines("one")
    page.press("e")
    page.press("Delete", repeats=3)
    assert page.run(SPANS) == ["3,3.5,9"]


def test_an_answer_that_is_right_is_confirmed_and_a_vote_is_taken_over(timelines):
    page = timelines("one")
    page.press("y")
    page.wait("document.querySelector('#done').textContent === '1 of 3 done'")
    page = timelines("one")
    assert page.run("document.querySelector('#undo').textContent") == "confirmed: undo"
    page.run("document.querySelectorAll('.votes button')[1].click()")
    assert page.run(SPANS) == ["1,1,2"]
    page.press("j")
    page.press("k")
    page.wait(f"{TITLE} === 'one.mp4' && {SPANS}.join() === '1,1,2'")  # a draft is kept while the page is open
    assert timelines("none").run("document.querySelector('#confirm').disabled")  # no span that could be right


def test_the_clip_plays_and_gives_its_second_to_an_edge(timelines):
    page = timelines("one")
    page.wait("document.querySelector('video').readyState > 0")
    assert page.run("document.querySelector('video').duration") == pytest.approx(10, abs=0.3)
    page.press("e")
    page.run("new Promise(done => { const clip = document.querySelector('video'); "
             "clip.addEventListener('seeked', done, {once: true}); clip.currentTime = 2.5; }).then(() => true)")
    page.press("]")
    assert page.run(SPANS)[0] == "2,0,2.5"
    assert page.run("document.querySelector('.playhead').style.left") == "25%"
    page.press("p")
    page.wait("!document.querySelector('video').paused")
    page = timelines("none")
    page.wait("document.querySelector('.player').textContent.includes('/there/cam/none.mp4')")


def test_the_editor_fits_a_phone(timelines):
    page = timelines("one", 390)
    page.wait("document.documentElement.scrollWidth === 390")
    for selector in (".span-rows input", ".span-rows select", ".palette button"):
        assert page.run(f"document.querySelector({selector!r}).getBoundingClientRect().right") <= 390


def test_steps_are_buttons_and_folders_are_shown(browser, tmp_path):
    rows = [
        label("a", "(2) insert the fan", id="line/cam1/a.mp4", steps=LISTED),
        label("b", "(1)", id="line/cam2/b.mp4", steps=LISTED),
        label("c", None, id="data.json[3]"),
    ]
    page = write_labels(tmp_path, "run", rows, "qwenvl train").page
    browser.show(1280)
    browser.open(f"{page.as_uri()}#id=line/cam1/a.mp4")
    browser.wait("document.querySelector('.palette') !== null")
    browser.run("localStorage.clear()")
    value = "document.querySelector('#answer').value"
    pressed = "[...document.querySelectorAll('.palette [aria-pressed=true]')].map(each => each.dataset.step).join()"
    assert browser.run(pressed) == "2"
    both = "(2) insert the fan (3) fasten the screw"
    for number, text, shown in ((3, both, "2,3"), (2, "(3) fasten the screw", "3")):
        browser.run(f"document.querySelector('.palette [data-step=\"{number}\"]').click()")
        assert browser.run(value) == text and browser.run(pressed) == shown
    assert browser.run("[...document.querySelectorAll('#list .folder')].map(e => e.textContent)") == [
        "line/cam1",
        "line/cam2",
    ]
    assert browser.run("document.querySelectorAll('#list .id')[2].textContent") == "data.json[3]"
    edited = "1 edited and not saved as a correction"
    assert browser.run("document.querySelector('#done').textContent") == f"0 of 2 done, {edited}"
