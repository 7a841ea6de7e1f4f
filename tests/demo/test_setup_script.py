"""The shell set-up shared by demo.sh and test.sh: which Python it takes, and what it says where there is none."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "_setup.sh"
BASH = shutil.which("bash")
pytestmark = pytest.mark.skipif(BASH is None, reason="needs bash")


def run(commands, programs, **variables):
    """``commands`` after sourcing the script, with only ``programs`` and the basic tools to be found."""
    for tool in ("dirname", "cksum", "grep", "mktemp", "tail", "tr", "cat", "rm", "sleep", "env"):
        (programs / tool).symlink_to(shutil.which(tool))
    return subprocess.run(
        [BASH, "-c", f"set -euo pipefail; source '{SCRIPT}'; {commands}"],
        env={"PATH": str(programs), **variables},
        capture_output=True,
        text=True,
    )


def program(path, body):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{BASH}\n{body}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("python", "messages"),
    [
        (
            '[[ $1 == --version ]] && echo "Python 3.8.10"; [[ $1 == --version ]]',
            ["no Python 3.10 to 3.13 found; python3 is Python 3.8.10"],
        ),
        (
            'case "$*" in *ensurepip*) exit 1;; --version) echo "Python 3.11.2";; esac',
            ["Python 3.11.2 cannot make virtual environments", "apt install python3-venv"],
        ),
    ],
)
def test_says_why_no_python_will_do(tmp_path, python, messages):
    program(tmp_path / "python3", python)
    result = run("find_python", tmp_path)
    assert result.returncode == 1
    assert all(message in result.stderr for message in messages)


def test_failed_installation_shows_the_end_of_its_log(tmp_path):
    env = tmp_path / "env"
    program(env / "bin" / "python", '[[ "$*" == *pip* ]] && { echo "no matching distribution"; exit 1; }; exit 0')
    programs = tmp_path / "bin"
    programs.mkdir()
    result = run('set_up ""; echo reached', programs, VIRTUAL_ENV=str(env), TMPDIR=str(tmp_path))
    assert result.returncode == 1
    assert "no matching distribution" in result.stderr
    assert "the installation failed; the whole log is in" in result.stderr
    assert "reached" not in result.stdout


def test_scripts_are_executable():
    root = SCRIPT.parents[1]
    for path in ("scripts/demo.sh", "scripts/test.sh", ".ci/run"):
        assert os.access(root / path, os.X_OK), path
