"""Kill runs at moments that a seed draws, resume each with --resume auto, and compare its end with an unharmed run.

    python scripts/bench/kills.py                                # 200 kills, about an hour on one core
    python scripts/bench/kills.py --kills 20 --runs adapters     # some, of one kind of run

Each run is killed again and again, also while it resumes, and at last lives to its end. Equal means: its
model, and the optimizer, schedule and random numbers in its last checkpoint, are those of a run that nobody killed, bit
by bit, and so are the completions and numbers that it logged, times and memory aside. Asked again, the kills that
are done are not made again. It ends with status 1 where a run ended otherwise, or left a process behind.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import sys
import time
import traceback
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parent)]
os.environ |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "TOKENIZERS_PARALLELISM": "false"}

import torch  # noqa: E402
from kill_moments import PHASES, SYNC, WRITES, Moment, live  # noqa: E402
from kill_results import differences, table  # noqa: E402

import qwenvl.train.grpo_trainer  # noqa: E402, F401 (here once, and not in each process that is forked)
from qwenvl.demo.clips import encode  # noqa: E402
from qwenvl.demo.tiny import save_tiny  # noqa: E402
from qwenvl.train.run.checkpoints import is_sealed  # noqa: E402

RUNS = {
    "weights": "--save_total_limit 1 --per_device_train_batch_size 2",
    "adapters": "--lora_enable --save_total_limit 2 --num_iterations 2 --gradient_accumulation_steps 2 --save_steps 2",
    "moving": "--sync_ref_model --ref_model_sync_steps 2 --difficulty_band accuracy(low=0.05,high=0.95) "
    "--dataloader_num_workers 1 --per_device_train_batch_size 2",
    "served": "--save_total_limit 1 --per_device_train_batch_size 2 --rollout_engine vllm_server "
    "--vllm_deadline 20 --check_parity every",
}
SERVED = ("served",)  # the server is that of the tests, which speaks as the real one and samples by our engine
STEPS = 8
COMMON = (
    "--generation_max_length 5 --grpo_sample_size 3 --learning_rate 1e-3 --base_interval 0.5 --use_cpu --seed 3 "
    "--save_strategy steps --save_steps 1 --eval_strategy steps --eval_steps 2 --filter_groups --display none "
    f"--resume auto --max_steps {STEPS}"
)
PATIENCE = 10.0  # seconds that what a killed run had started may take to end


@dataclass(frozen=True)
class Killed:
    """One kill: when it was to come, what the run was at when it came, what it left, and where it was taken up."""

    run: str
    chain: int
    moment: Moment
    signal: str
    at: str
    whole: list[int]
    unfinished: list[int]
    left_behind: int
    resumed_from: int | None = None


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--per_run", type=int, default=10, help="times that a run is killed before it may end")
    parser.add_argument("--runs", nargs="+", default=list(RUNS), choices=RUNS)
    parser.add_argument("--kinds", nargs="+", default=["call", "write", "time"], choices=["call", "write", "time"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output_dir", type=Path, default=Path("runs/kills"))
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    bench = Bench(args.output_dir.resolve())
    bench.make_what_runs_read()
    if set(SERVED) & set(args.runs):
        bench.serve()
    while (left := args.kills - len(bench.rows("kills"))) > 0:
        chain = len(bench.rows("runs"))
        bench.chain(chain, args.runs[chain % len(args.runs)], min(args.per_run, left), args.kinds, args.seed)
    kills, runs = bench.rows("kills"), bench.rows("runs")
    print(table(kills, runs))
    return int(any(row["differs"] for row in runs) or any(row["left_behind"] for row in kills))


class Bench:
    """The folder of the kills, and what is done in it."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.server = ""

    def serve(self) -> None:
        """Start the server, in a process of its own that ends with this one."""
        ours, theirs = os.pipe()
        if os.fork() == 0:
            os.close(ours)
            _serve(self.folder / "model", theirs)
        os.close(theirs)
        with open(ours) as said:
            self.server = said.readline().strip()

    def rows(self, name: str) -> list[dict]:
        """What stands in a file of results."""
        path = self.folder / f"{name}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def make_what_runs_read(self) -> None:
        """A tiny model, two clips and six texts. Half of the groups have equal rewards."""
        if (self.folder / "data.json").exists():
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        save_tiny(self.folder / "model", "qwen2_5_vl", initializer_range=0.1)
        rows = []
        for n in range(8):
            question = f"What comes after step {n}?"
            row = {"id": str(n), "conversations": [{"from": "human", "value": question}, {"from": "gpt", "value": "1"}]}
            if n < 2:
                pictures = torch.randint(0, 255, (4, 56, 56, 3), dtype=torch.uint8).numpy()
                encode(self.folder / f"{n}.mp4", pictures, 2, options={})
                row["video"] = f"{n}.mp4"
                row["conversations"][0]["value"] = f"<video>\n{question}"
            rows.append(row)
        (self.folder / "data.json").write_text(json.dumps(rows))

    def chain(self, number: int, run: str, kills: int, kinds: list[str], seed: int) -> None:
        """Kill one run so many times, or until it ends before, and compare it."""
        unharmed = self._unharmed(run)
        out = self.folder / f"chain-{number}"
        shutil.rmtree(out, ignore_errors=True)
        draw = random.Random(f"{seed} {number} {run}")
        killed: list[Killed] = []
        phases, took = _phases(draw, kills, (*PHASES[:-1], *([SYNC] if run in SERVED else []))), _took(unharmed)
        while True:
            moment = None
            if len(killed) < kills:
                phase = phases[len(killed)]
                moment = _drawn(draw, phase, took[phase], kinds, _largest(unharmed))
            attempt = out.with_name(f"{out.name}-attempt-{len(killed)}")
            status, left = _lives(self._argv(run, out), moment, attempt)
            if killed:
                killed[-1] = Killed(**{**vars(killed[-1]), "resumed_from": _resumed(attempt)})
            if status == 0:
                break
            if os.WIFEXITED(status) or moment is None:
                raise SystemExit(f"{run}, {moment}: failed:\n{attempt.with_suffix('.log').read_text()}")
            whole, unfinished = _checkpoints(out)
            name = signal.Signals(os.WTERMSIG(status)).name
            killed.append(Killed(run, number, moment, name, _at(attempt), whole, unfinished, left))
        self._write("kills", [asdict(each) for each in killed])
        differ = differences(unharmed, out, STEPS)
        self._write("runs", [{"chain": number, "run": run, "kills": len(killed), "differs": differ}])
        for each in [] if differ else [out, *self.folder.glob(f"{out.name}-attempt-*")]:
            shutil.rmtree(each) if each.is_dir() else each.unlink()

    def _unharmed(self, run: str) -> Path:
        out = self.folder / f"unharmed-{run}"
        if not (out / "model.safetensors").exists() and not (out / "adapter_model.safetensors").exists():
            status, _ = _lives(self._argv(run, out), None, out)
            if status:
                raise SystemExit(f"{run}: failed:\n{out.with_suffix('.log').read_text()}")
        return out

    def _argv(self, run: str, out: Path) -> list[str]:
        rewards = Path(__file__).with_name("kill_moments.py")
        named = f"--model_name_or_path {self.folder / 'model'} --output_dir {out} --reward_funcs {rewards}:half_alike"
        data = f"--dataset_use {self.folder / 'data.json'} --eval_dataset_use {self.folder / 'data.json'}%50"
        server = f"--vllm_server {self.server}" if run in SERVED else ""
        return [*named.split(), *data.split(), *COMMON.split(), *RUNS[run].split(), *server.split()]

    def _write(self, name: str, rows: list[dict]) -> None:
        with (self.folder / f"{name}.jsonl").open("a") as file:
            file.write("".join(json.dumps(row) + "\n" for row in rows))


