"""Timelines on the pages of a run and of an evaluation: bars over the film of the clip, and spans in words."""

import pytest
from PIL import Image

from qwenvl.inspection.run_report import RewardsReading, make_report
from qwenvl.run_log.log import EvaluationLog
from qwenvl.run_log.report.evaluation import write_evaluation
from qwenvl.run_log.report.pages import Strip
from qwenvl.run_log.report.timelines import MOST_SPANS, answer_as_shown, axis_length, solution_as_shown
from qwenvl.run_log.report.write import write_pictures
from qwenvl.timeline import TimedStep
from qwenvl.types import FrameInfo
from tests.run_log.runs import rollout
from tests.run_log.test_evaluation import facts, samples

LISTED = "(1) take the lid\n(2) insert the fan\n(3) fasten the screw"
PROMPT = ({"role": "user", "text": f"<video>\nWhich, and when?\n{LISTED}"},)
SOLUTION = "<answer>0.0-3.5 (2) insert the fan\n4.0-10.0 (3) fasten the screw</answer>"
CLIP = FrameInfo("/gone/17.mp4", (0, 40, 80, 120), (0.0, 4.0, 8.0, 12.0), None, 4.0, duration=12.5)
NEAR = "<answer>0-3 (2); 6-8 fasten the screw; 3-5 (1)</answer>"
BARS = """[...document.querySelectorAll('#group .lanes')].map(bar =>
    [...bar.children].map(each => each.textContent + (each.classList.contains('lost') ? ' lost' : '')).join())"""
REWARDS = {"format": 1.0, "timeline_iou": 0.5}
READING = RewardsReading()


def timed(text, sample=0, **values):
    shown = {"prompt": PROMPT, "solution": SOLUTION, "clips": (CLIP,), "rewards": REWARDS, "total": 0.5}
    return rollout(completion=text, sample=sample, **shown | values)


def test_spans_are_read_as_the_rewards_read_them():
    read = READING.timelines(PROMPT, NEAR, SOLUTION, REWARDS)
    shown = answer_as_shown(read)
    # 3 of 3.5 s are common; 2 of 6 s; the lid is no step of the solution.
    assert [(each["number"], each["iou"], each["found"]) for each in shown["spans"]] == [
        (2, pytest.approx(6 / 7, abs=1e-3), True),
        (1, 0.0, False),
        (3, pytest.approx(1 / 3, abs=1e-3), False),
    ]
    assert shown["missed"] == [1] and shown["more"] == 0
    solution = solution_as_shown(read, [CLIP])
    assert solution["length"] == 12.5 and solution["spans"][0] == {
        "start": 0.0,
        "end": 3.5,
        "number": 2,
        "name": "insert the fan",
    }


def test_solution_and_rewards_decide_whether_a_record_asks_for_a_timeline():
    assert READING.timelines(PROMPT, NEAR, SOLUTION, {"accuracy": 1.0})  # by the numbers of all spans
    named = "<answer>0-2 someone sits down</answer>"
    assert READING.timelines((), named, named, {"temporal_iou": 1.0}) is None
    assert READING.timelines((), named, named, {"segment_f1": 1.0}) is not None
    assert READING.timelines(PROMPT, NEAR, "<answer>(2) insert the fan</answer>", {"accuracy": 1.0}) is None
    assert solution_as_shown(None, [CLIP]) is None and answer_as_shown(None) is None


def test_an_answer_of_very_many_spans_does_not_fill_the_page():
    text = "; ".join(f"{n}-{n + 1} (2)" for n in range(0, 1000, 2))
    shown = answer_as_shown(READING.timelines(PROMPT, f"<answer>{text}</answer>", SOLUTION, REWARDS))
    assert len(shown["spans"]) == MOST_SPANS and shown["more"] == 500 - MOST_SPANS


def test_the_axis_has_the_length_of_the_clip():
    spans = [TimedStep(0.0, 14.0, 1)]
    assert axis_length(spans, [CLIP]) == 14.0 and axis_length([], [CLIP]) == 12.5
    assert axis_length(spans, [CLIP, CLIP]) == 14.0 and axis_length([], []) == 0.0


