"""The page in a real browser, from the disk: nothing on its console, and filters, jumps, links and keys work."""

import threading
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from qwenvl.inspection.run_report import make_report
from tests.run_log.runs import group

CHOSEN = "document.querySelector('#group article .title')?.firstChild.textContent"
COUNT = "document.querySelector('#count').textContent"


@pytest.fixture
def opened(browser, make_run, tmp_path):
    """``opened(hash)``: the page of a report of two runs, at an address. It must have no errors to the end."""
    runs = [make_run("first"), make_run("second", learning_rate=5e-6)]
    page = make_report(runs, tmp_path / "report").page
    browser.errors.clear()
    browser.show(1280)

    def at(hash=""):
        browser.open(page.as_uri() + hash)
        browser.wait("document.querySelector('#group article') !== null")
        return browser

    yield at
    assert browser.errors == []


def set_filter(browser, name, value):
    browser.run(
        f"(() => {{ const f = document.querySelector('#filter-{name}'); f.value = {value!r};"
        " for (const kind of ['input', 'change']) f.dispatchEvent(new Event(kind)); })()"
    )


def test_the_page_opens_on_the_newest_training_group(opened):
    page = opened()
    assert page.run(CHOSEN) == "17" and page.run(COUNT) == "4 of 6 groups"
    assert page.run("document.querySelectorAll('.completion').length") == 4
    page.wait("document.querySelectorAll('.charts svg path.smooth').length > 4")
    assert page.run("document.querySelectorAll('[data-metric=eval_total_reward] .interval').length") == 4
    assert page.run("location.hash") == ""


def test_completions_are_sorted_by_their_advantage(opened):
    page = opened("#step=1&id=17")
    shown = "[...document.querySelectorAll('.completion')].map(each => Number(each.dataset.sample))"
    assert page.run(shown) == [2, 3, 0, 1]
    assert page.run("document.querySelector('.completion header b').textContent") == "+0.25"
    assert page.run("document.querySelector('[data-sample=\"2\"] .answer').textContent") == "✓ (2)"
    assert page.run("document.querySelector('[data-sample=\"0\"] .missing').textContent") == "(2) insert the fan"


def test_filters_and_jumps_select_groups(opened):
    page = opened()
    for name, value, first in (("split", "eval", "held"), ("step", "1", "17"), ("q", "SCAN", "18")):
        set_filter(page, name, value)
        page.wait(f"{COUNT} === '2 of 6 groups' && {CHOSEN} === '{first}'")
        page.run("document.querySelector('#clear').click()")
        page.wait(f"{COUNT} === '6 of 6 groups'")
    shown = "[...document.querySelectorAll('#list .id')].map(each => each.textContent).join()"
    for jump, ids in (("equal", "18,18"), ("improved", "18,18,17,17")):
        page.run(f"document.querySelector('[data-jump={jump}]').click()")
        page.wait(f"{shown} === '{ids}'")


def test_column_heads_sort_the_list(opened):
    page = opened()
    shown = "[...document.querySelectorAll('#list .id')].map(each => each.textContent).join()"
    head = "document.querySelector('[data-sort=reward]')"
    for ids, way in (("18,17,17,18", "▲"), ("18,17,17,18", "▼"), ("17,18,17,18", "")):
        page.run(f"{head}.click()")
        page.wait(f"{shown} === '{ids}' && {head}.dataset.way === '{way}'")
    assert page.run("document.querySelector('#list .signs').textContent") == "equal rewardssame text"
    assert opened("#f_sort=-step&f_split=train").run(shown).startswith("17,18")


def test_curves_can_be_hidden_smoothed_drawn_over_hours_and_saved(opened):
    page = opened()
    lines = "document.querySelectorAll('[data-metric=\"reward/total\"] path.smooth').length"
    page.wait(f"{lines} === 2")
    page.run("document.querySelector('.toggle').click()")
    page.wait(f"{lines} === 1")
    axis = "[...document.querySelectorAll('[data-metric=\"reward/total\"] .axis')].map(each => each.textContent).join()"
    assert page.run(axis) == "reward,step"
    page.run("(s => { s.value = 'hours'; s.dispatchEvent(new Event('change')); })(document.querySelector('#axis'))")
    page.wait(f"{axis} === 'reward,hours of training'")
    assert page.run("smoothed([1, 0, null, 1], 1)") == pytest.approx([1, 1 / 3, 1 / 3, 5 / 7])  # (1/4 + 1) / (7/4)
    flat = "scales([1, 2, 3], [0.1, 0.09999999999999999], 300).ticks.length"  # a constant, and its rounded mean
    assert 1 < page.run(flat) < 9
    assert page.run("hoursAt({steps: [0, 10], hours: [0, 2]}, 5)") == 1
    keep = "blob.text().then((text) => (window.saved = text))"
    page.run(f"(own => {{ URL.createObjectURL = blob => ({keep}, own(blob)); }})(URL.createObjectURL.bind(URL)), true")
    page.run("document.querySelector('[data-metric=\"reward/total\"] .csv').click()")
    assert page.wait("window.saved").splitlines()[:2] == ["run,step,value,ci95", '"first",1,0.25,']


