"""The page of an evaluation: its tables, and each record with the answers of all models side by side."""

import json
import re

import pytest

from qwenvl.commands.report import main
from qwenvl.inspection.run_report import RewardsReading
from qwenvl.run_log.log import EvaluationLog, EvaluationSample, RunLogError
from qwenvl.run_log.report.evaluation import headline, write_evaluation
from qwenvl.run_log.report.write import ReportError
from qwenvl.types import FrameInfo

CONTROLS = ["none", "blank", "other_clip"]
ANSWERS = {  # of the models "base" and "tuned", for each control, in the records 0 to 2
    "none": [("(1)", "(2) fan"), ("(2)", "(1)"), ("", "(2) fan")],
    "blank": [("(1)", "(1)"), ("(1)", "(1)"), ("(1)", "(2) fan")],
    "other_clip": [("(1)", "(3)"), ("(1)", "(3)"), ("(1)", "(3)")],
}
CHOSEN = "document.querySelector('#group article .title')?.firstChild.textContent"
IDS = "[...document.querySelectorAll('#list .id')].map(each => each.textContent)"


def score(mean):
    return {"mean": mean, "low": mean - 0.1, "high": mean + 0.1, "n": 3}


def scores(mean):
    return {"scores": {"accuracy": score(mean), "total": score(mean)}, "records": 3}


def numbers(model, control, mean):
    shares = {"no_answer": score(0.25), "truncated": None if control == "other_clip" else score(0)}
    return {"model": model, "control": control, "tokens": 7.0, "pass_at_k": {"1": score(0.5)}, **scores(mean), **shares}


def facts(ended="2026-11-22 09:00:00+00:00"):
    done = ended is not None
    drop = {"model": "tuned", "scores": {"accuracy": score(0.25), "total": None}, "no_answer": score(0.5)}
    drops = [
        {**drop, "control": "blank", "comparable": True, "answered": {"records": 3, "scores": {}}},
        {**drop, "control": "other_clip", "comparable": False, "answered": scores(0.375) | {"records": 2}},
    ]
    difference = {"before": "base", "after": "tuned", "control": "none", "better": 1, "equal": 1, "worse": 1}
    return {
        "command": "qwenvl evaluate base tuned held <out>.json",
        "models": [
            {"name": name, "path": f"runs/{name}", "base": None, "revision": None, "family": "qwen3_vl"}
            | {"dtype": "bfloat16", "positions": "timestamp", "weights": "0123456789"}
            | {"template_hash": "", "prompts_hash": "", "trained_otherwise": []}
            for name in ("base", "tuned")
        ],
        "controls": CONTROLS,
        "protocol": {
            "data": {"dataset_use": "held_out", "records": 3, "of": 5, "clusters": 3, "cluster_by": "clips and images"},
            "decoding": {"method": "greedy", "samples": 1, "max_new_tokens": 64, "stop_strings": []},
            "frames": {"video_fps": None, "base_interval": 2.0, "video_min_frames": 4, "video_max_frames": 8},
            "prompts": {"video_min_frame_pixels": 3136, "video_max_frame_pixels": 25088},
            "decoder": "pyav",
            "rewards": {"format": 0.3, "accuracy": 0.7},
            "passes": {"by": "accuracy", "at": 1.0},
            "seed": 42,
            "settings": {"seed": 42},
            "versions": {"torch": "2.15.0"},
        },
        "settings_of": "runs/tuned",
        "began": "2026-11-22 08:00:00",
        "left_out": [],
        "ended": ended,
        "numbers": [numbers(m, c, 0.5) for m in ("base", "tuned") for c in CONTROLS] if done else [],
        "drops": drops if done else [],
        "differences": [{**difference, **scores(0.125)}] if done else [],
    }


def samples():
    for control, records in ANSWERS.items():
        for doc, answers in enumerate(records):
            for model, answer in zip(("base", "tuned"), answers, strict=True):
                right = float("(2)" in answer)
                clip = FrameInfo(f"clips/{(doc + (control == 'other_clip')) % 3}.mp4", (0, 8), (0.0, 1.0), (0, 1))
                yield EvaluationSample(
                    model=model,
                    control=control,
                    doc_id=doc,
                    sample=0,
                    record_id=f"clip-{doc}",
                    where=f"held.json[{doc}]" if doc < 2 else "more.json[0]",
                    dataset="",
                    cluster=str(doc),
                    prompt=({"role": "user", "text": "<video>\nWhich step?"},),
                    target="<answer>(2) fan</answer>",
                    completion=f"<answer>{answer}</answer>" if answer else "I do not know",
                    answer=answer,
                    tokens=5,
                    prompt_tokens=40,
                    finish_reason="length" if (model, doc) == ("tuned", 1) else "stop",
                    rewards={"accuracy": right},
                    total=right,
                    clips=(clip,),
                )


