"""The folder of a report: its data, its summary, and that it is a function of the run alone."""

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from qwenvl.commands.report import main
from qwenvl.inspection.run_report import make_report
from qwenvl.run_log.log import RunLog, RunLogError
from qwenvl.run_log.report import pages
from qwenvl.run_log.report.write import changed_settings, facts_of
from qwenvl.run_log.run import read_runs
from qwenvl.types import FrameInfo
from tests.run_log.runs import SCAN, group, rollout


def told(path: Path) -> Iterator:
    """The arguments with which a data file calls the page."""
    guard = r'if \(document\.documentElement\.dataset\.key === "[0-9a-f]{32}"\)'
    call = re.fullmatch(rf"{guard} report\.\w+\((.*)\);\n", path.read_text(), flags=re.DOTALL)
    yield from json.loads(f"[{call[1]}]")


@pytest.fixture
def report(make_run, capsys):
    """The folder of a report of the run ``sop``."""
    run = make_run()
    assert main([str(run)]) == 0 and capsys.readouterr().out.startswith(f"wrote {run / 'report' / 'index.html'}; open")
    return run / "report"


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_same_run_gives_the_same_bytes(report, make_run):
    before = files_of(report)
    assert main([str(report.parent)]) == 0
    assert files_of(report) == before


def test_the_page_loads_nothing_from_a_network(report):
    for name, data in files_of(report).items():
        urls = set(re.findall(rb"https?://[^\"' )]+", data)) - {b"http://www.w3.org/2000/svg"}
        assert not urls, f"{name}: {urls}"


def test_the_index_has_a_row_for_each_group(report):
    number, index = told(report / "data" / "run-0" / "index.js")
    columns = index["columns"]
    assert number == 0
    assert [index["splits"][n] for n in columns["split"]] == ["eval", "train", "train", "train", "train", "eval"]
    assert columns["step"] == [0, 1, 1, 2, 2, 2] and columns["size"] == [1, 4, 4, 4, 4, 1]
    assert columns["mean"] == [0.4, 0.25, 0, 0.875, 1, 0.6]
    assert (columns["low"][1], columns["high"][1]) == (0, 0.5)
    assert index["records"] == [
        ["held", "data/held.json[0]", 0],
        ["17", "data/sop.json[17]", 1],
        ["18", "data/more.jsonl:3", 2],
    ]
    assert index["datasets"] == ["held", "sop", "more"] and index["rewards"] == ["format", "accuracy"]
    assert index["parts"]["accuracy"] == [1, 0.25, 0, 0.875, 1, 1]
    assert {len(column) for column in columns.values()} == {6}


def test_a_page_has_the_texts_and_the_answers(report):
    _, _, _, groups = told(report / "data" / "run-0" / "page-0.js")
    shown = groups[1]
    assert (shown["id"], shown["step"], shown["rewards"]) == ("17", 1, ["format", "accuracy"])
    assert shown["clips"][0]["times"] == [0, 1, 2] and shown["clips"][0]["segments"] == [0, 0, 1]
    wrong = shown["rows"][0]
    assert (wrong["answer"], shown["truth"]) == ("(0)", "(2) insert the fan")
    assert (wrong["total"], wrong["advantage"], wrong["end"], wrong["tokens"]) == (0, -0.25, "stop", 12)


def test_groups_are_spread_over_pages(make_run, monkeypatch):
    monkeypatch.setattr(pages, "PAGE_BYTES", 1000)
    run = make_run()
    folder = make_report([run], run / "report").folder / "data" / "run-0"
    _, index = told(folder / "index.js")
    columns = index["columns"]
    assert max(columns["page"]) > 1
    for n, (page, place) in enumerate(zip(columns["page"], columns["place"], strict=True)):
        _, number, versions, groups = told(folder / f"page-{page}.js")
        assert versions.split()[place] == columns["version"][n]
        assert number == page and groups[place]["step"] == columns["step"][n]
        assert groups[place]["id"] == index["records"][columns["record"][n]][0]
    monkeypatch.setattr(pages, "PAGE_BYTES", 10**6)
    make_report([run], run / "report")
    assert [path.name for path in folder.glob("page-*")] == ["page-0.js"], "pages of the earlier report are gone"


