"""The page of labels in a real browser: the doubtful ones first, confirmed, corrected and saved as records."""

import json

import pytest
from PIL import Image

from qwenvl.data.dataset import load_dataset
from qwenvl.rewards.functions.choices import letters
from qwenvl.run_log.report.evaluation import write_labels
from qwenvl.run_log.report.pages import Strip
from qwenvl.run_log.report.write import write_pictures

ROWS = "[...document.querySelectorAll('#list li')].map(each => each.querySelector('.id').textContent)"
TITLE = "document.querySelector('#group article .title')?.firstChild.textContent"
KEYS = "[...document.querySelectorAll('.keys kbd')].map(each => each.textContent).join(' ')"
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
    said = page.run("document.querySelector('#saved').textContent")
    assert said == "saved 3 as labels.json, which the browser may have named labels (1).json: train on that file"
    page.run("document.querySelector('#undo').click()")
    page.wait(f"{COUNT} === 'save 3 records' && {ROWS}.length === 1")


def test_an_answer_with_tags_is_not_saved(browser, tmp_path):
    """A solution with half an answer block, or two, is refused by training."""
    rows = [label("twice", "so <answer>(1) lid", 1.0), label("one", "(2) fan", 1.0)]
    written = write_labels(tmp_path, "run", rows, "qwenvl train")
    browser.open(f"{written.page.as_uri()}#id=cam/twice.mp4")
    browser.wait("document.querySelector('#group article') !== null")
    browser.run("localStorage.clear()")
    assert browser.run("document.querySelector('#confirm').title") == (
        "an answer can't hold tags such as <answer>, <video> and <|im_end|>"
    )
    browser.press("y")
    browser.run("document.querySelector('#unchecked').click()")
    assert browser.run("report.list.checked.size") == 0 and browser.run(COUNT) == "save 1 record"
    typed = "(box => { box.value = '%s'; box.dispatchEvent(new Event('input')); })(document.querySelector('#answer'))"
    for text, is_refused in (
        ("(1) lid<|im_end|>", True),
        ("(1) lid</answer>", True),
        ("<video> lid", True),
        ("(1) <i>lid</i>", False),
    ):
        browser.run(typed % text)
        assert browser.run("document.querySelector('#correct').disabled") == is_refused, text


def test_a_range_of_steps_is_not_saved(browser, tmp_path):
    """Of "(1)-(3)" training would refuse the record, and "1-3" names no step."""
    steps = [[1, "take the lid"], [2, "insert the fan"], [3, "fasten the screw"]]
    rows = [label("one", "(1) take the lid", 1.0, steps=steps)]
    written = write_labels(tmp_path, "run", rows, "qwenvl train")
    browser.open(f"{written.page.as_uri()}#id=cam/one.mp4")
    browser.wait("document.querySelector('#group article') !== null")
    browser.run("localStorage.clear()")
    typed = "(box => { box.value = '%s'; box.dispatchEvent(new Event('input')); })(document.querySelector('#answer'))"
    for text in ("(1)-(3)", "(1) to (3)", "(1) \u2013 (3)", "(1)...(3)", "1-3", "1 to 3", "[1-3]"):
        browser.run(typed % text)
        assert browser.run("document.querySelector('#correct').title").startswith("a range may be two steps"), text
    for text in ("(1) (3)", "(1) take the lid - (3) fasten the screw", "1, 3", "(1), (3)"):
        browser.run(typed % text)
        assert not browser.run("document.querySelector('#correct').disabled"), text


def test_an_edited_answer_is_not_among_those_that_nobody_has_looked_at(browser, tmp_path):
    """The file had the answer of the model, which the reader has found wrong."""
    rows = [label(name, "(2) fan", 1.0, steps=[[2, "fan"], [3, "screw"]]) for name in ("one", "two")]
    written = write_labels(tmp_path, "run", rows, "qwenvl train")
    browser.open(f"{written.page.as_uri()}#id=cam/one.mp4")
    browser.wait("document.querySelector('#group article') !== null")
    browser.run("localStorage.clear()")
    browser.run("document.querySelector('#unchecked').click()")
    assert browser.run(COUNT) == "save 2 records"
    typed = "(box => { box.value = '%s'; box.dispatchEvent(new Event('input')); })(document.querySelector('#answer'))"
    browser.run(typed % "(3) screw")
    browser.wait(f"{COUNT} === 'save 1 record'")
    assert "1 edited and not saved as a correction" in browser.run("document.querySelector('#done').textContent")
    browser.run("document.querySelector('#correct').click()")
    browser.wait(f"{COUNT} === 'save 2 records'")


