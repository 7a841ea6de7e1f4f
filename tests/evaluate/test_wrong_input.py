"""A mistake in a command line, or in a file that it names, costs one line and a status."""

import re

import pytest

from qwenvl.cli import main
from qwenvl.evaluate.command import About, run_command
from qwenvl.evaluate.requests import probe_request
from qwenvl.option import Options
from qwenvl.own_code import OwnCodeError
from tests.made_clips import write_clip


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        ("probe ./none example", 2, "error: ./none: no such folder"),
        ("probe MODEL exampel", 2, "error: dataset_use: no data set 'exampel' in .*: did you mean example"),
        ("probe MODEL example --pass_by accuracyy", 2, "--pass_by accuracyy: no such reward here; did you mean acc"),
        ("probe MODEL example --pass_at 2", 2, "--pass_at 2: expected above 0 and at most 1 of accuracy"),
        ("probe MODEL example --reward_funcs format cosine", 2, "none of the rewards format, cosine tells"),
        ("probe MODEL example --tools look", 1, '--tools: none of the 5 records has one clip and "evidence"'),
        ("probe MODEL example --output_dir MODEL", 2, "holds files that no probe wrote; give a new folder"),
        ("evaluate MODEL", 2, "expected MODEL DATA before the flags, got"),
        ("evaluate MODEL MODEL example", 2, "is given twice"),
        ("evaluate MODEL example --controls blind", 2, "--controls blind: no such control; expected some of blank"),
        ("evaluate MODEL example --controls all,evidence", 2, "--controls: all stands alone; name the controls one by"),
        ("evaluate MODEL example --controls no_look", 2, "no_look has no effect: no record has a look, which --tools"),
        ("evaluate MODEL example --samples 0", 2, "--samples must be at least 1"),
        ("evaluate MODEL example --generation_top_p 1", 2, "no effect: the one completion is greedy"),
        ("evaluate empty example", 2, "empty: no weights in it; expected a model, an adapter, or a run's folder"),
        ("evaluate MODEL example --lmit 5", 2, "unknown flag --lmit; near: limit"),
        ("evaluate MODEL example --cluster_by colour", 1, r"no field 'colour'.*; it has "),
        ("evaluate MODEL example --output_dir MODEL", 2, "holds files that no evaluation wrote"),
        ("evaluate MODEL example --procedure none.txt", 2, "none.txt: no such file"),
        ("try MODEL", 2, "expected MODEL, clips or images, and a question in quotes"),
        ("try MODEL 17.mp4", 2, "expected MODEL, clips or images, and a question in quotes"),
        ("try MODEL 18.mp4 Which?", 2, "18.mp4: no such file; expected a clip or an image"),
        ("try MODEL data.json Which?", 1, "data.json: not a video: it begins with"),
        ("try MODEL 17.mp4 <video><video>?", 1, "the prompt has 2 <video> tags but `videos` names 1 files"),
        ("try ./none 17.mp4 Which?", 2, "./none: no such folder; expected one that holds a checkpoint"),
        ("try MODEL 17.mp4 Which? -n 0", 2, "--n must be at least 1, got 0"),
        ("try MODEL 17.mp4 Which? --reward_funcs format", 2, "--reward_funcs has no effect without --solution"),
        ("try MODEL 17.mp4 Which? --temperature 1", 2, "unknown flag temperature; use --generation_temperature"),
        ("try MODEL 17.mp4 Which? --max_prompt_length 9", 1, "the question .*tokens"),
        ("try MODEL 17.mp4 Which? --solution ;", 2, "names no action"),
    ],
)
def test_wrong_input_ends_with_one_line(command, code, message, tiny_checkpoint, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_clip(tmp_path / "17.mp4", 20)
    (tmp_path / "data.json").write_text("[]")
    (tmp_path / "empty").mkdir()
    model = str(tiny_checkpoint(initializer_range=0.1))
    try:
        ended = main([*(model if word == "MODEL" else word for word in command.split()), "--use_cpu"])
    except SystemExit as exit:
        ended = exit.code
    error = capsys.readouterr().err
    assert ended == code and "Traceback" not in error
    assert re.search(message, error.strip().splitlines()[-1]), error


def test_help_lists_the_flags_of_the_command_and_a_wrong_flag_prints_its_usage(capsys):
    assert main(["probe", "model", "--learning_rate", "1"]) == 2
    assert "usage: qwenvl probe MODEL DATA" in capsys.readouterr().err
    assert main(["probe", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "--samples" in shown and "--video_max_frames" in shown and "--learning_rate" not in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("model data.json --learning_rate 1e-6", "--learning_rate has no effect: only training reads it"),
        ("model data.json --no_tune_mm_llm", "--tune_mm_llm has no effect: only training reads it"),
        ("model data.json --start_from_weights x", "--start_from_weights has no effect: give the model as MODEL"),
        ("model data.json --dataset_use x", "--dataset_use has no effect: give the data as DATA"),
        ("model data.json --eval_sample_size 4", "--samples, of qwenvl try -n"),
        ("model data.json --on_bad_sample error", "left out, counted and named"),
        ("model data.json --nonsense 4", "unknown flag --nonsense"),
        ("model data.json --generation_top_p 2", "--generation_top_p must be at most 1"),
        ("model data.json --samples 1", "--samples must be at least 2, got 1"),
        ("model data.json --samples 4 --grpo_sample_size 8", "--samples 4 is below --grpo_sample_size 8"),
        ("model data.json --limit many", "argument --limit: invalid int value: 'many'"),
        ("model", "expected MODEL DATA or a settings file before the flags, got model"),
        ("run.yaml data.json", "expected MODEL DATA or a settings file"),
        ("--samples 8", "expected MODEL DATA or a settings file before the flags, got nothing"),
        ("half.yaml", "half.yaml: dataset_use is missing"),
    ],
)
def test_settings_without_effect_are_refused(words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "half.yaml").write_text("model_name_or_path: m\n")
    with pytest.raises(ValueError, match=message):
        probe_request(words.split())


def test_a_tool_of_the_user_that_fails_ends_a_command_with_one_line(capsys):
    def fails(request):
        raise OwnCodeError("--tools own.py:look, called for data.json[0] (id a): KeyError: 1")

    with pytest.raises(SystemExit):
        run_command("try", [], lambda words, begins=False: None, fails, About("usage", Options, (), "About."))
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "qwenvl try: --tools own.py:look, called for data.json[0] (id a): KeyError: 1"