def test_texts_cannot_break_out_of_their_script(make_run):
    text = "</script><script>alert(1)</script>\u2028<answer>`${1}`</answer>"
    run = make_run(rollouts=group([0.0, 1.0], [text, text]))
    _, _, _, groups = told(make_report([run], run / "report").folder / "data" / "run-0" / "page-0.js")
    assert groups[0]["rows"][0]["text"] == text
    assert (run / "report" / "data" / "run-0" / "page-0.js").read_bytes().isascii()


def test_the_summary_has_the_numbers_of_the_page(report):
    facts = json.loads((report / "summary.json").read_text())
    [run] = facts["runs"]
    assert (run["run"], run["steps"], run["finished"], facts["differing_settings"]) == ("sop", 2, 2, {})
    evaluation = run["evaluations"]["eval"]
    assert evaluation["first"] == {"step": 0, "reward": 0.4, "ci95": 0.1, "n": 30}
    assert evaluation["last"] == evaluation["best"] == {"step": 2, "reward": 0.6, "ci95": 0.1, "n": 30}
    trend = {"first": 0.25, "last": 0.75, "change": 0.5, "ci95": None, "verdict": "short"}
    assert run["trends"]["reward/total"] == trend and run["seconds_per_step"] == {"time/sample_s": 3.0}
    counted = {"trained": 4, "dropped": 0, "completions": 16, "equal": 2, "truncated": 0, "suspected": 2}
    assert run["groups"] == counted


def test_the_seconds_of_a_phase_that_not_each_step_has_are_those_of_a_mean_step(make_run, tmp_path):
    """With ``--num_iterations 2`` every second step samples. The page has the same numbers."""
    rows = [
        (1, {"loss": 0.0, "time/sample_s": 4.0, "time/update_s": 1.0}),
        (2, {"loss": 0.0, "time/update_s": 1.0}),
    ]
    written = make_report([make_run(metrics=rows)], tmp_path / "out")
    seconds = {"time/sample_s": 2.0, "time/update_s": 1.0}
    assert written.summary["runs"][0]["seconds_per_step"] == seconds
    [curves] = told(written.folder / "data" / "curves.js")
    assert curves["phases"][0]["means"] == list(seconds.values())


def test_the_report_of_a_warm_up_has_its_held_out_loss_and_its_own_settings(make_run, tmp_path):
    rows = [(1, {"loss": 3.0, "eval_loss": 2.5}), (2, {"loss": 2.0, "eval_loss": 2.0})]
    written = make_report([make_run(metrics=rows, target_template="<answer>{solution}</answer>")], tmp_path / "out")
    trend = written.summary["runs"][0]["trends"]["eval_loss"]
    assert (trend["first"], trend["last"]) == (2.5, 2.0)
    page = (written.folder / "index.html").read_text()
    assert "--target_template" in page and "&lt;answer&gt;{solution}" in page
    [curves] = told(written.folder / "data" / "curves.js")
    [chart] = [each for charts in curves["sections"].values() for each in charts if each["metric"] == "eval_loss"]
    assert (chart["title"], chart["unit"]) == ("loss of held-out targets", "nats per token")


def test_dropped_groups_and_those_of_other_processes_are_counted(make_run, tmp_path):
    run = make_run(rollouts=[*group([0.0, 1.0]), *group([1.0, 1.0], dropped=True, **SCAN)])
    RunLog(run, rank=1, world_size=2).log_rollouts(group([0.0, 1.0], record_id="other", step=2))
    groups = make_report([run], tmp_path / "out").summary["runs"][0]["groups"]
    assert (groups["trained"], groups["dropped"], groups["equal"], groups["completions"]) == (2, 1, 0, 4)