def test_answers_that_training_refuses_are_not_saved_unchecked(browser, tmp_path):
    """By the rule of those that people type."""
    steps = [[1, "lid"], [2, "fan"], [3, "screw"]]
    answers = ("(1)-(3)", "lid (2) fan", "(4)", "<video> (1)", "(1) lid", "1, 2", "", "1-3", "1,3")
    rows = [label(f"n{n}", answer, 1.0, steps=steps) for n, answer in enumerate(answers)]
    rows.append(label("free", "1-3", 1.0, steps=[]))  # without a list it may be anything
    browser.open(write_labels(tmp_path, "run", rows, "qwenvl train").page.as_uri())
    browser.wait("document.querySelector('#unchecked') !== null")
    browser.run("localStorage.clear()")
    browser.run("document.querySelector('#unchecked').click()")
    assert browser.run(COUNT) == "save 3 records"
    assert browser.run("document.querySelector('#done').textContent").endswith(
        "6 left out: a step or option that is not listed, a range, or tags in the answer"
    )


def test_a_question_with_options_is_answered_by_their_letters(browser, tmp_path):
    """By their buttons, or as text: what is saved, training reads as these letters."""
    options = [["A", "the left one"], ["B", "the right one"], ["C", "none"]]
    answers = ("B", "both", "D")
    rows = [label(f"n{n}", answer, 1.0, options=options) for n, answer in enumerate(answers)]
    written = write_labels(tmp_path, "run", rows, "qwenvl train")
    browser.open(f"{written.page.as_uri()}#id=cam/n1.mp4")
    browser.wait("document.querySelector('#group article') !== null")
    browser.run("localStorage.clear()")
    is_refused = "document.querySelector('#correct').disabled"
    assert browser.run(is_refused) and browser.run("document.querySelector('#correct').title") == (
        "expected the letter of an option, A to C, or several: A, B"
    )
    browser.run("document.querySelector('[data-mark=C]').click()")
    browser.run("document.querySelector('[data-mark=B]').click()")  # one of them
    pressed = "[...document.querySelectorAll('.palette [aria-pressed=true]')].map(each => each.dataset.mark).join()"
    assert browser.run("document.querySelector('#answer').value") == browser.run(pressed) == "B"
    typed = "(box => { box.value = '%s'; box.dispatchEvent(new Event('input')); })(document.querySelector('#answer'))"
    readable = ("B", " (B) ", "A, C", "A;C", "(A), (C)", "B. the right one", "(B) the right one.", "\uff08B\uff09")
    for text in readable:
        browser.run(typed % text)
        assert not browser.run(is_refused) and browser.run(pressed) == ",".join(sorted(letters(text))), text
    for text in ("both", "D", "A, D", "b", "A or B", "right (B)", "B. the left one", "A B", "AB", "A-C", "A,"):
        browser.run(typed % text)
        assert browser.run(is_refused) and browser.run(pressed) == "", text
    browser.run(typed % "both")  # as it was
    browser.run("document.querySelector('#unchecked').click()")
    assert browser.run(COUNT) == "save 1 record"
    said = browser.run("document.querySelector('#done').textContent")
    assert "2 left out: a step or option that is not listed" in said


def test_a_name_in_front_of_the_first_number_is_not_saved(browser, tmp_path):
    """Of "take the lid (2) fan" only step 2 would count, and a click on the button of a step writes it so."""
    rows = [label("one", "take the lid", 1.0, steps=[[1, "take the lid"], [2, "insert the fan"]])]
    written = write_labels(tmp_path, "run", rows, "qwenvl train")
    browser.open(f"{written.page.as_uri()}#id=cam/one.mp4")
    browser.wait("document.querySelector('#group article') !== null")
    browser.run("localStorage.clear()")
    browser.run("document.querySelector('[data-mark=\"2\"]').click()")
    assert browser.run("document.querySelector('#answer').value") == "take the lid (2) insert the fan"
    assert browser.run("document.querySelector('#correct').disabled")
    assert browser.run("document.querySelector('#correct').title").startswith("only numbers in brackets would count")
    typed = "(box => { box.value = '%s'; box.dispatchEvent(new Event('input')); })(document.querySelector('#answer'))"
    for text, is_refused in (("1, 2 (2) insert the fan", True), ("(1) take the lid (2)", False), ("1, 2", False)):
        browser.run(typed % text)
        assert browser.run("document.querySelector('#correct').disabled") == is_refused, text


def test_a_step_that_is_named_without_its_number_is_not_saved(browser, tmp_path):
    """Of "(1) lid, insert the fan" rewards read step 1 alone."""
    steps = [[1, "lid"], [2, "insert the fan"], [3, "fan"], [4, "lid screw"]]
    answers = ("(1) lid, insert the fan", "(2) insert the fan", "(1) lid (3) fancy", "(4) lid screw", "(1) lid screw")
    rows = [label(f"n{n}", answer, 1.0, steps=steps) for n, answer in enumerate(answers)]
    browser.open(f"{write_labels(tmp_path, 'run', rows, 'qwenvl train').page.as_uri()}#id=cam/n0.mp4")
    browser.wait("document.querySelector('#group article') !== null")
    browser.run("localStorage.clear()")
    said = "only numbers in brackets would count: write (2) in front of insert the fan, or leave it out"
    assert browser.run("document.querySelector('#confirm').title") == said
    browser.run("document.querySelector('#unchecked').click()")
    assert browser.run(COUNT) == "save 3 records"  # 0 and 4 are left out


