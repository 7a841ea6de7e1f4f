"""``.ci/run``: what it runs, in which order, and what it says where vLLM's environment can't be made."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TEST = 'echo "test.sh $*"; [[ "$*" == "${FAILING-none}" ]] && exit 3; exit 0\n'
BUILD = 'echo "No space left on device"; exec bash -c "$BUILD"\n'


@pytest.fixture
def run(tmp_path):
    """``run(BUILD=..., FAILING=...)`` -> exit status and lines, with scripts that stand in for the real ones."""
    for name in (".ci", "scripts"):
        (tmp_path / name).mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci" / "run")
    (tmp_path / "scripts" / "test.sh").write_text(TEST)
    (tmp_path / "scripts" / "serve_vllm.sh").write_text(BUILD)

    def run(**environment: str) -> tuple[int, list[str]]:
        done = subprocess.run(
            ["bash", str(tmp_path / ".ci" / "run")],
            env=os.environ | environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done.returncode, done.stdout.splitlines()

    return run


def test_all_tests_then_those_with_vllm(run):
    assert run(BUILD="true") == (0, ["test.sh ", "test.sh --vllm"])


def test_a_failure_of_either_is_one_of_the_whole(run):
    assert run(BUILD="sleep 60", FAILING="") == (3, ["test.sh "])
    assert run(BUILD="true", FAILING="--vllm") == (3, ["test.sh ", "test.sh --vllm"])


@pytest.mark.parametrize("build", ["exit 1", "sleep 60"])
def test_without_an_environment_it_says_so_and_ends_with_tests(run, build):
    status, lines = run(BUILD=build, QWENVL_VLLM_BUILD_SECONDS="1")
    assert status == 0 and lines[0] == "test.sh "
    assert lines[1].startswith(
        "The tests with real vLLM are not run: its environment could not be made here within 1 s"
    )
    assert lines[2] == "No space left on device"
    assert lines[-1] == "test.sh -rs tests/vllm_server"