def test_two_runs_are_laid_over_each_other(make_run, tmp_path):
    first = make_run("first", eval_steps=10)
    second = make_run("second", learning_rate=5e-6, metrics=[(1, {"loss": 0.0, "reward/total": 0.5})], finished=0)
    assert main([str(first), str(second), "--out", str(tmp_path / "both")]) == 0
    [curves] = told(tmp_path / "both" / "data" / "curves.js")
    assert curves["runs"] == ["first", "second"]
    [total] = [each for each in curves["sections"]["learning"] if each["metric"] == "reward/total"]
    assert [(each["run"], each["steps"], each["values"]) for each in total["curves"]] == [
        (0, [1, 2], [0.25, 0.75]),
        (1, [1], [0.5]),
    ]
    differing = json.loads((tmp_path / "both" / "summary.json").read_text())["differing_settings"]
    assert differing == {"learning_rate": [1e-6, 5e-6], "eval_steps": [10, None]}
    page = (tmp_path / "both" / "index.html").read_text()
    assert "<td>5e-06</td>" in page and "not finished" in page and "learning_rate" in page
    assert main([str(first), "--out", str(tmp_path / "both")]) == 0
    assert not (tmp_path / "both" / "data" / "run-1").exists()


def test_the_page_lists_model_data_versions_and_changed_settings(make_run, tmp_path):
    launch = {"command": "qwenvl train run.yaml", "started": "2026-11-21 09:12:44", "hardware": "8 CPU cores"}
    settings = {"model_name_or_path": "org/base", "dataset_use": "sop.json", "grpo_sample_size": 8, "grpo_beta": 0.04}
    run = make_run(**settings)
    RunLog(run).write_config(settings, launch)
    [read] = read_runs([run])
    rows = {name: values for name, values in facts_of([read])}
    assert (rows["model"], rows["training data"]) == (["org/base"], ["sop.json"])
    assert rows["versions"][0].startswith("python 3.")
    assert {name: rows[name] for name in launch} == {name: [value] for name, value in launch.items()}
    assert "held-out data" not in rows  # it has none
    assert changed_settings([read], {"grpo_sample_size": 4, "grpo_beta": 0.04}) == [("--grpo_sample_size", "4", ["8"])]
    page = make_report([run], tmp_path / "out").page.read_text()
    assert "8 CPU cores" in page and "<th><code>--grpo_sample_size</code></th><td>8</td>" in page


def test_the_settings_shown_were_set_or_differ_between_runs(make_run):
    defaults = {"grpo_sample_size": 4, "dataloader_num_workers": 0, "eval_steps": None, "learning_rate": 1e-6}
    resolved = {"dataloader_num_workers": 2, "eval_steps": 10}  # on this machine, by the run itself
    run = make_run()
    settings = {"grpo_sample_size": 8, **resolved, "learning_rate": 1e-6, "video_decoder": "pyav"}
    RunLog(run).write_config(settings, set_by_user={"grpo_sample_size", "learning_rate"})
    [read] = read_runs([run])
    assert read.set_by_user == ["grpo_sample_size", "learning_rate"]
    assert [name for name, _, _ in changed_settings([read], defaults)] == ["--grpo_sample_size"]
    other = make_run("other")
    RunLog(other).write_config(settings | {"dataloader_num_workers": 8, "video_decoder": "decord"}, set_by_user=())
    both = changed_settings(read_runs([run, other]), defaults)
    assert both == [
        ("--dataloader_num_workers", "0", ["2", "8"]),
        ("--grpo_sample_size", "4", ["8", "8"]),
        ("video_decoder", "–", ["pyav", "decord"]),  # no flag
    ]


def test_two_runs_are_compared_on_the_same_held_out_records(make_run, tmp_path):
    def evaluated(totals, step=2, split="eval"):
        clips = [(FrameInfo(f"/gone/{n // 2}.mp4", (0,), (0.0,)),) for n in range(len(totals))]
        shared = {"step": step, "split": split, "advantage": None}
        return [
            rollout(record_id=str(n), total=total, where=f"data/held.json[{n}]", clips=clips[n], **shared)
            for n, total in enumerate(totals)
        ]

    first = make_run("first", rollouts=[*evaluated([1.0] * 5, step=1), *evaluated([0.0, 0.25, 0.5, 0.5, None])])
    second = make_run("second", rollouts=evaluated([0.5, 0.25, 1.0, 0.75, 1.0, 1.0]))
    written = make_report([first, second, make_run("third", rollouts=group([0.0, 1.0]))], tmp_path / "report")
    [found] = written.summary["held_out_differences"]
    # Gains 0.5, 0 of one clip and 0.5, 0.25 of another: by the bootstrap one, the other, or both.
    assert (found["before"], found["after"], found["records"], found["steps"]) == ("first", "second", 4, (2, 2))
    assert (found["difference"], found["low"], found["high"]) == (0.3125, 0.25, 0.375)
    assert "second − first: +0.312 [+0.250, +0.375]" in written.page.read_text()
    assert make_report([first], tmp_path / "one").summary["held_out_differences"] == []


