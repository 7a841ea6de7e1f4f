"""The notebook runs, ends with a right answer, and shows the outputs of its code."""

import runpy
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[1]
RUNNER = runpy.run_path(str(ROOT / "scripts" / "run_notebook.py"))
NOTEBOOK = ROOT / "docs" / "notebooks" / "first_run.ipynb"
MOST_BYTES = 400_000  # a page of the site, and a file that everybody clones
# As the notebook has it, but in seconds.
SMALL = {"STEPS = 300, 100, 150": "STEPS = 8, 1, 2", "heldout=24": "heldout=4"}


@pytest.fixture
def notebook():
    """The notebook as it is in the repository."""
    return nbformat.read(NOTEBOOK, as_version=4)


def test_the_outputs_of_the_notebook_are_those_of_its_code(notebook):
    nbformat.validate(notebook)
    assert notebook.metadata["outputs_of"] == RUNNER["digest"](notebook), "run: python scripts/run_notebook.py"
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert not any(output.output_type == "error" for cell in code for output in cell.outputs)
    text = NOTEBOOK.read_text(encoding="utf-8")
    assert text.count("data:image/jpeg") == 3 and text.count("<svg") == 5 and len(text) < MOST_BYTES
    assert str(Path.home()) not in text and "/tmp/" not in text, "a path of the machine that it was run on"
    answer, solution = (line.split(" ", 1)[1].strip() for line in code[-1].outputs[-1].text.splitlines())
    assert answer.endswith(solution)


def test_the_cells_of_the_notebook_run_with_fewer_steps(notebook, tmp_path, monkeypatch):
    """One after the other, as a script."""
    pytest.importorskip("IPython")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    code = "\n\n".join(RUNNER["code_of"](notebook))
    for there, here in SMALL.items():
        assert code.count(there) == 1, f"the notebook no longer says {there}"
        code = code.replace(there, here)
    names = {"__name__": "notebook"}
    exec(compile(code, NOTEBOOK.name, "exec"), names)
    assert [row["step"] for row in names["read_metrics"](names["run"], split="train") if "loss" in row] == [1, 2]
    assert names["status"] == 0 and (names["run"] / "report" / "index.html").is_file()
    assert 0 <= names["after"]["eval_total_reward"] <= 1