@pytest.fixture
def report(make_run, tmp_path):
    """A report of two steps of one record, with pictures of its clip."""
    rows = [timed(NEAR), timed("<answer>I see</answer>", 1), timed("no answer block", 2, total=0.0), timed(NEAR, 3)]
    written = make_report([make_run(rollouts=rows)], tmp_path / "report")
    (written.folder / "pictures").mkdir()
    key = Strip(CLIP.path, CLIP.indices).key
    Image.new("RGB", (1280, 240), (90, 120, 60)).save(written.folder / "pictures" / f"{key}.jpg")
    write_pictures(written.folder, {key: {"columns": 4, "rows": 1, "ratio": 4 / 3}})
    return written.page


def test_a_group_shows_a_bar_for_the_solution_and_for_each_answer(report, browser):
    browser.errors.clear()
    for width, dark in ((1280, False), (390, False), (390, True)):
        browser.show(width, dark=dark)
        browser.open(report.as_uri())
        browser.wait("document.querySelectorAll('#group .film i').length > 3")
        # The solution; twice the near answer, folded; an answer without spans; a completion without an answer.
        assert browser.run(BARS) == ["2,3", "2,1 lost,3 lost", "", ""]
        titles = browser.run("[...document.querySelectorAll('.bar-of-spans p')].map(each => each.textContent)")
        assert titles[:2] == ["solution", "2 × reward 0.5, advantage 0.00"]
        browser.wait(f"document.documentElement.scrollWidth === {width}")
        # Spans lie at their seconds: 4 to 10 of 12.5 s.
        place = "(span => [span.offsetLeft, span.offsetWidth])(document.querySelectorAll('#group .lanes .span')[1])"
        whole = browser.run("document.querySelector('#group .lanes').offsetWidth")
        assert browser.run(place) == pytest.approx([0.32 * whole, 0.48 * whole], abs=1.5)
    said = browser.run("[...document.querySelector('.answer.spans').children].map(e => e.textContent)")
    assert said[0] == "✓ 0 to 3 s (2), IoU 0.86" and said[-1] == "4 to 10 s (3) fasten the screw"
    assert browser.run("document.querySelectorAll('#group .lanes')[2].getAttribute('aria-label')") == "no span"
    assert browser.errors == []


def test_an_evaluation_shows_a_bar_for_each_model(tmp_path, browser):
    log = EvaluationLog(tmp_path / "evaluation")
    log.begin(facts())
    answers = {"base": "I see", "tuned": NEAR.removeprefix("<answer>").removesuffix("</answer>")}
    for each in samples():
        answer = answers[each.model]
        timeline = {"prompt": PROMPT, "target": SOLUTION, "clips": (CLIP,), "rewards": REWARDS, "answer": answer}
        log.log([type(each)(**{**vars(each), **timeline, "completion": f"<answer>{answer}</answer>"})])
    page = write_evaluation(log.folder, tmp_path / "out", READING).page
    browser.errors.clear()
    browser.show(1280)
    browser.open(page.as_uri())
    browser.wait("document.querySelector('#group article') !== null")
    assert browser.run(BARS) == ["2,3", "", "2,1 lost,3 lost"]
    titles = browser.run("[...document.querySelectorAll('.bar-of-spans p')].map(each => each.textContent)")
    assert [title.partition(":")[0] for title in titles] == ["solution", "base", "tuned"]
    browser.press("c")  # grey frames: their film is not shown
    browser.wait("document.querySelector('#filter-control').value === 'blank'")
    browser.wait("document.querySelectorAll('#group .film').length === 0")
    assert browser.run(BARS) == ["2,3", "", "2,1 lost,3 lost"]
    assert browser.errors == []


def test_long_names_keep_their_ends(report, browser):
    browser.show(1280)
    browser.open(report.as_uri())
    name = "05_B01_BN01_ASSY07_0_X1504ZA_20240927074539_v_1.mp4"
    assert browser.run(f"shortName({name!r})") == "05_B01_B…7074539_v_1.mp4"
    assert browser.run("shortName('heldout-0003')") == "heldout-0003"


def test_spans_that_overlap_lie_below_each_other(report, browser):
    browser.show(1280)
    browser.open(report.as_uri())
    spans = "[[0, 4], [3, 6], [4, 5], [5, 9], [0, 1]].map(([start, end]) => ({start, end}))"
    assert browser.run(f"lanesOf({spans})") == [1, 0, 1, 1, 0]
    colors = "[1, 9, 0, 8].map(number => stepColor({number}))"
    assert browser.run(colors) == ["step-0", "step-0", "step-7", "step-7"]
    assert browser.run("stepColor({number: null, name: 'a'}) === stepColor({number: null, name: 'a'})")
