"""An evaluation that was cut short goes on where it stopped, and refuses to mix what does not belong together."""

import re
from pathlib import Path

import pytest

from qwenvl.commands.evaluate import main
from qwenvl.evaluate import questions
from qwenvl.evaluate.evaluation import _problems
from qwenvl.run_log.log import read_evaluation, read_samples

PLUGIN = """
from pathlib import Path
from qwenvl.rewards import reward

@reward("letters")
def letters(completions, id, **columns):
    here = Path(__file__).parent
    with (here / "asked").open("a") as file:
        file.writelines(each + "\\n" for each in id)
    if (here / "stop").exists() and len((here / "asked").read_text().split()) > int((here / "stop").read_text()):
        raise KeyboardInterrupt
    return [float(len(text)) for text in completions]
"""
REWARDS = ("--reward_funcs", "letters", "--pass_by", "letters", "--pass_at", "3")


@pytest.fixture
def data(make_row, write_rows, make_clip) -> str:
    """Five records of text and one with a clip."""
    make_clip("clip.mp4", 20)
    rows = [make_row(prompt=f"Which of {n}?", id=f"text-{n}") for n in range(5)]
    return str(write_rows([*rows, make_row(prompt="<video>\nWhich?", video="clip.mp4", id="clip")]))


@pytest.fixture
def words(tiny_checkpoint, data, tmp_path) -> list[str]:
    """Model, data and flags of an evaluation whose reward notes what it is asked."""
    (tmp_path / "rewards_of_the_test.py").write_text(PLUGIN)
    model = str(tiny_checkpoint(initializer_range=0.1))
    flags = ["--use_cpu", "--generation_max_length", "5", "--samples", "2", "--seed", "3"]
    return [model, data, *flags, "--external_plugins", str(tmp_path / "rewards_of_the_test.py"), *REWARDS]


def asked(tmp_path: Path) -> list[str]:
    """The ids of the completions that were scored since it was last asked for."""
    ids = (tmp_path / "asked").read_text().split()
    (tmp_path / "asked").unlink()
    return ids


def numbers(folder: Path) -> dict:
    found = read_evaluation(folder)
    return {name: found[name] for name in ("numbers", "drops", "left_out", "protocol")}


