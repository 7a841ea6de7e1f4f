"""``scripts/slurm/train_grpo.sbatch``, by programs in the place of SLURM's that do as these do on one machine."""

import os
import re
import shlex
import signal
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
JOB = ROOT / "scripts" / "slurm" / "train_grpo.sbatch"
SRUN = r"""
options=()
while [[ "$1" == --* ]]; do options+=("$1"); shift; done
pids=()
for ((n = 0; n < SLURM_JOB_NUM_NODES; n++)); do SLURM_NODEID=$n "$@" & pids+=($!); done
told=0 worst=0
trap 'told=$((told + 1)); kill -USR1 "${pids[@]}" || true' USR1
for pid in "${pids[@]}"; do
    seen=-1
    while ((seen < told)); do seen=$told; wait "$pid" && status=0 || status=$?; done
    ((status == 0)) || worst=$status
done
exit "$worst"
"""
SCONTROL = r"""
if [[ "$1 $2" == "show hostnames" ]]; then printf 'first\nsecond\n'; else echo "scontrol $*"; fi
"""
TRAINING = r"""
trap 'exit 0' USR1
echo "starts: $*"
[[ "$*" == *fails* ]] && exit 7
[[ "$*" == *ends* ]] && exit 0
while :; do sleep 0.05; done
"""


@pytest.fixture
def job(tmp_path):
    """``job(*arguments)`` -> the running job of two machines."""
    for name, text in {"srun": SRUN, "scontrol": SCONTROL, "training": TRAINING}.items():
        (tmp_path / name).write_text(f"#!/usr/bin/env bash\nset -euo pipefail\n{text}")
        (tmp_path / name).chmod(0o755)
    slurm = {"SLURM_JOB_ID": "41", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "machine[1-2]"}
    environment = {**os.environ, **slurm, "SLURM_SUBMIT_DIR": str(ROOT), "NPROC": "8", "DATASET": "sop"}
    environment |= {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHON": str(tmp_path / "training")}

    def start(*arguments: str) -> subprocess.Popen:
        copied = tmp_path / "slurm_script"  # SLURM runs a copy that lies elsewhere
        copied.write_text(JOB.read_text(encoding="utf-8"))
        command = ["bash", str(copied), *arguments]
        return subprocess.Popen(command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, text=True)

    return start


def test_all_machines_start_the_same_run_and_know_their_numbers(job):
    with job("--run_name", "two words that ends") as running:
        lines = running.stdout.read().splitlines()
    assert running.returncode == 0 and len(lines) == 2
    for line in lines:
        words = line.removeprefix("starts: ")
        assert words.endswith("--run_name two words that ends --resume auto") and "--dataset_use sop" in words
        assert "--nnodes 2" in words and "--master_addr first --master_port 20041 --nproc_per_node 8" in words
    assert {re.search(r"--node_rank (\d)", line)[1] for line in lines} == {"0", "1"}


def test_a_job_that_is_out_of_time_is_queued_again(job):
    with job() as running:
        for _ in range(2):
            assert running.stdout.readline().startswith("starts: ")
        running.send_signal(signal.SIGUSR1)
        said = running.stdout.read()
    assert running.returncode == 0
    assert said == "out of time: job 41 is queued again, and goes on from its checkpoint\nscontrol requeue 41\n"


def test_a_run_that_fails_ends_the_job(job):
    with job("--run_name", "fails") as running:
        assert "requeue" not in running.stdout.read()
    assert running.returncode == 7


def test_the_file_is_valid_and_asks_for_what_it_needs():
    subprocess.run(["bash", "-n", str(JOB)], check=True)
    text = JOB.read_text(encoding="utf-8")
    asked = {shlex.split(line)[1].partition("=")[0] for line in text.splitlines() if line.startswith("#SBATCH")}
    assert {"--requeue", "--signal", "--open-mode", "--nodes", "--ntasks-per-node"} <= asked
    assert "set -euo pipefail" in text
