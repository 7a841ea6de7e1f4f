from transformers import AutoProcessor

from qwenvl.data.collator import GRPOCollator
from qwenvl.data.dataset import load_dataset
from qwenvl.rewards.named import build_rubric
from qwenvl.train.display.first_look import first_look


def test_what_is_worth_a_look_is_said_once_with_how_often(
    tmp_path, tiny_checkpoint, make_clip, write_rows, make_row, capsys
):
    make_clip("large.mp4", 4, size=(1280, 720))
    prompt = "<video>\nWhich?\n(1) a fan\n(2) a lid\n<answer>actions</answer>"
    rows = [
        make_row(prompt=prompt, solution="<answer>(1) a fan</answer>", video="large.mp4", meta={"fps": 25})
        for _ in range(3)
    ]
    rows.append(make_row(prompt="<video>Which?", solution="(1)", video="gone.mp4"))
    dataset = load_dataset(str(write_rows(rows)), on_bad_sample="skip")
    collator = GRPOCollator(AutoProcessor.from_pretrained(tiny_checkpoint()))
    capsys.readouterr()
    first_look(dataset, collator, build_rubric(), by_name=True)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert all(line.startswith("worth a look: ") for line in lines)
    assert all(f"(3 of 4 records looked at, the first is {tmp_path}/data.json[0])" in line for line in lines)
    assert "meta has fps" in lines[0]
    assert "<answer>actions</answer>, and accuracy reads (k) numbers" in lines[1]
    assert "clips of 1280 x 720 pixels are seen at" in lines[2]


def test_other_processes_say_nothing(tiny_checkpoint, write_rows, make_row, capsys, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    dataset = load_dataset(str(write_rows([make_row(prompt="Which? <answer>x</answer>", solution="(1)")])))
    collator = GRPOCollator(AutoProcessor.from_pretrained(tiny_checkpoint()))
    capsys.readouterr()
    first_look(dataset, collator, build_rubric(), by_name=True)
    assert capsys.readouterr().err == ""


def test_uneven_frames_are_said_where_the_model_is_not_told(tiny_checkpoint, make_clip, write_rows, make_row, capsys):
    make_clip("a.mp4", 4)
    row = make_row(prompt="<video>Which? <answer>(1) ...</answer>", solution="<answer>(1)</answer>", video="a.mp4")
    dataset = load_dataset(str(write_rows([row])), frame_sampler="change")
    for family, told in (("qwen2_5_vl", 1), ("qwen3_vl", 0)):
        collator = GRPOCollator(AutoProcessor.from_pretrained(tiny_checkpoint(family)))
        capsys.readouterr()
        first_look(dataset, collator, build_rubric(), by_name=True)
        assert capsys.readouterr().err.count("worth a look: --frame_sampler change: frames do not lie evenly") == told