def test_an_evaluation_continues_after_an_interruption_and_refuses_other_settings(
    words, tiny_checkpoint, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(questions, "BLOCK", 2)
    whole, cut = str(tmp_path / "whole"), tmp_path / "cut"
    assert main([*words, "--controls", "blank", "--output_dir", whole]) == 0
    once = asked(tmp_path)
    assert len(once) == 2 * 7  # six records, and the clip again in grey
    (tmp_path / "stop").write_text("9")  # in the third block
    with pytest.raises(SystemExit) as ended:
        main([*words, "--controls", "blank", "--output_dir", str(cut)])
    assert ended.value.code == 130 and asked(tmp_path)[:6] == once[:6]
    stopped = read_evaluation(cut)
    assert stopped["ended"] is None and stopped["numbers"] == []
    kept = len(read_samples(cut))
    assert kept == 8  # two blocks of two records with two samples
    path = cut / "samples.jsonl"
    path.write_bytes(path.read_bytes()[:-20])  # as a kill in the middle of a line leaves it
    (tmp_path / "stop").unlink()
    capsys.readouterr()
    assert main([*words, "--controls", "blank", "--output_dir", str(cut)]) == 0
    assert f"goes on from {kept - 1} completions" in capsys.readouterr().err
    again = asked(tmp_path)
    assert again == once[4:]  # the second block is not whole
    assert path.read_text() == (Path(whole) / "samples.jsonl").read_text()
    assert numbers(cut) == numbers(Path(whole))
    # With nothing left to ask, other numbers are computed from the same samples.
    out, before = ["--controls", "blank", "--output_dir", str(cut)], read_evaluation(cut)["numbers"][0]
    before_procedure = read_evaluation(cut)["procedure"]
    (tmp_path / "steps.txt").write_text("take\nturn\n")
    procedure = ["--procedure", str(tmp_path / "steps.txt")]
    assert main([*words, "--pass_at", "100", "--cluster_by", "id", *procedure, *out]) == 0
    after = read_evaluation(cut)
    assert before_procedure is None and [row["doc_id"] for row in after["procedure"]["clips"]] == [*range(6)]
    assert after["procedure"]["clips"][0]["solution"] == {"missing": [2], "out_of_order": [], "unknown": []}
    assert not (tmp_path / "asked").exists() and after["protocol"]["passes"]["at"] == 100
    assert after["numbers"][0]["scores"]["passes"]["mean"] == 0 < before["scores"]["passes"]["mean"]
    assert {each.cluster for each in read_samples(cut).values()} == {"clip", *(f"text-{n}" for n in range(5))}
    assert after["numbers"][0]["scores"]["letters"] == before["scores"]["letters"]
    # Other samples are refused.
    changes = ["--generation_max_length", "6", "--samples", "3", "--seed", "4"]
    with pytest.raises(SystemExit) as ended:
        main([*words, *changes, *out])
    error = capsys.readouterr().err
    assert ended.value.code == 2
    assert "holds an evaluation with other settings; give another --output_dir, or begin anew with --fresh" in error
    for name in ("decoding.max_new_tokens: 5 there, 6", "decoding.samples: 2 there, 3", "seed: 3 there, 4"):
        assert f"{name} here" in error, error
    # More models and controls are added. The last block of the first model is not whole without the clip as text.
    other, out[1] = str(tiny_checkpoint(initializer_range=0.1, seed=1)), "blank,text_only"
    capsys.readouterr()
    assert main([words[0], other, *words[1:], *out]) == 0
    assert capsys.readouterr().err.count("reading the records") == 1, "once for both models"
    assert len(asked(tmp_path)) == 2 * (4 + 8) and len(read_evaluation(cut)["models"]) == 2
    assert len(read_samples(cut)) == 2 * 2 * 8
    (cut / "samples_of_mine.jsonl").write_text("{}\n")
    assert main([*words, "--limit", "2", *out[2:], "--fresh"]) == 0
    assert len(read_samples(cut)) == 2 * 2
    assert (cut / "samples_of_mine.jsonl").read_text() == "{}\n"


def test_an_evaluation_is_not_continued_with_other_code_or_clips(words, tmp_path, make_clip, capsys):
    out = ["--output_dir", str(tmp_path / "out")]
    assert main([*words, *out]) == 0
    plugin = tmp_path / "rewards_of_the_test.py"
    before = plugin.read_text()
    plugin.write_text(before + "# another version\n")
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main([*words, *out])
    assert "reward_code.rewards_of_the_test.py: " in capsys.readouterr().err
    plugin.write_text(before)
    assert main([*words, *out]) == 0
    make_clip("clip.mp4", 30)
    with pytest.raises(SystemExit):
        main([*words, *out])
    assert "data.hash: " in capsys.readouterr().err


def test_fresh_deletes_no_file_that_no_evaluation_wrote(words, tmp_path, capsys):
    (tmp_path / "evaluation.json").write_text('{"score": 1}')
    with pytest.raises(SystemExit):
        main([*words, "--output_dir", str(tmp_path), "--fresh"])
    assert "evaluation.json: no evaluation wrote this file; give another --output_dir" in capsys.readouterr().err
    assert (tmp_path / "evaluation.json").read_text() == '{"score": 1}'


def test_an_evaluation_that_was_killed_in_its_first_write_begins_again(words, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "evaluation.json.part-17-0a1b2c3d").write_text("{")
    assert main([*words, "--output_dir", str(out)]) == 0 and read_evaluation(out)["ended"]


def test_a_bad_clip_is_left_out_and_named(words, tmp_path, make_clip, capsys):
    (tmp_path / "clip.mp4").write_bytes(b"no clip")
    out = tmp_path / "out"
    assert main([*words, "--controls", "text_only", "--output_dir", str(out)]) == 0
    shown = capsys.readouterr().out
    # Without its clip it has an answer, which the numbers under the control count.
    left_out = r"left out: 1 record, which not all numbers above count\n  .*data\.json\[5\] \(id clip\): "
    assert re.search(left_out, shown), shown
    found = read_evaluation(out)
    assert [(each["control"], each["doc_id"]) for each in found["left_out"]] == [("none", 5)]
    assert {each["control"]: each["records"] for each in found["numbers"]} == {"none": 5, "text_only": 1}
    [drop] = found["drops"]
    assert drop["records"] == 0 and drop["scores"] == {}
    asked(tmp_path)
    assert main([*words, "--controls", "text_only", "--output_dir", str(out)]) == 0
    assert not (tmp_path / "asked").exists()  # it is known to be left out


def test_an_evaluation_continues_however_the_path_of_its_model_is_written(tmp_path, monkeypatch):
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path)

    def found(path: str, weights: str = "1") -> dict:
        models = [{"name": "model", "path": path, "weights": weights}]
        return {"protocol": {"data": {}}, "models": models, "controls": ["none"]}

    assert _problems(found(str(tmp_path / "model")), found("model")) == []
    assert len(_problems(found("model"), found("model", weights="2"))) == 1
    assert len(_problems(found("org/model"), found("org/other"))) == 1
