"""lmms-eval on a model of this library: our side of it, on a stand-in for the harness that calls as it calls."""

import os
import subprocess
from pathlib import Path

import pytest

from qwenvl.runlog import read_evaluation, read_samples

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
def harness(fork_python, tmp_path, tiny_checkpoint, make_clip):
    """``harness(*words)`` runs the script as its environment would, in a folder with a clip."""
    for name, text in STAND_IN.items():
        path = tmp_path / "packages" / "lmms_eval" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        (path.parent / "__init__.py").touch()
        lines = text.strip("\n").splitlines()
        path.write_text("\n".join(line[8:] for line in lines) + "\n")
    make_clip("17.mp4", 30)
    model = str(tiny_checkpoint(initializer_range=0.1))

    def run(*words: str) -> subprocess.CompletedProcess:
        command = [fork_python, str(ROOT / "scripts" / "lmms" / "evaluate.py"), "parts", model, *words]
        paths = os.pathsep.join([str(ROOT), str(tmp_path / "packages")])
        environment = {**os.environ, "PYTHONPATH": paths}
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)

    return run


def test_tasks_come_back_as_an_evaluation(harness, tmp_path):
    flags = ["--task_folder", "tasks", "--use_cpu", "--generation_max_length", "5", "--video_max_frames", "4"]
    done = harness(*flags, "--output_dir", "out")
    assert done.returncode == 0, done.stderr
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
    assert "lmms-eval parts: 2 records, the greedy completion of each." in done.stdout
    assert done.stdout.rstrip().endswith("parts: exact 0.5000")
    again = harness(*flags, "--output_dir", "out")
    assert again.returncode == 2 and "--output_dir out: holds something already" in again.stderr


def test_flags_that_mean_nothing_are_refused(harness):
    done = harness("--task_folder", "tasks", "--use_cpu", "--reward_funcs", "format")
    assert done.returncode == 2 and "--reward_funcs has no effect" in done.stderr.strip().splitlines()[-1], done.stderr
