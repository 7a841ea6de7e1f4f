"""scripts/serve_vllm.sh with programs that stand in for Python and pip: what it makes, and what it starts again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from qwenvl.vllm_server.__main__ import VLLM
from qwenvl.vllm_server.server import RESTART

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "serve_vllm.sh"

# Python as the script finds it on the machine. A virtual environment that it makes has the second as its Python.
MACHINE = """#!/bin/bash
if [[ "$1 $2" == "-m venv" ]]; then
    mkdir -p "$3/bin"; cp "$STAND_IN" "$3/bin/python"; echo "venv" >>"$LOG"; exit
fi
exec "$REAL" "$@"
"""
INSTALLED = """#!/bin/bash
echo "$*" | cut -c1-80 >>"$LOG"
case "$*" in
*"pip install"*) exec bash -c "$PIP" ;;
*qwenvl.vllm_server*) echo "served" >>"$SERVED"; exec bash -c "$SERVE" ;;
esac
"""


@pytest.fixture
def run(tmp_path):
    """``run(*arguments, PIP=..., SERVE=...)`` -> the script under way; what it did is in ``log()``."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (("python3.12", MACHINE), ("stand_in", INSTALLED)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    environment = os.environ | {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "REAL": sys.executable,
        "STAND_IN": str(programs / "stand_in"),
        "QWENVL_VLLM_ENV": str(tmp_path / "env"),
        "LOG": str(tmp_path / "log"),
        "SERVED": str(tmp_path / "served"),
        **{"PIP": "true", "SERVE": "true"},
    }

    def start(*arguments: str, **programs: str) -> subprocess.Popen:
        return subprocess.Popen(
            ["bash", str(SCRIPT), *arguments],
            env=environment | programs,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    return start


def done(process: subprocess.Popen) -> tuple[int, str]:
    said, errors = process.communicate(timeout=120)
    return process.returncode, said + errors


def log(folder: Path) -> list[str]:
    return (folder / "log").read_text().splitlines()


def installs(folder: Path) -> int:
    return sum("pip install" in line for line in log(folder))


def test_the_environment_is_made_once_for_each_pinned_version(run, tmp_path):
    both = [run("--build", PIP="sleep 0.5") for _ in range(2)]
    assert [done(each)[0] for each in both] == [0, 0]
    assert any(f"=={VLLM}" in line for line in log(tmp_path))
    assert done(run("--build")) == (0, "") and installs(tmp_path) == 1
    (tmp_path / "env" / "qwenvl-packages").write_text("vllm==0.1.0\n")
    done(run("--build"))
    assert installs(tmp_path) == 2


def test_an_installation_that_fails_is_reported_and_tried_again(run, tmp_path):
    status, said = done(run("tiny", PIP="echo 'No matching distribution found'; exit 1"))
    assert status == 1
    assert "No matching distribution found" in said
    assert "error: the environment for vLLM could not be made: pip failed. The whole log is in" in said
    assert not (tmp_path / "served").exists()
    assert done(run("--build"))[0] == 0 and installs(tmp_path) == 2  # one that was cut short is made again


def test_wrong_arguments_are_refused_before_the_environment_is_made(run, tmp_path):
    status, said = done(run("tiny", "--max_model_len", "0"))
    assert status == 2 and "--max_model_len" in said
    status, said = done(run("tiny", "--port", "70000"))
    assert status == 2 and "--port must be at least 0 and at most 65535" in said
    status, said = done(run("tiny", "--cache_gb", "nan"))
    assert status == 2 and "--cache_gb must be above 0" in said
    status, said = done(run("tiny", "--ready_file", "none/ready"))
    assert status == 2 and "--ready_file none/ready: no such folder" in said
    status, said = done(run("tiny", "--speculative", "ngram:0"))
    assert status == 2 and "--speculative: expected ngram:TOKENS" in said
    status, said = done(run("--help"))
    assert status == 0 and "--max_model_len" in said
    assert done(run())[0] == 2
    assert not (tmp_path / "env").exists()


def test_a_failed_engine_is_started_again_and_other_ends_are_final(run, tmp_path):
    first_fails = f"(($(wc -l <{tmp_path}/served) > 2)) || exit {RESTART}; exit 7"
    status, said = done(run("tiny", SERVE=first_fails))
    assert status == 7
    assert (tmp_path / "served").read_text().count("served") == 3
    assert f"the server ended with status {RESTART}; it is started again in 2 s" in said


def test_the_server_ends_with_its_script(run, tmp_path):
    process = run("tiny", SERVE=f"echo $$ >{tmp_path}/pid; exec sleep 60")
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().strip():
        assert process.poll() is None
    server = int((tmp_path / "pid").read_text())
    process.terminate()
    assert done(process)[0] == 143
    with pytest.raises(ProcessLookupError):
        os.kill(server, 0)


def test_a_server_ends_whose_parent_has_ended_before_it_looks():
    """While vLLM is loaded, which takes seconds, the run may be killed."""
    program = "from qwenvl.vllm_server.__main__ import _end_with_parent; _end_with_parent(2**22 + 1)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0
