"""lmms-eval on a model of this library: our side of it, on a stand-in for the harness that calls as it calls."""

import runpy
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from qwenvl.run_log.log import read_evaluation, read_samples

ROOT = Path(__file__).resolve().parents[1]

# The parts of lmms-eval 0.7.3 that are called, with one task of two records.
STAND_IN = {
    "api/model.py": """
        class lmms:
            def __init__(self):
                self.task_dict = {}
    """,
    "tasks.py": """
        class TaskManager:
            def __init__(self, verbosity, include_path=None, model_name=None):
                assert include_path == "tasks"

            def match_tasks(self, names):
                return [name for name in names if name == "parts"]
    """,
    "evaluator.py": """
        from types import SimpleNamespace
        from PIL import Image

        DOCS = [{"clip": "17.mp4", "answer": "a"}, {"clip": None, "answer": "b"}]

        def visual(doc):
            return [doc["clip"]] if doc["clip"] else [Image.new("RGB", (60, 40), "red")]

        def simple_evaluate(model, tasks, limit, log_samples, task_manager, verbosity):
            docs = DOCS[:limit]
            model.task_dict = {"parts": {"test": docs}}
            told = {"until": ["!"], "max_new_tokens": 3}
            asked = [("<image> Which part?", told, visual, n, "parts", "test") for n in range(len(docs))]
            given = model.generate_until([SimpleNamespace(args=args) for args in asked])
            rows = [
                {"doc_id": n, "doc": doc, "target": doc["answer"], "resps": [[text]], "filtered_resps": [text],
                 "exact": float(n), "judged": {"score": 0.5}, "words": [text]}
                for n, (doc, text) in enumerate(zip(docs, given))
            ]
            results = {"parts": {"exact,none": 0.5, "exact_stderr,none": 0.1, "alias": "parts"}}
            return {"results": results, "samples": {"parts": rows}, "versions": {"parts": 1}}
    """,
}


@pytest.fixture
def harness(tmp_path, tiny_checkpoint, make_clip, monkeypatch):
    """``harness(*words)`` runs the script in this process, in a folder with a clip, and returns its exit status."""
    for name, text in STAND_IN.items():
        path = tmp_path / "packages" / "lmms_eval" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        (path.parent / "__init__.py").touch()
        path.write_text(dedent(text))
    make_clip("17.mp4", 30)
    model = str(tiny_checkpoint(initializer_range=0.1))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", str(tmp_path / "packages"), *sys.path])  # the script replaces the first

    def run(*words: str) -> int:
        try:
            return runpy.run_path(str(ROOT / "scripts" / "lmms" / "evaluate.py"))["main"](["parts", model, *words])
        except SystemExit as ended:
            return ended.code

    yield run
    for name in [name for name in sys.modules if name.startswith(("lmms_eval", "scripts.lmms"))]:
        del sys.modules[name]


def test_tasks_come_back_as_an_evaluation(harness, tmp_path, capsys):
    flags = ["--task_folder", "tasks", "--use_cpu", "--generation_max_length", "5", "--video_max_frames", "4"]
    assert harness(*flags, "--output_dir", "out") == 0
    printed = capsys.readouterr().out
    found, samples = read_evaluation(tmp_path / "out"), list(read_samples(tmp_path / "out").values())
    assert [each.where for each in samples] == ["parts[0]", "parts[1]"] and found["ended"] is not None
    assert [each.rewards for each in samples] == [{"exact": 0.0, "judged": 0.5}, {"exact": 1.0, "judged": 0.5}]
    assert [each.total for each in samples] == [0.25, 0.75]
    [clip] = samples[0].clips
    assert Path(clip.path).name == "17.mp4" and len(clip.indices) == 4 and len(samples[1].images) == 1
    assert samples[0].prompt[0]["text"].endswith("Which part?") and "<video>" in samples[0].prompt[0]["text"]
    assert all(each.tokens <= 5 for each in samples)
    [numbers] = found["numbers"]
    assert numbers["scores"]["total"]["mean"] == 0.5 and numbers["records"] == 2
    assert found["lmms_eval"]["results"]["parts"]["exact,none"] == 0.5
    assert found["protocol"]["frames"]["video_max_frames"] == 4
    assert "lmms-eval parts: 2 records, the greedy completion of each." in printed
    assert printed.rstrip().endswith("parts: exact 0.5000")
    assert harness(*flags, "--output_dir", "out") == 2
    assert "--output_dir out: holds something already" in capsys.readouterr().err


def test_flags_that_mean_nothing_are_refused(harness, capsys):
    assert harness("--task_folder", "tasks", "--use_cpu", "--reward_funcs", "format") == 2
    assert "--reward_funcs has no effect" in capsys.readouterr().err
