"""The editor of timelines on the page of labels: a bar of the model's spans, and one whose spans are edited."""

import json

import pytest

from qwenvl.data.dataset import load_dataset
from qwenvl.data.errors import RecordError
from qwenvl.data.records.timelines import read_timeline
from qwenvl.run_log.report.evaluation import write_labels
from tests.made_clips import write_clip
from tests.run_log.test_labels import COUNT, DONE, KEYS, TITLE, label

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


def test_edges_of_a_span_that_is_shorter_than_a_key_moves_them_stay_apart(timelines):
    page = timelines("one")
    for start, end in ((0, 0.04), (9.97, 10)):
        for field, value in (("end", 10), ("start", 0), ("end", end), ("start", start)):
            typed(page, 0, ["start", "end"].index(field), str(value))
        for key in ("ArrowLeft", "ArrowRight"):
            for edge in ("start", "end"):
                page.run(f"document.querySelector('.editable .edge.{edge}').focus()")
                page.press(key)
                now = page.run("[report.list.editor.spans[0].start, report.list.editor.spans[0].end]")
                assert 0 <= now[0] < now[1] <= 10, (key, edge)
                typed(page, 0, 0, str(start))
                typed(page, 0, 1, str(end))


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
    rows[0]["timeline"] |= {"unread": "7 (3)"}
    written = write_labels(tmp_path, "run", rows, "qwenvl train")
    browser.show(1280)
    browser.open(f"{written.page.as_uri()}#id=cam/long.mp4")
    browser.wait("document.querySelector('.lanes.editable') !== null")
    browser.run("localStorage.clear()")
    assert browser.run(SPANS) == ["2,1,10", "3,9.9,10"]
    shown = browser.run("document.querySelector('.bar-of-spans p').textContent")
    assert shown == "the model's answer, cut at the end of the clip, without what is no span: 7 (3)"
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


def test_without_a_list_of_steps_number_and_name_are_saved(timelines, browser, tmp_path):
    own = [{**span(1.0, 2.0, 7), "name": "glue the rim"}, span(3.0, 4.0, 8), {**span(5.0, 6.0, None), "name": "rest"}]
    written = write_labels(tmp_path / "free", "run", [timed("free", *own, steps=[])], "qwenvl train")
    browser.open(f"{written.page.as_uri()}#id=cam/free.mp4")
    browser.wait("document.querySelector('#unchecked') !== null")
    browser.run("document.querySelector('#unchecked').click()")
    keep = "blob.text().then((text) => (window.saved = text))"
    made = "URL.createObjectURL.bind(URL)"
    browser.run(f"(own => {{ URL.createObjectURL = blob => ({keep}, own(blob)); }})({made}), true")
    browser.run("document.querySelector('#save').click()")
    [record] = json.loads(browser.wait("window.saved"))
    assert [each["step"] for each in record["timeline"]] == ["(7) glue the rim", 8, "rest"]
    listed = read_timeline(record["timeline"], {}, "labels.json")
    assert [(each.number, each.name) for each in listed] == [(7, "glue the rim"), (8, ""), (None, "rest")]


def typed(page, row: int, field: int, text: str) -> None:
    """Type into a field of a span: its start and end, behind its step where that is no list."""
    page.run(
        f"(box => {{ box.value = {text!r}; box.dispatchEvent(new Event('change')); }})"
        f"([...document.querySelectorAll('.span-rows li')[{row}].querySelectorAll('input')][{field}])"
    )


def test_a_wheel_that_scrolls_the_page_changes_no_number(timelines):
    """A browser steps a field that has the focus, and tells nobody."""
    page = timelines("one")
    field = "document.querySelectorAll('.span-rows li')[0].querySelectorAll('input')[0]"
    page.run(f"{field}.scrollIntoView({{ block: 'center' }}), {field}.focus()")
    before = page.run(f"{field}.value")
    x, y = page.run(f"(box => [box.x + 5, box.y + 5])({field}.getBoundingClientRect())")
    page.wheel(x, y, 300)
    page.wheel(x, y, 300)
    assert page.run(f"{field}.value") == before


def test_seconds_are_typed_as_in_tables(timelines):
    """A field for numbers drops the comma of 4,5 and the colon of 0:02 while one types."""
    page = timelines("one")
    field = "document.querySelectorAll('.span-rows li')[0].querySelectorAll('input')[1]"
    for text, end in (("2.5", 2.5), ("0:02", 2.0), ("0:01.25", 1.25), ("00:00:03", 3.0), ("2.", 2.0)):
        page.run(f"{field}.focus(), {field}.select()")
        for letter in text:
            page.press(letter)
        page.press("Enter")
        assert page.run(f"{field}.value") and page.run("report.list.editor.spans[0].end") == end, text
    for text in ("2,5", "0:01:500", "0:75", "1e0", "-1", "soon", ""):
        typed(page, 0, 1, text)
        assert page.run(f"{field}.validationMessage").startswith("expected seconds from 0 to"), text
        assert page.run("report.list.editor.spans[0].end") == 2.0, text


def test_a_span_of_less_than_a_millisecond_is_none(timelines, browser, tmp_path):
    """Training would refuse the file for it."""
    page = timelines("one")
    typed(page, 0, 0, "3.4996")  # rounded it is the end
    typed(page, 0, 0, "3.4999")
    assert page.run("document.querySelector('.span-rows input:invalid') !== null")
    assert page.run(SPANS)[0].endswith("3.5")
    row = timed("short", span(2.0001, 2.0004), span(3, 4))
    written = write_labels(tmp_path / "short", "run", [row], "qwenvl train")
    browser.open(f"{written.page.as_uri()}#id=cam/short.mp4")
    browser.wait("document.querySelector('.lanes.editable') !== null")
    assert browser.run(SPANS) == ["2,3,4"]