def test_answers_are_compared_part_by_part(opened):
    page = opened()
    said = lambda answer, truth: page.run(
        f"[...answerView({{answer: {answer!r}}}, {truth!r}).children].map(e => `${{e.className}} ${{e.textContent}}`)"
    )
    fan = said("(2) a fan, (04) lid", "(2) insert the fan (3) screw")
    assert fan == ["right ✓ (2) a fan", "wrong ✗ (04) lid", "missing (3) screw"]
    assert said("Left,  go  up.", "go up; left") == ["right ✓ Left", "right ✓ go up."]
    assert said("", "12") == ["wrong an empty answer", "missing 12"]
    assert said("steps: (1) a (2)", "(1)")[0] == "right ✓ (1) a"


def test_a_link_names_a_group_and_keeps_the_filters(opened):
    page = opened("#step=1&id=18")
    assert page.run(CHOSEN) == "18" and "step 1" in page.run("document.querySelector('.title').textContent")
    set_filter(page, "data", "more")
    page.wait(f"{COUNT} === '2 of 6 groups'")
    link = page.run("location.hash")
    assert link == "#run=0&step=2&id=18&f_data=more"
    assert opened(link).run(COUNT) == "2 of 6 groups"
    page = opened("#run=1&step=2&id=17&f_data=sop")
    set_filter(page, "run", "0")
    page.wait("location.hash.startsWith('#run=0&')")
    assert page.run(COUNT) == "2 of 6 groups" and page.run("document.querySelector('#filter-data').value") == "sop"
    assert opened("#run=1&step=2&id=held").run("document.querySelector('#filter-run').value") == "1"
    assert opened("#id=held&split=eval").run(CHOSEN) == "held"
    assert "names no group" in opened("#step=9&id=nobody").run(COUNT)


def test_keys_move_between_groups_and_steps(opened):
    page = opened("#step=2&id=17&f_split=train")
    page.press("j")
    page.wait(f"{CHOSEN} === '18'")
    page.press("[")
    page.wait("location.hash.includes('step=1&id=18')")
    page.press("]")
    page.wait("location.hash.includes('step=2&id=18')")
    page.press("k")
    page.wait(f"{CHOSEN} === '17'")
    page.press("/")
    page.wait("document.activeElement.id === 'filter-q'")
    page.press("j")  # is a letter there
    assert page.run("document.querySelector('#filter-q').value") == "j"


def test_a_list_with_the_focus_is_moved_through_by_arrow_keys(opened):
    page = opened("#f_split=train")
    page.run("document.querySelector('#list').focus()")
    ids = "[...document.querySelectorAll('#list li')].map(each => each.getAttribute('aria-selected')).join()"
    for key, chosen, step in (("ArrowDown", "18", 2), ("End", "18", 1), ("ArrowUp", "17", 1), ("Home", "17", 2)):
        page.press(key)
        page.wait(f"location.hash.includes('step={step}&id={chosen}')")
    assert page.run(ids) == "true,false,false,false"
    page.press("Enter")
    assert page.run("document.activeElement.id") == "group"


def test_the_focus_stays_with_a_record_whose_history_is_walked(opened):
    page = opened("#step=2&id=17")
    page.run("document.querySelector('.history button').focus()")
    page.press("Enter")
    page.wait("location.hash.includes('step=1&id=17') && document.activeElement.className === 'on'")
    assert page.run("document.activeElement.textContent").startswith("1: ")


def test_a_search_begins_where_the_filters_are_folded(opened, browser):
    browser.show(390, 844)
    page = opened()
    assert not page.run("document.querySelector('.bar').open")
    page.press("/")
    page.wait("document.activeElement.id === 'filter-q'")


def test_a_run_without_completions_has_no_filters(browser, make_run, tmp_path):
    browser.errors.clear()
    browser.show(1280)
    browser.open(make_report([make_run(rollouts=[])], tmp_path / "report").page.as_uri())
    browser.wait(f"{COUNT} === 'The run has written no completions yet.'")
    fields = "[...document.querySelectorAll('#browser :is(input, select, button)')]"
    assert browser.run(f"{fields}.filter(each => each.checkVisibility()).length") == 0
    assert browser.errors == []


def test_a_long_name_of_a_run_keeps_to_the_window(browser, make_run, tmp_path):
    runs = [make_run("first"), make_run("second-" + "long" * 30), make_run("third")]
    for name, width, some in (("two", 1280, runs[:2]), ("three", 390, runs)):
        browser.show(width, 844)
        browser.open(make_report(some, tmp_path / name).page.as_uri())
        browser.wait("document.querySelector('#group article') !== null")
        browser.wait(f"document.documentElement.scrollWidth === {width}")
        assert browser.run("document.querySelectorAll('.toggle')[1].title") == f"show or hide {runs[1].name}"