def test_a_misspelt_flag_is_answered_with_the_near_name(make_run, capsys):
    with pytest.raises(SystemExit):
        main([str(make_run()), "--pictres", "9"])
    assert "unknown flag --pictres; near: pictures" in capsys.readouterr().err


def test_runs_are_named_by_the_part_of_the_path_that_tells_them_apart(make_run):
    folders = [make_run("a/one"), make_run("b/one"), make_run("c/run")]
    assert [run.name for run in read_runs(folders)] == ["a/one", "b/one", "c/run"]
    assert [run.name for run in read_runs(folders[:1])] == ["one"]
    assert [run.name for run in read_runs(folders[2:])] == ["c/run"]
    with pytest.raises(RunLogError, match="given twice"):
        read_runs([folders[0], folders[0]])


def test_folders_that_are_no_run_or_no_report_are_refused(tmp_path, make_run, capsys):
    assert main([str(tmp_path)]) == 2
    assert "run.json: no such file; is" in capsys.readouterr().err
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("")
    assert main([str(make_run()), "--out", str(tmp_path / "mine")]) == 2
    assert capsys.readouterr().err.endswith("mine: holds something that is no report; give another folder with --out\n")
    project = tmp_path / "project"  # of a user, with folders of the same names
    for name in ("data/run-7/mine.txt", "data/run-x/mine.txt", "pictures/mine.jpg", "index.html"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("mine")
    assert main([str(make_run()), "--out", str(project)]) == 2
    assert "project: holds something that is no report" in capsys.readouterr().err
    assert sorted(file.read_text() for file in project.rglob("*") if file.is_file()) == ["mine"] * 4
    foreign = make_run("theirs")
    kept = tmp_path / "run-3" / "model.safetensors"
    kept.parent.mkdir()
    kept.write_text("mine")
    (foreign / "report").mkdir()
    for name in ("data", "pictures"):
        (foreign / "report" / name).symlink_to(tmp_path)
    assert main([str(foreign)]) == 2
    assert "data: is a link to another place" in capsys.readouterr().err
    assert kept.read_text() == "mine" and not (tmp_path / "run-0").exists()
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "run.json").write_text("[]")
    assert main([str(tmp_path / "empty")]) == 2
    assert 'expected an object with "config"' in capsys.readouterr().err
    assert main([str(make_run()), "--out", "/proc/report"]) == 2  # where root can't make a folder either
    assert re.fullmatch(
        r"qwenvl report: /proc/report\S*: .*; give another folder with --out\n", capsys.readouterr().err
    )


def test_three_runs_share_a_table(make_run, tmp_path):
    runs = [make_run("first"), make_run("second", metrics=[(1, {"loss": 0.0})], finished=0), make_run("third")]
    page = make_report(runs, tmp_path / "report").page.read_text()
    text = " ".join(re.sub(r"<[^>]+>", " ", page).split())
    assert "3 runs run steps held-out reward reward in training KL equal rewards s a step warnings" in text
    assert "first 2 0.6 ± 0.1 0.75 0.01 50 % 3 none" in text
    assert "second 1, not finished – – – 50 % 0 none" in text


def test_an_evaluation_of_one_clip_has_no_interval(make_run):
    metrics = [
        (0, {"eval_total_reward": math.nan}),
        (1, {"eval_total_reward": 0.5, "eval_total_reward_ci95": math.nan, "eval_total_reward_n": 1}),
        (2, {"reward": 0.5, "loss": 0.1}),
    ]
    folder = make_run(metrics=metrics)
    assert main([str(folder)]) == 0
    facts = json.loads((folder / "report" / "summary.json").read_text(), parse_constant=pytest.fail)
    [run] = facts["runs"]
    assert run["evaluations"]["eval"]["best"] == {"step": 1, "reward": 0.5, "ci95": None, "n": 1}
    assert "± nan" not in (folder / "report" / "index.html").read_text()
