"""The folder of clips that labels are given to."""

from pathlib import Path

import pytest

STEPS = "insert fan\nclose lid\n"


@pytest.fixture
def folder(tmp_path, make_clip, monkeypatch) -> Path:
    """Two clips of 3 s, 30 frames each, and one without labels."""
    (tmp_path / "clips").mkdir()
    for name in ("a", "b", "c"):
        make_clip("made.mp4", 30, fps=10).rename(tmp_path / "clips" / f"{name}.mp4")
    (tmp_path / "steps.txt").write_text(STEPS)
    monkeypatch.chdir(tmp_path)
    return tmp_path