def _serve(model: Path, told: int) -> None:
    """What the process of the server does: samples until nobody needs it. Its first weights are none of the run's."""
    from transformers import AutoModelForImageTextToText, AutoProcessor

    from tests.fake_server import FakeServer

    parent = os.getppid()
    policy = AutoModelForImageTextToText.from_pretrained(model, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(0.5)
    server = FakeServer(policy, AutoProcessor.from_pretrained(model).tokenizer)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # each thread would tell of a trainer that was killed
    os.write(told, f"{server.address}\n".encode())
    os.close(told)
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(0)


def _lives(argv: list[str], moment: Moment | None, trail: Path) -> tuple[int, int]:
    """Run the command in a forked process until it ends or is killed. Return its status, and how many outlived it."""
    path, log = trail.with_suffix(".trail"), trail.with_suffix(".log")
    path.write_text("")
    child = os.fork()
    if child == 0:
        os.setsid()
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        try:
            live(argv, moment, path)
            sys.stderr.flush()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    if moment is not None and moment.kind == "time":
        _kill_in_time(child, moment, path)
    _, status = os.waitpid(child, 0)
    until = time.monotonic() + PATIENCE
    while (left := _of_session(child)) and time.monotonic() < until:
        time.sleep(0.02)
    return status, left


def _kill_in_time(child: int, moment: Moment, trail: Path) -> None:
    while "armed" not in trail.read_text():
        if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return
        time.sleep(0.002)
    time.sleep(moment.at)
    os.kill(child, signal.SIGKILL)  # it has not been waited for: the number is still its own


def _of_session(session: int) -> int:
    """How many processes live that a run has started."""
    count = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, of = path.read_text().rpartition(")")[2].split()[:4]
        except (OSError, ValueError):
            continue
        count += int(of) == session and state != "Z"
    return count


def _drawn(draw: random.Random, phase: str, took: tuple[float, float], kinds: list[str], largest: int) -> Moment:
    """A moment of a phase, which took so many calls and seconds when nobody killed the run."""
    kind = draw.choice([each for each in kinds if each != "write" or phase in WRITES])
    occurrence = 1 if phase in ("beginning", "evaluation", "ending") else draw.randint(1, 2)
    calls, seconds = took
    most = {"call": calls, "write": largest, "time": seconds}[kind]
    at = draw.uniform(0, most)
    return Moment(phase, occurrence, kind, round(at, 3) if kind == "time" else int(at))


def _phases(draw: random.Random, count: int, among: tuple[str, ...]) -> list[str]:
    """The phases that a run is killed in: each as often as the others, and its end only at last."""
    phases: list[str] = []
    while len(phases) < count - 1:
        phases += draw.sample(among, len(among))
    return [*phases[: count - 1], PHASES[-1]]


def _took(unharmed: Path) -> dict[str, tuple[float, float]]:
    """Calls and seconds of each phase of the run that was not killed, the medians."""
    numbers: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for line in unharmed.with_suffix(".trail").read_text().splitlines():
        if line.startswith("ends"):
            _, phase, calls, seconds = line.split()
            numbers[phase].append((float(calls), float(seconds)))
    return {phase: tuple(map(statistics.median, zip(*values, strict=True))) for phase, values in numbers.items()}


def _largest(folder: Path) -> int:
    return max(each.stat().st_size for each in folder.rglob("*") if each.is_file())


def _at(attempt: Path) -> str:
    """The phases that had begun and not ended, the outer one first."""
    at: list[str] = []
    for line in attempt.with_suffix(".trail").read_text().splitlines():
        word, *rest = line.split()
        if word == "begins":
            at.append(rest[0])
        elif word == "ends":
            at.remove(rest[0])
    return " > ".join(at) or "between"


def _resumed(attempt: Path) -> int | None:
    """The step that a process went on from, if it came so far."""
    lines = attempt.with_suffix(".trail").read_text().splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith("resumed")), None)


def _checkpoints(out: Path) -> tuple[list[int], list[int]]:
    """The steps of whole and of unfinished checkpoints."""
    steps: dict[bool, list[int]] = {True: [], False: []}
    for each in out.glob("checkpoint-*"):
        steps[is_sealed(each)].append(int(each.name.rpartition("-")[2]))
    return sorted(steps[True]), sorted(steps[False])


if __name__ == "__main__":
    sys.exit(main())