def test_tags_are_as_legible_as_other_texts(opened, browser):
    browser.show(1280)
    page = opened()
    style = "(s => [s.opacity, s.color])(getComputedStyle(document.querySelector('{}')))"
    assert page.run(style.format(".tag")) == ["1", page.run(style.format(".told"))[1]]


def test_the_page_fits_a_phone_in_light_and_dark(opened, browser):
    for dark, ground in ((False, "rgb(246, 247, 249)"), (True, "rgb(16, 20, 25)")):
        browser.show(390, 844, dark)
        page = opened()
        page.wait("document.documentElement.scrollWidth === 390")  # a new size of the window takes a moment
        assert page.run("getComputedStyle(document.body).backgroundColor") == ground


def test_files_that_were_written_again_are_not_taken_for_the_earlier_ones(browser, make_run, tmp_path, monkeypatch):
    monkeypatch.setattr("qwenvl.run_log.report.pages.PAGE_BYTES", 1)  # each group has a file
    again = "the files of this page were written again: load it again"
    rollouts = [each for step in (1, 2, 3) for each in group([0.0, 1.0], [f"a {step}", "b"], step=step)]
    one, two = make_run("one", rollouts=rollouts[:4]), make_run("two")
    folder = make_report([one, two], tmp_path / "report").folder
    browser.show(1280)
    browser.open((folder / "index.html").as_uri())
    browser.wait("document.querySelector('#group article') !== null")
    make_report([make_run("longer", rollouts=rollouts), two], folder)  # the first groups are as they were
    browser.run("report.list.choose(0)")
    browser.wait("document.querySelector('#group').textContent.includes('a 1')")
    make_report([make_run("other", rollouts=rollouts[2:]), one], folder)
    browser.run("report.pages.clear(), report.list.choose(1)")
    browser.wait(f"document.querySelector('#group .bad')?.textContent === '{again}'")
    set_filter(browser, "q", "scan")
    browser.wait(f"document.querySelector('#count .bad')?.textContent === '{again}'")
    set_filter(browser, "run", "1")  # another run has this number now
    browser.wait(f"document.querySelector('#count .bad')?.textContent === '{again}' && !report.list.index")


def test_a_folder_that_lost_a_file_says_so(browser, make_run, tmp_path):
    folder = make_report([make_run()], tmp_path / "report").folder
    (folder / "data" / "run-0" / "page-0.js").unlink()
    browser.show(1280)
    browser.open((folder / "index.html").as_uri())
    browser.wait("document.querySelector('#group .bad')?.textContent === \"data/run-0/page-0.js can't be loaded\"")
    set_filter(browser, "q", "scan")
    browser.wait("document.querySelector('#count .bad')?.textContent === \"data/run-0/page-0.js can't be loaded\"")
    (folder / "data" / "run-0" / "index.js").unlink()
    browser.open((folder / "index.html").as_uri())
    browser.wait("document.querySelector('#count .bad')?.textContent.includes('is the whole folder')")


class Quiet(SimpleHTTPRequestHandler):
    """As ``python -m http.server``, without a line for each request."""

    def log_message(self, *_) -> None:
        pass


FOREIGN = """<!doctype html>
<script>
  var told = [];
  var report = new Proxy({}, { get: (_, name) => (...data) => told.push(name) });
</script>
"""


def test_pages_of_other_sites_are_told_nothing(browser, make_run, tmp_path):
    """A page may load the scripts of any server, also those of a report that somebody serves on this machine."""
    report = make_report([make_run("first")], tmp_path / "report")
    scripts = sorted(str(path.relative_to(report.folder)) for path in report.folder.glob("data/**/*.js"))
    assert len(scripts) == 4
    (tmp_path / "foreign").mkdir()
    with serving(report.folder) as port, serving(tmp_path / "foreign") as foreign_port:
        own = f"http://127.0.0.1:{port}"
        tags = [f'<script src="{own}/{name}"></script>' for name in scripts]
        (tmp_path / "foreign" / "index.html").write_text(FOREIGN + "\n".join(tags))
        browser.open(f"http://localhost:{foreign_port}/index.html")
        browser.wait("document.readyState === 'complete'")
        loaded = "performance.getEntriesByType('resource').filter((each) => each.name.endsWith('.js')).length"
        assert browser.run(loaded) == 4 and browser.run("told") == []
        browser.open(f"{own}/index.html")
        browser.wait("document.querySelector('#group article') !== null")
        assert browser.run(COUNT) == "4 of 6 groups"


@contextmanager
def serving(folder):
    """The port of a server of the files of a folder."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()
