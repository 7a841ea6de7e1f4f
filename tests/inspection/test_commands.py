"""The commands as a user runs them, on data with one of everything that goes wrong."""

import json
from pathlib import Path

import pytest
from PIL import Image

from qwenvl.commands.data import main
from qwenvl.commands.preview import main as preview
from qwenvl.config.grpo_config import GRPOConfig
from qwenvl.data.dataset import load_dataset
from qwenvl.data.options import RUN_SEED


@pytest.fixture
def folder(tmp_path, make_clip, write_rows, make_row):
    """A data set of nine rows, two of them good."""
    (tmp_path / "sub").mkdir()
    make_clip("sub/good.mp4", 25)
    cut = make_clip("cut.mp4", 60, size=(128, 128), container_options={"movflags": "faststart"})
    cut.write_bytes(cut.read_bytes()[: cut.stat().st_size // 2])
    (tmp_path / "empty.mp4").write_bytes(b"")
    (tmp_path / "page.mp4").write_text("<html>404</html>")
    Image.new("RGB", (30, 30)).save(tmp_path / "a.png")
    rows = [
        make_row(id="good", prompt="<video><image>?", video="sub/good.mp4", image="a.png", meta={"max_frames": 4}),
        make_row(id="text", prompt="Which?", line=3),
        make_row(id="none", prompt="<video>", video="none.mp4"),
        make_row(id="empty", prompt="<video>", video="empty.mp4"),
        make_row(id="page", prompt="<video>", video="page.mp4"),
        make_row(id="cut", prompt="<video>", video="cut.mp4"),
        make_row(id="meta", prompt="<video>", video="sub/good.mp4", meta={"frame_cnts": [40]}),
        make_row(id="tags", prompt="no tag", video="sub/good.mp4"),
        make_row(id="score", solution="<answer> </answer>"),
    ]
    path = write_rows(rows, "data.jsonl")
    with open(path, "a") as file:
        file.write('{"id": \n')
    return tmp_path


def run(capsys, *argv):
    capsys.readouterr()
    code = main([str(arg) for arg in argv])
    return code, capsys.readouterr().out


def refused(capsys, *argv, code=2):
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main([str(arg) for arg in argv])
    assert ended.value.code == code
    return capsys.readouterr().err


def test_check_counts_bad_records_by_kind_and_reads_the_good_ones(folder, capsys):
    code, out = run(capsys, "check", folder / "data.jsonl", "--json")
    report = json.loads(out)
    assert code == 1
    assert (report["records"], report["good"], report["bad"]) == (10, 2, 8)
    assert report["bad_by_kind"] == {
        "missing media": 1,
        "empty media": 1,
        "not a video": 1,
        "cut short": 1,
        "meta and clip disagree": 1,
        "tags": 1,
        "solution": 1,
        "JSON": 1,
    }
    assert (report["clips"], report["images"], report["text_only"]) == (1, 1, 1)
    assert report["frames_per_clip"]["max"] == 4
    messages = "\n".join(problem["message"] for problem in report["problems"])
    for place in (
        "data.jsonl:10: not valid JSON",
        "data.jsonl:3 (id none): ",
        "data.jsonl:8: the prompt has 0 <video>",
    ):
        assert place in messages


def test_check_counts_the_frame_settings_that_it_read(make_clip, write_rows, make_row, capsys):
    make_clip("a.mp4", 60)
    rows = [
        make_row(prompt="<video>1", video="a.mp4", fps=2),
        make_row(prompt="<video>2", video="a.mp4", nframes=16, meta={"video_start": 1}),
        make_row(prompt="<video>3", video=["a.mp4"], fps=1),
        make_row(prompt="<video>4", video="a.mp4", start=1, end=3),
    ]
    path = write_rows(rows)
    report = json.loads(run(capsys, "check", path, "--json")[1])
    assert report["frame_settings"] == {"fps": 2, "video_start": 1, "nframes": 1}
    assert report["frames_per_clip"] == {"min": 4, "median": 9.0, "p95": 16, "max": 16}
    out = run(capsys, "check", path)[1]
    assert "frame settings read: fps of 2 records, video_start of 1 record, nframes of 1 record" in out
    assert "start and end beside the turns bound no frames" in out


def test_write_clean_gives_a_data_set_that_passes(folder, capsys):
    code, out = run(capsys, "check", folder / "data.jsonl", "--write_clean", folder / "clean.json")
    assert code == 1 and all(each in out for each in ("10 records, 2 good, 8 bad", "bad: cut short (1)", "what to do"))
    code, out = run(capsys, "check", folder / "clean.json")
    assert code == 0
    assert "2 records, 2 good, 0 bad" in out
    good, text = json.loads((folder / "clean.json").read_text())
    assert (good["video"], good["meta"]) == ("sub/good.mp4", {"max_frames": 4})
    assert text["line"] == 3, "keys that only rewards know are kept"


def test_write_clean_leaves_out_what_the_flags_put_around_prompts(tmp_path, write_rows, make_row, capsys):
    path = write_rows([make_row(prompt="Which?")], "data.json")
    template = tmp_path / "template.txt"
    template.write_bytes("\ufeffLook. {prompt} Now.\n".encode())
    flags = ("--prompt_template", template, "--system", "Be brief.")
    clean = tmp_path / "clean.json"
    run(capsys, "check", path, "--write_clean", clean, *flags)
    [row] = json.loads(clean.read_text())
    assert row["conversations"][0] == {"from": "human", "value": "Which?"}
    run(capsys, "check", clean, *flags, "--write_clean", tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == clean.read_bytes()


def test_the_rows_of_a_part_of_the_data_are_those_of_a_run(tmp_path, write_rows, make_row, capsys):
    path = write_rows([make_row(id=f"row-{n}") for n in range(40)], "data.json")
    part = f"{path}%10"

    def kept(*flags) -> list[str]:
        clean = tmp_path / "clean.json"
        clean.unlink(missing_ok=True)
        run(capsys, "check", part, "--write_clean", clean, *flags)
        return [row["id"] for row in json.loads(clean.read_text())]

    of_a_run = [[record.id for record in load_dataset(part, seed=seed).records] for seed in (RUN_SEED, 7)]
    assert GRPOConfig(str(tmp_path)).seed == RUN_SEED
    assert [kept(), kept("--seed", 7)] == of_a_run and of_a_run[0] != of_a_run[1]
    run(capsys, "convert", part, tmp_path / "part.json")
    assert [row["id"] for row in json.loads((tmp_path / "part.json").read_text())] == of_a_run[0]


def test_a_field_that_a_reward_requires_and_no_record_has_is_named_behind_the_report(
    tmp_path, write_rows, make_row, capsys
):
    (tmp_path / "r.py").write_text("def near(completions, station):\n    return [1.0] * len(completions)\n")
    path = write_rows([make_row(id="one"), make_row(id="two")], "data.json")
    with pytest.raises(SystemExit) as ended:
        main(["check", str(path), "--reward_funcs", f"{tmp_path / 'r.py'}:near"])
    said = capsys.readouterr()
    assert ended.value.code and "2 records, 2 good" in said.out
    assert "data.json: reward \"near\" needs the column 'station', which no record has" in said.err


def test_check_counts_the_tools_of_prompts(folder, tiny_checkpoint, capsys):
    command = ("check", folder / "data.jsonl", "--json", "--model", tiny_checkpoint())
    without, offered = (
        json.loads(run(capsys, *command, *flags)[1])["prompt_tokens"]["min"] for flags in ((), ("--tools", "look"))
    )
    assert offered > without
    assert "--tools: give --model" in refused(capsys, "check", folder / "data.jsonl", "--tools", "look")
    assert "--tools nosuch: there are look, zoom" in refused(capsys, *command, "--tools", "nosuch")


def test_a_value_out_of_its_bounds_is_refused(folder, capsys):
    assert "--jobs must be at least 1, got 0" in refused(capsys, "check", folder / "data.jsonl", "--jobs", "0")


def test_no_file_is_written_where_no_record_is_good(tmp_path, capsys):
    (tmp_path / "bad.json").write_text('[{"prompt": "Which?"}]')
    code, _ = run(capsys, "check", tmp_path / "bad.json", "--write_clean", tmp_path / "clean.json")
    assert code == 1 and not (tmp_path / "clean.json").exists()


def test_what_write_clean_cannot_write_costs_no_report(folder, capsys, monkeypatch, write_rows, make_row):
    two = f"{write_rows([make_row(id='0')], 'a.json')},{write_rows([make_row(id='0')], 'b.json')}"
    with pytest.raises(SystemExit):
        main(["check", two, "--write_clean", str(folder / "clean.json")])
    said = capsys.readouterr()
    assert "2 records, 2 good, 0 bad" in said.out and "b.json[0]: has the id '0', as" in said.err
    monkeypatch.setattr("qwenvl.inspection.check.examine", None)  # nothing is decoded
    assert "ends in .json or .jsonl" in refused(capsys, "check", two, "--write_clean", str(folder / "clean.csv"))


@pytest.mark.parametrize(
    "words",
    [
        ["convert", "data.jsonl", "data.jsonl"],
        ["convert", "data.jsonl", "kept.json"],
        ["check", "data.jsonl", "--write_clean", "data.jsonl"],
    ],
)
def test_a_file_that_is_there_is_never_replaced(folder, capsys, monkeypatch, words):
    monkeypatch.chdir(folder)
    Path("kept.json").write_text("[]")
    before = Path("data.jsonl").read_bytes()
    assert "exists already" in refused(capsys, *words)
    assert Path("data.jsonl").read_bytes() == before and Path("kept.json").read_text() == "[]"


def test_check_counts_tokens_and_prompts_that_are_too_long(folder, tiny_checkpoint, capsys):
    command = ("check", folder / "data.jsonl", "--json", "--model", tiny_checkpoint())
    tokens = json.loads(run(capsys, *command)[1])["prompt_tokens"]
    assert tokens["min"] < tokens["max"]
    report = json.loads(run(capsys, *command, "--max_prompt_length", int(tokens["min"]))[1])
    assert report["bad_by_kind"]["too long"] == 1
    assert report["good"] == 1


def test_check_names_prompts_whose_frames_would_be_lowered_to_fit(
    make_clip, write_rows, make_row, tiny_checkpoint, capsys
):
    make_clip("a.mp4", 50, size=(112, 112))
    path = write_rows([make_row(id="clip", prompt="<video>", video="a.mp4"), make_row(id="text", prompt="a " * 80)])
    flags = ("--model", tiny_checkpoint(), "--base_interval", 0.1, "--video_max_frames", 16)
    free = json.loads(run(capsys, "check", path, "--json", *flags)[1])
    longest = int(free["prompt_tokens"]["max"])  # of the clip: 8 pairs of 16 tokens
    code, out = run(
        capsys, "check", path, "--json", *flags, "--fit_frames", "--max_prompt_length", longest - 3 * 16 + 1
    )
    report = json.loads(out)
    assert (code, report["fitted_prompts"], report["prompt_tokens"]["max"]) == (0, 1, longest - 3 * 16)
    assert report["warnings"][0] == {"kind": "fewer frames to fit", "message": f"{path}[0] (id clip): 10 of 16 frames"}
    assert [each["kind"] for each in report["warnings"][1:]] == ["no question", "text alone"]
    assert "--fit_frames has no effect without" in refused(capsys, "check", path, "--fit_frames")
    assert "without --max_prompt_length" in refused(capsys, "check", path, "--fit_frames", *flags)


def test_repeated_questions_are_worth_a_look(write_rows, make_row, capsys):
    path = write_rows([make_row(), make_row(), make_row(solution="(2) b")])
    code, out = run(capsys, "check", path, "--json")
    assert code == 0
    first, second, _ = json.loads(out)["warnings"]
    assert first["message"].endswith("data.json[1] asks the same as " + f"{path}[0] and has the same solution")
    assert "but has another solution" in second["message"]


def test_times_that_no_reward_reads_are_worth_a_look(write_rows, make_row, make_clip, capsys):
    make_clip("a.mp4", 60)
    prompt = "<video>Which, and when?\n(1) take the lid\n(2) insert the fan"
    path = write_rows([make_row(prompt=prompt, video="a.mp4", solution="0.0-1.5 (1)\n1.5-2.0 (2)")])
    assert "of 1 of 1 record, and no reward reads their times (" in run(capsys, "check", path)[1]
    assert "no reward reads" not in run(capsys, "check", path, "--reward_funcs", "format", "timeline_iou")[1]


def test_the_same_question_about_two_spans_of_a_clip_is_not_repeated(write_rows, make_row, make_clip, capsys):
    make_clip("a.mp4", 30)
    spans = [{"video_start": 0, "video_end": 1}, {"video_start": 1, "video_end": 2}]
    rows = [make_row(prompt="<video>Which?", video="a.mp4", meta=span, id=str(i)) for i, span in enumerate(spans)]
    assert "repeated" not in run(capsys, "check", write_rows(rows))[1]
    # Settings of its frames make no other question.
    rows = [make_row(prompt="<video>Which?", video="a.mp4", meta={"max_frames": n}, id=str(n)) for n in (4, 8)]
    assert "repeated (1)" in run(capsys, "check", write_rows(rows))[1]


def test_check_shows_solutions_and_the_records_drawn_by_weights(write_rows, make_row, capsys):
    small = write_rows([make_row(id=str(i)) for i in range(2)], "small.json")
    large = write_rows([make_row(id=str(i), prompt=f"Which of {i}?") for i in range(8)], "large.json")
    _, out = run(capsys, "check", f"{small}:0.3,{large}:0.7")
    # 0.3 and 0.7 of ten records
    assert "  1 solution, 10 times " in out and f"  drawn in an epoch: 3 of {small}, 7 of {large}\n" in out


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (["check", "no_such_set"], 2, "no data set 'no_such_set'"),
        (["check", "example", "--max_prompt_length", "5"], 2, "give --model"),
        (["check", "example", "--columns", "x"], 2, "expected name=known"),
        (["convert", "example", "out.parquet"], 2, "expected a name that ends in .json or .jsonl"),
    ],
)
def test_wrong_arguments_of_check_and_convert_are_refused(argv, code, message, capsys):
    assert message in refused(capsys, *argv, code=code)


def test_hints_are_shown_by_check_and_by_the_preview(
    tmp_path, make_clip, write_rows, make_row, capsys, never_at_full_size
):
    make_clip("large.mp4", 4, size=(1280, 720))
    row = make_row(prompt="<video>(1) a\n(2) b\n<answer>actions</answer>", video="large.mp4", meta={"fps": 25})
    path = write_rows([row, row | {"A": "x", "B": "y"}])
    code, out = run(capsys, "check", path)
    assert code == 0
    for said in (
        "meta has fps, which change no frames",
        "clips of 1280 x 720 pixels are seen at 196 x 112; --video_max_frame_pixels 100352 shows",
    ):
        assert said in out
    assert f"(2 records, the first is {path}[0] (id data-0))" in out
    assert "the options in the columns A, B are not in the prompt" in out
    assert preview(["--out", str(tmp_path / "page.html"), str(path)]) == 0
    page = (tmp_path / "page.html").read_text()
    assert page.count("worth a look: clips of 1280 x 720 pixels are seen at 196 x 112") == 2
    assert page.count("worth a look: the options in the columns A, B") == 1


def test_check_names_every_key_that_nothing_reads(write_rows, make_clip, capsys):
    make_clip("a.mp4")
    keys = {f"key_{n}": n for n in range(9)}
    rows = [{"question": "Which colour?", "answer": "red", "path": "a.mp4", "problem_type": "OCR", "line": 7} | keys]
    path = write_rows(rows)
    code, out = run(capsys, "check", path, "--reward_funcs", "by_problem_type")
    assert code == 0
    assert ", ".join(f"{key} (1 of 1)" for key in ("line", *keys)) in out, "all of them, on one line"
    report = json.loads(run(capsys, "check", path, "--reward_funcs", "by_problem_type", "--json")[1])
    assert report["unread_keys"] == dict.fromkeys(("line", *keys), 1)
    assert (report["clips"], report["text_only"]) == (1, 0)


def test_check_says_from_which_number_answers_count_and_that_spans_leave_the_clip(write_rows, make_clip, capsys):
    make_clip("a.mp4")
    rows = [{"question": f"Where {n}?", "answer": n, "options": ["left", "right"], "video": "a.mp4"} for n in (1, 2)]
    code, out = run(capsys, "check", write_rows(rows), "--reward_funcs", "by_problem_type")
    assert code == 0 and "count the options from 1" in out
    spans = [
        {"prompt": f"<video>{n}?", "solution": f"{n} to 500", "problem_type": "temporal grounding", "video": "a.mp4"}
        for n in (1, 2)
    ]
    code, out = run(capsys, "check", write_rows(spans), "--reward_funcs", "by_problem_type")
    assert code == 0 and "a span that ends after the clip (2 records" in out