def test_a_step_that_is_typed_is_a_number_or_a_name(timelines, browser, tmp_path):
    written = write_labels(tmp_path / "free", "run", [timed("free", span(1.0, 2.0), steps=[])], "qwenvl train")
    browser.open(f"{written.page.as_uri()}#id=cam/free.mp4")
    browser.wait("document.querySelector('.lanes.editable') !== null")
    expected = {
        "2nd screw M8": [None, "2nd screw M8"],
        "2.5 mm screw": [None, "2.5 mm screw"],
        "(3) take the lid": [3, "take the lid"],
        "3. take the lid": [3, "take the lid"],
        "7": [7, ""],
        "Step 2": [2, ""],
        "step 2: take the lid": [2, "take the lid"],
        "\uff083\uff09take the lid": [3, "take the lid"],
        "\uff17": [7, ""],
    }
    for text, step in expected.items():
        typed(browser, 0, 0, text)
        assert browser.run("[report.list.editor.spans[0].number, report.list.editor.spans[0].name]") == step, text
        read = read_timeline([{"step": text, "start": 0, "end": 1}], {}, "labels.json")
        assert [read[0].number, read[0].name] == step, "as records are read"
    counts = ("3 lids taken", "turn (2) screws", "step 3 take the lid", "5-axis mill", "2, 3", "-5 V", "盖（2）", "盖②")
    for text in counts[:2]:
        with pytest.raises(RecordError, match="has a number that rewards would take"):
            read_timeline([{"step": text, "start": 0, "end": 1}], {}, "labels.json")
    signs = ("glue; press", "取盖；装扇", "a <b>", "screws 1-4", "3 to 4", "from 2\u21923", "{x}", "-")
    units = ("frame 3", "Min", "分", "S-hook", "percent", "帧")
    beginnings = ("- 2nd 2x", "~ 0:05", ", 2", "--1)", "* 2 bolts", "to 5", "until 3.5", "Step 1:30", "step 2* fan")
    for text in (*signs, *units, *counts, *beginnings):
        typed(browser, 0, 0, text)
        assert browser.run("document.querySelector('.span-rows input:invalid') !== null"), text
        assert browser.run("report.list.editor.spans[0].number") == 7, text


def test_what_was_noted_as_a_text_stays_one_where_the_model_now_writes_spans(browser, tmp_path):
    """The model was asked again about the same clip."""
    written = write_labels(tmp_path, "run", [timed("one")], "qwenvl train")
    for model in ({"timeline": None}, {}):
        write_labels(tmp_path, "run", [timed("one", span(0.0, 3.5), **model)], "qwenvl train")
        browser.open(f"{written.page.as_uri()}#id=cam/one.mp4")
        browser.wait("document.querySelector('#group article') !== null")
        if model:
            browser.run("localStorage.clear()")
            browser.run("report.list.check(0, { answer: '0-2.5 (1) take the lid' })")
            browser.wait("report.list.checked.size === 1")
    assert browser.run("document.querySelector('#answer').value") == "0-2.5 (1) take the lid"
    browser.run("document.querySelector('#confirm').click()")
    browser.wait(f"{COUNT} === 'save 1 record'")
    assert browser.run("report.list.done(0).answer") == "0-2.5 (1) take the lid"


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
    left_out = "1 left out: a step or option that is not listed, a range, or tags in the answer"
    assert page.run(DONE) == f"0 of 3 done, {left_out}"
    # An earlier page has confirmed it.
    noted = "{ timeline: [[1, 2, 7, '']], state: 'confirmed' }"
    own = "report.list.index.keys[report.list.chosen]"
    page.run(f"localStorage.setItem(report.list.checked.name, JSON.stringify({{ [{own}]: {noted} }}))")
    page = timelines("odd")
    page.run("document.querySelector('#save').click()")
    said = "saved nothing, without 1 whose step is not in the list"
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


def test_an_edge_that_passes_the_other_one_takes_it_along(timelines):
    page = timelines("one")
    page.wait("document.querySelector('video').readyState > 0")
    spans = "report.list.editor.spans.map((span) => [span.start, span.end])"
    page.press("e")
    for second, key, expected in ((6.5, "[", [6.5, 10.0]), (9.9, "[", [9.9, 10.0]), (0.3, "]", [0.2, 0.3])):
        page.run(f"Object.defineProperty(report.list.editor, 'player', {{value: {{currentTime: {second}}}}})")
        page.press(key, modifiers=3)  # Ctrl and Alt, as AltGr is told on Windows
        assert expected in page.run(spans)
    assert len(page.run(spans)) == 2 and all(start < end for start, end in page.run(spans))


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
    pressed = "[...document.querySelectorAll('.palette [aria-pressed=true]')].map(each => each.dataset.mark).join()"
    assert browser.run(pressed) == "2"
    both = "(2) insert the fan (3) fasten the screw"
    for number, text, shown in ((3, both, "2,3"), (2, "(3) fasten the screw", "3")):
        browser.run(f"document.querySelector('.palette [data-mark=\"{number}\"]').click()")
        assert browser.run(value) == text and browser.run(pressed) == shown
    assert browser.run("[...document.querySelectorAll('#list .folder')].map(e => e.textContent)") == [
        "line/cam1",
        "line/cam2",
    ]
    assert browser.run("document.querySelectorAll('#list .id')[2].textContent") == "data.json[3]"
    edited = "1 edited and not saved as a correction"
    assert browser.run("document.querySelector('#done').textContent") == f"0 of 2 done, {edited}"


def test_the_keys_of_spans_are_named_where_there_are_spans(timelines):
    assert timelines("one").run(KEYS) == "j k y e p n [ ] /"