def test_a_step_that_the_prompt_does_not_list_is_not_saved(browser, tmp_path):
    rows = [label(str(n), f"(1) lid ({n}) fan", 1.0, steps=[[1, "lid"], [2, "fan"]]) for n in (2, 3)]
    written = write_labels(tmp_path, "run", rows, "qwenvl train")
    browser.open(f"{written.page.as_uri()}#id=cam/3.mp4")
    browser.wait("document.querySelector('#group article') !== null")
    browser.run("localStorage.clear()")
    assert browser.run("document.querySelector('#confirm').title") == "(3) is not in the list of steps"
    browser.press("y")
    browser.run("document.querySelector('#unchecked').click()")
    assert browser.run("report.list.checked.size") == 0 and browser.run(COUNT) == "save 1 record"
    typed = "(box => { box.value = '%s'; box.dispatchEvent(new Event('input')); })(document.querySelector('#answer'))"
    for text, is_refused in (("\uff083\uff09 fan", True), ("\u2462 fan", True), ("\uff082\uff09 fan", False)):
        browser.run(typed % text)  # in the signs of other scripts
        assert browser.run("document.querySelector('#correct').disabled") == is_refused, text


def test_the_keys_of_spans_are_not_named_where_there_are_none(opened):
    assert opened().run(KEYS) == "j k y e p /"


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


def test_an_answer_that_another_tab_corrects_takes_the_place_of_the_shown_one(opened):
    """"right" would take the model's answer over again. What is edited here stays, also where the other tab saves."""
    page = opened(hash="#id=cam/torn2.mp4")
    noted = (
        "(() => {{ const store = report.list.checked.name; const key = report.list.index.keys[{n}];"
        "localStorage.setItem(store, JSON.stringify({{ [key]: {{ answer: '(5) box', state: 'corrected' }} }}));"
        "dispatchEvent(new StorageEvent('storage', {{ key: store }})); }})()"
    )
    value = "document.querySelector('#answer').value"
    assert page.run(value) == "(3) screw"
    page.run(noted.format(n="report.list.chosen"))
    page.wait(f"{value} === '(5) box'")
    page = opened(hash="#id=cam/torn.mp4")
    page.run("document.querySelector('#answer').value = '(7)'")
    page.run("document.querySelector('#answer').dispatchEvent(new Event('input'))")
    page.run(noted.format(n="report.list.chosen"))
    assert page.run(value) == "(7)"
    gone = "(name => { localStorage.setItem(name, '{}'); dispatchEvent(new StorageEvent('storage', { key: name })); })"
    page.run(f"{gone}(report.list.drafts.name)")
    assert "(7)" in page.run("localStorage.getItem(report.list.drafts.name)")


def test_drafts_of_another_tab_are_followed(opened):
    """A label that is edited there is none that nobody has looked at, and a draft that was settled there is gone."""
    page = opened(hash="#id=cam/torn.mp4")
    value = "document.querySelector('#answer').value"
    drafted = (
        "(drafts => { const name = report.list.drafts.name; localStorage.setItem(name, JSON.stringify(drafts));"
        "dispatchEvent(new StorageEvent('storage', { key: name })); })"
    )
    key = "[report.list.index.keys[report.list.chosen]]"
    page.run("document.querySelector('#unchecked').click()")
    assert page.run(COUNT) == "save 3 records"
    page.run(f"{drafted}({{ {key}: '(8) nut' }})")
    page.wait(f"{value} === '(8) nut' && {COUNT} === 'save 2 records'")
    page.run(f"{drafted}({{}})")  # saved there as a correction, or taken back
    page.wait(f"{value} === '(2) <i>fan</i>' && {COUNT} === 'save 3 records'")
    assert page.run("localStorage.getItem(report.list.drafts.name)") == "{}"
    page = opened(hash="#id=cam/torn.mp4")
    assert page.run(value) == "(2) <i>fan</i>"


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


def test_answers_of_a_page_in_another_place_are_taken_over_by_a_click(opened):
    """The folder of the page was moved: the browser keeps answers by the address of a page."""
    page = opened()
    page.run(CHECK.format(n=1, answer="(3) screw"))
    page.run("report.list.draft(2, '(4) hinge', '')")
    page.run(
        "(() => { for (const name of Object.keys(localStorage)) {"
        "const moved = name.replace(location.pathname, '/old/labels/index.html');"
        "localStorage.setItem(moved, localStorage.getItem(name)); localStorage.removeItem(name); } })()"
    )
    page = opened()
    said = "document.querySelector('#elsewhere').textContent"
    assert "keeps 2 answers to these questions of another page, /old/labels/index.html" in page.run(said)
    page.run(CHECK.format(n=1, answer="(5) box"))  # what is noted here stays
    page.run("document.querySelector('#elsewhere button').click()")
    assert page.run(DONE) == "1 of 4 done, 1 edited and not saved as a correction" and page.run(said) == ""
    page = opened()
    assert page.run("report.list.done(1).answer") == "(5) box" and page.run("report.list.drafts.get(2)") == "(4) hinge"
    assert page.run(said) == "", "a page with answers of its own offers no others"


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
