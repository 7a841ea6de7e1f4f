"""Runs the notebooks of the documentation and keeps their outputs: ``python scripts/run_notebook.py``.

What a reader sees on GitHub and on the site is what the cells gave. A notebook remembers which code that was, and a
test fails where the code has changed since.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
SECONDS = 600  # for a cell
LOGGED = re.compile(r"^\[\d{4}-.*\] \[(?:INFO|WARNING)\] .*\n", flags=re.MULTILINE)
TEMPORARY = re.compile(r"\S*/(first_run)-\w+")


def code_of(notebook: nbformat.NotebookNode) -> list[str]:
    """The sources of its code cells."""
    return [cell.source for cell in notebook.cells if cell.cell_type == "code"]


def digest(notebook: nbformat.NotebookNode) -> str:
    """A fingerprint of its code."""
    return hashlib.sha256("\0".join(code_of(notebook)).encode()).hexdigest()[:16]


def run(notebook: nbformat.NotebookNode) -> None:
    """Run all cells in a kernel of their own, and keep what they show."""
    NotebookClient(notebook, timeout=SECONDS, resources={"metadata": {"path": str(ROOT)}}).execute()
    notebook.metadata["outputs_of"] = digest(notebook)
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # times, which differ each time
        if cell.cell_type == "code":
            cell.outputs = tidy(cell.outputs)


def tidy(outputs: list[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    """The outputs without warnings of libraries and names of temporary folders, and what is printed in one piece."""
    kept: list[nbformat.NotebookNode] = []
    for output in outputs:
        if output.output_type == "stream":
            text = "" if output.name == "stderr" else LOGGED.sub("", output.text)
            output.text = TEMPORARY.sub(r"\1", text)
            if kept and kept[-1].output_type == "stream":
                kept[-1].text += output.text
                continue
            if not output.text:
                continue
        kept.append(output)
    return kept


if __name__ == "__main__":
    for path in NOTEBOOKS:
        notebook = nbformat.read(path, as_version=4)
        run(notebook)
        nbformat.write(notebook, path)
        print(f"ran {path.relative_to(ROOT)}")
