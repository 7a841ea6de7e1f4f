"""docs/rewards.md says what the code says."""

import re
import shlex
from pathlib import Path

import pytest

from qwenvl.commands.rewards import main
from qwenvl.rewards import build_rubric

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "rewards.md"


def test_the_commands_of_the_page_print_the_output_shown(capsys):
    (block,) = re.findall(r"```console\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    for chunk in block.split("$ ")[1:]:
        command, _, shown = chunk.partition("\n")
        assert main(shlex.split(command)[2:]) == 0
        assert shown in capsys.readouterr().out


def test_the_plugin_of_the_page_works(tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "my_rewards.py").write_text(code)
    rubric = build_rubric(["accuracy", "brief(limit=30)"], [1, 0.2], external_plugins=[str(tmp_path / "my_rewards.py")])
    batch = rubric.score(["<answer>(1)</answer>"], {"solution": ["(1)"]})
    assert batch.total.tolist() == [pytest.approx(1.2)]