@pytest.fixture
def evaluation(tmp_path):
    """A folder as ``qwenvl evaluate`` writes it."""
    log = EvaluationLog(tmp_path / "evaluation")
    log.begin(facts())
    log.log(samples())
    return log.folder


def test_the_page_has_the_tables_of_the_evaluation(evaluation, tmp_path):
    page = write_evaluation(evaluation, tmp_path / "out", RewardsReading()).page.read_text()
    rows = [" ".join(re.sub(r"<[^>]+>", " ", row).split()) for row in re.findall(r"<tr>.*?</tr>", page)]
    assert "base as it is 0.500 [0.400, 0.600] 0.500 [0.400, 0.600] 25.0 % 0.0 % 7" in rows
    assert "tuned another clip * 0.500 [0.400, 0.600] 0.500 [0.400, 0.600] 25.0 % – 7" in rows
    assert "tuned − base as it is +0.125 [+0.025, +0.225] +0.125 [+0.025, +0.225] 1 1 1" in rows
    assert "tuned grey frames +0.250 [+0.150, +0.350] –" in rows
    assert "tuned another clip * +0.250 [+0.150, +0.350] –" in rows
    assert "tuned, another clip: not comparable, 50.0 % of the completions have no answer." in page
    assert ">&lt;out&gt;.json<" in page and "<out>" not in page and '<code title="0123456789">01234567</code>' in page
    assert page.count('class="point run-0" style="left:50.00%"') == 3  # of three controls, from 0 to 1
    assert "<dd>one every 2 s, 4 to 8 of a clip, decoded by pyav</dd>" in page
    # the same evaluation gives the same files
    before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    write_evaluation(evaluation, tmp_path / "out", RewardsReading())
    assert {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()} == before


def test_the_headline_puts_the_differences_into_words():
    assert list(headline(facts())) == [
        "tuned answers better than base: accuracy +0.125 [+0.025, +0.225] on the same 3 records.",
        "tuned uses what it is shown: with grey frames accuracy changes by -0.250 [-0.350, -0.150].",
    ]
    with_score = facts()
    with_score["differences"][0]["equal"] = 0  # the score that decides has no value for the third record
    assert next(headline(with_score)).endswith("on the same 2 records.")
    unclear = facts() | {"drops": []}
    unclear["differences"][0]["scores"] = scores(0.05)["scores"]
    assert list(headline(unclear)) == [
        "tuned and base do not differ measurably: accuracy +0.050 [-0.050, +0.150] on the same 3 records."
    ]
    more = {"model": "tuned", "control": "evidence", "comparable": True, "scores": {"accuracy": score(-0.3)}}
    assert list(headline(facts() | {"drops": [more], "differences": []})) == [
        "Looking at the right span could bring tuned about +0.300 [+0.200, +0.400] accuracy.",
        "tuned: accuracy 0.500 [0.400, 0.600] on 3 records.",
    ]
    alone = facts() | {"drops": [], "differences": []}
    assert list(headline(alone)) == ["tuned: accuracy 0.500 [0.400, 0.600] on 3 records."]
    assert list(headline(facts(ended=None))) == []


def test_the_headline_concludes_nothing_from_models_without_an_answer():
    found = facts()
    for row in found["numbers"]:
        row["no_answer"], row["scores"]["accuracy"] = score(0) | {"mean": 1.0}, score(0)
    assert list(headline(found)) == [
        "base has no answer on any record: its accuracy says nothing about what it sees.",
        "tuned has no answer on any record: its accuracy says nothing about what it sees.",
    ]
    unmoved = facts()
    unmoved["drops"][0]["scores"]["accuracy"] = {"mean": 0.0, "low": 0.0, "high": 0.0, "n": 3}
    assert "accuracy changes by 0.000 [0.000, 0.000]." in list(headline(unmoved))[1]


def test_the_page_does_not_compare_a_model_without_an_answer_with_itself(evaluation, tmp_path):
    found = json.loads((evaluation / "evaluation.json").read_text())
    for row in found["numbers"]:
        if row["model"] == "tuned":
            row["no_answer"], row["scores"]["accuracy"] = score(0) | {"mean": 1.0}, score(0)
    (evaluation / "evaluation.json").write_text(json.dumps(found))
    page = write_evaluation(evaluation, tmp_path / "out", RewardsReading()).page
    assert "Does it look?" not in page.read_text() and "tuned has no answer on any record" in page.read_text()
    index = (tmp_path / "out" / "data" / "run-0" / "index.js").read_text()
    assert '"silent":["tuned"]' in index.replace(": ", ":")


def test_the_page_of_an_unfinished_evaluation_shows_the_records_it_has(evaluation, tmp_path):
    EvaluationLog(evaluation).write(facts(ended=None))
    written = write_evaluation(evaluation, tmp_path / "out", RewardsReading())
    assert "The evaluation has not ended: the same command continues it" in written.page.read_text()
    assert [strip.path for strip in written.strips] == ["clips/0.mp4", "clips/1.mp4", "clips/2.mp4"]


