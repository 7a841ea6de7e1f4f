"""Two pages are followed with all their files: the quickstart, and the way without a GPU."""

import json
import re
import shlex
from pathlib import Path

import pytest

from qwenvl.cli import main
from qwenvl.run_log.log import read_config, read_metrics

ROOT = Path(__file__).resolve().parents[1]
WITHOUT_A_GPU = (ROOT / "docs" / "without_a_gpu.md").read_text(encoding="utf-8")
PAGE = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8").split("\n## 1. ")[1]
EVALUATION = (ROOT / "docs" / "evaluation.md").read_text(encoding="utf-8")
MODEL = "Qwen/Qwen3.5-4B"
# As the page has it, but on tiny things.
SMALL = {
    MODEL: "{checkpoint}",
    "max_steps: 500": "max_steps: 1\nuse_cpu: true\nbf16: false",
    "gradient_accumulation_steps: 8": "gradient_accumulation_steps: 1\ngeneration_max_length: 8",
    "grpo_sample_size: 8": "grpo_sample_size: 2",
    "video_max_frames: 16": "video_max_frames: 2\nvideo_min_frames: 2",
    "video_max_frame_pixels: 131072": "video_max_frame_pixels: 3136",
    "eval_steps: 50\nsave_steps: 50": "eval_steps: 1\nsave_steps: 1",
}


def blocks(kind: str, text: str = PAGE) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def status_of(words: list[str]) -> int | str | None:
    try:
        return main(words)
    except SystemExit as end:
        return end.code


@pytest.fixture
def workplace(tmp_path, monkeypatch, make_clip, tiny_checkpoint) -> Path:
    """The folder that the page begins with: clips, ``steps.txt``, and its settings file made small."""
    steps, labels, _ = blocks("text")
    (tmp_path / "steps.txt").write_text(steps)
    for number, line in enumerate(labels.splitlines()[1:]):
        make_clip(f"clips/{line.split(',')[0]}", 20 + number, size=(64, 64))
    [settings] = blocks("yaml")
    for there, here in SMALL.items():
        assert settings.count(there) == 1, f"the settings no longer say {there}"
        settings = settings.replace(there, here.format(checkpoint=tiny_checkpoint()))
    (tmp_path / "procedure.yaml").write_text(settings)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_five_steps_run_in_their_order(tmp_path, monkeypatch, tiny_checkpoint, capsys):
    """All but the installation and the demo, which other tests run."""
    monkeypatch.chdir(tmp_path)
    block = blocks("bash", WITHOUT_A_GPU)[1].replace("\\\n", "").replace("--max_steps 30", "--max_steps 1")
    install, demo, *lines = [line for line in block.splitlines() if line and not line.startswith("#")]
    assert (install, demo) == ("pip install -e .", "qwenvl demo")
    for line in lines:
        words = shlex.split(line.replace("runs/demo/model", str(tiny_checkpoint())))
        assert not status_of(words[1:]), capsys.readouterr().err
    assert (tmp_path / "runs" / "first" / "report" / "index.html").is_file()
    assert (tmp_path / "runs" / "first-evaluated" / "report" / "index.html").is_file()
    assert (tmp_path / "runs" / "mine" / "preview.html").is_file()
    assert "accuracy" in capsys.readouterr().out


def test_every_command_runs_in_its_order(workplace, tiny_checkpoint, capsys):
    said = {}
    for line in (line for block in blocks("bash") for line in block.splitlines()):
        program, *words = shlex.split(line.replace(MODEL, str(tiny_checkpoint())))
        assert program == "qwenvl"
        assert not status_of(words), capsys.readouterr().err
        said[line] = capsys.readouterr()
        if "--write-labels" in words:  # people fill it in
            empty, filled = (workplace / "labels.csv").read_text().splitlines(), blocks("text")[1].splitlines()
            assert [row.split(",")[0] for row in empty] == [row.split(",")[0] for row in filled]
            (workplace / "labels.csv").write_text("\n".join(filled) + "\n")
    probed = next(said[line].out for line in said if line.startswith("qwenvl probe"))
    [table] = re.findall(r"^\| verdict \|.*?\n\n", EVALUATION, flags=re.MULTILINE | re.DOTALL)
    assert any(verdict in probed for verdict in re.findall(r"^\| ([a-z ]+) \|", table, flags=re.MULTILINE)[1:])
    run = workplace / "runs" / "procedure"
    assert read_config(run)["finished"] == 1 and len(read_metrics(run, split="eval")) == 2
    assert (run / "report" / "index.html").is_file() and (workplace / "preview.html").is_file()
    [evaluated] = (workplace / "runs" / "evaluate").glob("*/evaluation.json")
    assert json.loads(evaluated.read_text())["ended"]
    [code] = re.findall(r"```python\n(.*?)```", EVALUATION, flags=re.DOTALL)
    names = {"__name__": "page"}
    exec(compile(code.replace("runs/evaluate/sop", str(evaluated.parent)), "evaluation.md", "exec"), names)
    assert len(names["wrong"]) > 0, "the tiny model is right by no chance"