def test_folders_of_other_files_and_damaged_evaluations_are_refused(evaluation, tmp_path, capsys):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("")
    with pytest.raises(ReportError, match="holds something that is no report"):
        write_evaluation(evaluation, tmp_path / "mine", RewardsReading())
    (evaluation / "samples.jsonl").write_text("")
    with pytest.raises(ReportError, match="has written no completion yet"):
        write_evaluation(evaluation, tmp_path / "out", RewardsReading())
    (evaluation / "samples.jsonl").write_text("{}\n{}\n")
    with pytest.raises(RunLogError, match=r"samples.jsonl:1: no completion"):
        write_evaluation(evaluation, tmp_path / "out", RewardsReading())
    (evaluation / "evaluation.json").write_text('{"format": 1, "protocol": {}}')
    with pytest.raises(ReportError, match=r"evaluation\.json has no 'controls'; no evaluation of this"):
        write_evaluation(evaluation, tmp_path / "out", RewardsReading())
    assert main([str(evaluation), str(tmp_path)]) == 2
    assert "an evaluation has a page of its own" in capsys.readouterr().err


@pytest.fixture
def opened(browser, evaluation, tmp_path):
    """``opened(hash)``: the page at an address. It must have no errors to the end."""
    assert main([str(evaluation), "--out", str(tmp_path / "out"), "--pictures", "0"]) == 0
    browser.errors.clear()
    browser.show(1280)

    def at(hash=""):
        browser.open((tmp_path / "out" / "index.html").as_uri() + hash)
        browser.wait("document.querySelector('#group article') !== null")
        return browser

    yield at
    assert browser.errors == []


def test_the_models_answers_stand_side_by_side(opened):
    page = opened()
    assert page.run(CHOSEN) == "clip-0" and page.run("location.hash") == ""
    assert page.run("[...document.querySelectorAll('.models h4')].map(e => e.textContent)") == [
        "base 0.000",
        "tuned 1.000",
    ]
    tops = page.run("[...document.querySelectorAll('.models > div')].map(e => e.getBoundingClientRect().top)")
    assert tops[0] == tops[1]
    assert page.run("document.querySelector('[data-model=tuned] .answer').textContent") == "✓ (2) fan"
    assert page.run("document.querySelector('[data-model=base] .missing').textContent") == "(2) fan"
    page.show(390)
    page.open(page.run("location.href"))
    page.wait("document.querySelector('#group article') !== null")
    assert page.run("document.documentElement.scrollWidth <= innerWidth")


def test_jumps_filters_and_keys_select_records(opened):
    page = opened()
    shown = f"{IDS}.join()"
    # with grey frames it is as good on two records
    for jump, ids in (("gained", "clip-0,clip-2"), ("blind_blank", "clip-2,clip-1"), ("unread", "clip-2")):
        page.run(f"document.querySelector('[data-jump={jump}]').click()")
        page.wait(f"{shown} === '{ids}'")
    page = opened()
    signs = page.run("document.querySelector('#list li:nth-child(3) .signs').textContent")
    assert signs == "no answeras good with grey frames"
    page.run("document.querySelector('[data-sort=tuned]').click()")
    page.wait(f"{shown} === 'clip-1,clip-0,clip-2'")
    page.run("report.list.change({sort: ''})")
    for name, value, ids in (
        ("record", "IP-1", "clip-1"),
        ("q", "do not KNOW", "clip-2"),
        ("data", "1", "clip-2"),
    ):
        page.run(f"document.querySelector('#filter-{name}').value = '{value}'")
        for kind in ("input", "change"):
            page.run(f"document.querySelector('#filter-{name}').dispatchEvent(new Event('{kind}'))")
        page.wait(f"{shown} === '{ids}'")
        page.run("report.list.change({data: '', record: '', q: ''})")
        page.wait(f"{IDS}.length === 3")
    page.press("j")
    page.wait(f"{CHOSEN} === 'clip-1'")
    page.press("c")
    page.wait("location.hash === '#id=clip-1&control=blank'")
    assert page.run("document.querySelector('.warning').textContent") == "Every frame and image was grey."
    assert page.run("document.querySelectorAll('.clip').length") == 0


def test_an_address_names_a_record_and_a_control(opened):
    page = opened("#id=clip-2&control=other_clip")
    assert page.run(CHOSEN) == "clip-2"
    assert page.run("document.querySelector('.clip b').textContent") == "0.mp4"
    assert page.run("document.querySelector('[data-model=tuned] .answer').textContent") == "✗ (3)(2) fan"
    page = opened("#id=none")
    assert "is called none" in page.run("document.querySelector('#count').textContent")
