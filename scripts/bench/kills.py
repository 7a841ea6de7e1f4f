"""Kill runs at moments that a seed selects, resume each with --resume auto, and compare its end with an unharmed run.

    python scripts/bench/kills.py                                # 200 kills, about an hour on one core
    python scripts/bench/kills.py --kills 20 --runs adapters     # some, of one kind of run

A run is killed in a phase: beginning (it loads its checkpoint), step, refill (dynamic sampling), evaluation, save or
ending (the model is saved). It dies after so many calls of Python or C within the phase, or when a file that it writes
grows beyond so many bytes. Each run is killed again and again, also while it
resumes, and at last lives to its end. Equal means: model, optimizer, schedule and random numbers are those of a run
that was not killed, bit by bit, and so are completions and logged numbers, times and memory aside. It ends with status
1 if a run ended otherwise, or left a process behind.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import random
import resource
import shutil
import signal
import statistics
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
os.environ |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "TOKENIZERS_PARALLELISM": "false"}

import numpy as np
import torch
from safetensors.torch import load_file

import qwenvl.train.grpo_trainer  # noqa: F401 (here once, and not in each process that is forked)
from qwenvl.demo.clips import encode
from qwenvl.demo.tiny import save_tiny
from qwenvl.run_log.log import read_metrics, read_rollouts

PHASES = ("beginning", "step", "refill", "evaluation", "save", "ending")
WRITES = ("save", "ending")  # phases that write large files
RUNS = {
    "weights": "--save_total_limit 1 --per_device_train_batch_size 2",
    "adapters": "--lora_enable --save_total_limit 2 --num_iterations 2 --gradient_accumulation_steps 2 --save_steps 2",
    "moving": "--sync_ref_model --ref_model_sync_steps 2 --dataloader_num_workers 1 --per_device_train_batch_size 2",
}
STEPS = 8
COMMON = (
    "--generation_max_length 5 --grpo_sample_size 3 --learning_rate 1e-3 --base_interval 0.5 --use_cpu --seed 3 "
    "--save_strategy steps --save_steps 1 --eval_strategy steps --eval_steps 2 --filter_groups --display none "
    f"--resume auto --max_steps {STEPS}"
)
PATIENCE = 10.0  # seconds that what a killed run had started may take to end


@dataclass(frozen=True)
class Moment:
    """When a run is killed.

    Attributes:
        phase: one of `PHASES`.
        occurrence: which phase of this name in the life of the process, from 1.
        kind: ``call``: SIGKILL after the call number ``at`` of Python or C within the phase, or at its end if it has
            fewer. ``write``: the system ends the process (SIGXFSZ) when a file grows beyond ``at`` bytes.
        at: calls or bytes.
    """

    phase: str
    occurrence: int = 1
    kind: str = "call"
    at: int = 0


@dataclass
class Trail:
    """The phases that a run has ended, a line for each, in a file that outlives the process.

    Attributes:
        file: descriptor of the file.
        moment: when the process dies. None: it counts the calls of its phases and lives.
        open: the calls in each phase that has not ended.
    """

    file: int
    moment: Moment | None
    seen: dict[str, int] = field(default_factory=dict)
    open: dict[str, int] = field(default_factory=dict)

    def begin(self, phase: str) -> None:
        """The run enters a phase, where its death may wait."""
        self.seen[phase] = self.seen.get(phase, 0) + 1
        self.open[phase] = 0
        if self.moment is None:
            sys.setprofile(self._count)
        elif (self.moment.phase, self.moment.occurrence) == (phase, self.seen[phase]):
            self._arm(self.moment)

    def end(self, phase: str) -> None:
        """The run leaves a phase. Where it should have died within, it dies now."""
        moment = self.moment
        if moment is None:
            sys.setprofile(None)
        elif moment.kind == "call" and (moment.phase, moment.occurrence) == (phase, self.seen[phase]):
            os.kill(os.getpid(), signal.SIGKILL)
        os.write(self.file, f"{phase} {self.open.pop(phase)}\n".encode())
        if moment is None and self.open:
            sys.setprofile(self._count)

    def within(self, phase: str, function: Callable) -> Callable:
        """The function, as a phase of the run."""

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            self.begin(phase)
            result = function(*args, **kwargs)
            self.end(phase)
            return result

        return run

    def _count(self, frame: Any, event: str, argument: Any) -> None:
        if event in ("call", "c_call"):
            for phase in self.open:
                self.open[phase] += 1

    def _arm(self, moment: Moment) -> None:
        if moment.kind == "write":
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_FSIZE, (moment.at, moment.at))
        elif moment.kind == "call":
            left, own = moment.at, os.getpid()

            def kill(frame: Any, event: str, argument: Any) -> None:
                nonlocal left
                left -= event in ("call", "c_call")
                if left <= 0 and os.getpid() == own:  # and no process that reads records for it
                    os.kill(own, signal.SIGKILL)

            sys.setprofile(kill)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--per_run", type=int, default=10, help="times that a run is killed before it may end")
    parser.add_argument("--runs", nargs="+", default=list(RUNS), choices=RUNS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output_dir", type=Path, default=Path("runs/kills"), help="a new folder")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    bench = Bench(args.output_dir.resolve())
    bench.make_what_runs_read()
    while (left := args.kills - len(bench.kills)) > 0:
        chain = len(bench.differs)
        bench.chain(args.runs[chain % len(args.runs)], min(args.per_run, left), args.seed)
    (bench.folder / "kills.json").write_text(json.dumps({"kills": bench.kills, "differs": bench.differs}))
    print(table(bench.kills, bench.differs))
    return int(any(bench.differs) or any(kill["left_behind"] for kill in bench.kills))


class Bench:
    """The kills so far, and what differs in each of the killed runs, the chains."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.kills: list[dict[str, Any]] = []
        self.differs: list[list[str]] = []

    def make_what_runs_read(self) -> None:
        """A tiny model, two clips and six texts. Half of the groups have equal rewards."""
        self.folder.mkdir(parents=True)
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

    def chain(self, run: str, kills: int, seed: int) -> None:
        """Kill one run so many times, or until it ends before, and compare it."""
        unharmed, number = self._unharmed(run), len(self.differs)
        out = self.folder / f"chain-{number}"
        draw = random.Random(f"{seed} {number} {run}")
        took, largest = _took(unharmed), max(each.stat().st_size for each in unharmed.rglob("*") if each.is_file())
        moments = iter([_drawn(draw, phase, took[phase], largest) for phase in _phases(draw, kills)])
        attempts = []
        while True:
            moment = next(moments, None)
            attempts.append(out.with_name(f"{out.name}-attempt-{len(attempts)}"))
            status, left = _lives(self._argv(run, out), moment, attempts[-1])
            if status == 0:
                break
            if os.WIFEXITED(status) or moment is None:
                raise SystemExit(f"{run}, {moment}: failed:\n{attempts[-1].with_suffix('.log').read_text()}")
            name = signal.Signals(os.WTERMSIG(status)).name
            self.kills.append(asdict(moment) | {"chain": number, "signal": name, "left_behind": left})
        self.differs.append(differences(unharmed, out, STEPS))
        if not self.differs[-1]:
            shutil.rmtree(out)

    def _unharmed(self, run: str) -> Path:
        out = self.folder / f"unharmed-{run}"
        if not out.exists():
            status, _ = _lives(self._argv(run, out), None, out)
            if status:
                raise SystemExit(f"{run}: failed:\n{out.with_suffix('.log').read_text()}")
        return out

    def _argv(self, run: str, out: Path) -> list[str]:
        named = f"--model_name_or_path {self.folder / 'model'} --output_dir {out} --reward_funcs {__file__}:half_alike"
        data = f"--dataset_use {self.folder / 'data.json'} --eval_dataset_use {self.folder / 'data.json'}%50"
        return [*named.split(), *data.split(), *COMMON.split(), *RUNS[run].split()]


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
    _, status = os.waitpid(child, 0)
    until = time.monotonic() + PATIENCE
    while (left := _of_session(child)) and time.monotonic() < until:
        time.sleep(0.02)
    return status, left


def _of_session(session: int) -> int:
    """The number of living processes that a run has started."""
    count = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, of = path.read_text().rpartition(")")[2].split()[:4]
        except (OSError, ValueError):
            continue
        count += int(of) == session and state != "Z"
    return count


def _drawn(draw: random.Random, phase: str, calls: float, largest: int) -> Moment:
    """A moment of a phase, which took so many calls when the run was not killed."""
    kind = draw.choice(["call", "write"] if phase in WRITES else ["call"])
    occurrence = 1 if phase in ("beginning", "evaluation", "ending") else draw.randint(1, 2)
    return Moment(phase, occurrence, kind, int(draw.uniform(0, {"call": calls, "write": largest}[kind])))


def _phases(draw: random.Random, count: int) -> list[str]:
    """The phases that a run is killed in: each as often as the others, and its end only at last."""
    phases: list[str] = []
    while len(phases) < count - 1:
        phases += draw.sample(PHASES[:-1], len(PHASES) - 1)
    return [*phases[: count - 1], PHASES[-1]]


def _took(unharmed: Path) -> dict[str, float]:
    """Calls of each phase of the run that was not killed, the medians."""
    calls: dict[str, list[float]] = defaultdict(list)
    for line in unharmed.with_suffix(".trail").read_text().splitlines():
        calls[line.split()[0]].append(float(line.split()[1]))
    return {phase: statistics.median(values) for phase, values in calls.items()}


def live(argv: list[str], moment: Moment | None, trail: Path) -> None:
    """Train by the command, with phases noted, until the moment comes or the run is done. For a process of its own."""
    from qwenvl.commands.train import main
    from qwenvl.step.refill import Refill
    from qwenvl.step.score import ScoredGroups
    from qwenvl.train.grpo_trainer import GRPOTrainer
    from qwenvl.train.policy_trainer import PolicyTrainer

    noted = Trail(os.open(trail, os.O_WRONLY | os.O_CREAT | os.O_APPEND), moment)
    Refill.loaded = noted.within("refill", Refill.loaded)
    GRPOTrainer.evaluation_loop = noted.within("evaluation", GRPOTrainer.evaluation_loop)
    PolicyTrainer._save_checkpoint = noted.within("save", PolicyTrainer._save_checkpoint)
    _note_steps(noted, GRPOTrainer)
    scored, saves = ScoredGroups.__call__, GRPOTrainer.save_model

    def refills(self: Any, batches: Any, step: Any) -> Any:
        return (noted.within("refill", scored) if step.purpose else scored)(self, batches, step)

    def save(self: Any, output_dir: str | None = None, _internal_call: bool = False) -> None:
        (saves if _internal_call else noted.within("ending", saves))(self, output_dir, _internal_call)

    ScoredGroups.__call__ = refills
    GRPOTrainer.save_model = save
    main(argv)


def _note_steps(noted: Trail, trainer: Any) -> None:
    """``beginning`` lasts until the first step draws its prompts, ``step`` from there to what is done after it."""
    train, draw, after = trainer.train, trainer.get_batch_samples, trainer._maybe_log_save_evaluate

    def begins(self: Any, *args: Any, **kwargs: Any) -> Any:
        noted.begin("beginning")
        return train(self, *args, **kwargs)

    def draws(self: Any, *args: Any, **kwargs: Any) -> Any:
        if "beginning" in noted.open:
            noted.end("beginning")
        if "step" not in noted.open:
            noted.begin("step")
        return draw(self, *args, **kwargs)

    def ends(self: Any, *args: Any, **kwargs: Any) -> Any:
        if "step" in noted.open:
            noted.end("step")
        return after(self, *args, **kwargs)

    trainer.train, trainer.get_batch_samples, trainer._maybe_log_save_evaluate = begins, draws, ends


def half_alike(completions: list[str], id: list[str], **columns: Any) -> list[float]:
    """A reward that differs within the groups of records whose id is even, and is 1 for the others."""
    return [len(set(text)) / 10 if int(each) % 2 == 0 else 1.0 for text, each in zip(completions, id, strict=True)]


def differences(unharmed: Path, out: Path, steps: int) -> list[str]:
    """The differences between a run of so many steps that was killed and one that was not."""
    files = [each.name for each in unharmed.glob("*.safetensors")]
    files += [f"checkpoint-{steps}/{name}" for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth")]
    pairs = {name: (unharmed / name, out / name) for name in files}
    differ = [name for name, (one, other) in pairs.items() if not (other.exists() and _same(_read(one), _read(other)))]
    logged = [_logged(folder) for folder in (unharmed, out)]
    rows = [sorted(map(repr, read_rollouts(folder))) for folder in (unharmed, out)]
    return differ + ["metrics.jsonl"] * (logged[0] != logged[1]) + ["rollouts"] * (rows[0] != rows[1])


def _read(path: Path) -> Any:
    return load_file(path) if path.suffix == ".safetensors" else torch.load(path, weights_only=False)


def _same(one: Any, other: Any) -> bool:
    """Whether two values are equal to the last bit. The bytes of a pickle hang on which of its texts are one object."""
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(value, other[name]) for name, value in one.items())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return np.array_equal(one, other)


def _logged(folder: Path) -> list[dict]:
    """The log without times, and without the row of the end, which tells of the last process alone."""
    rows = [row for row in read_metrics(folder) if "train_runtime" not in row]
    changes = ("time/", "memory/"), ("_runtime", "_per_second")
    return [{k: v for k, v in row.items() if not (k.startswith(changes[0]) or k.endswith(changes[1]))} for row in rows]


def table(kills: list[dict[str, Any]], differs: list[list[str]]) -> str:
    """The kills by phase, and how many of them are of runs that ended equal."""
    lines = ["| killed in | kills | after calls | in a file | equal |", "|---" * 5 + "|"]
    for phase in sorted({kill["phase"] for kill in kills}):
        own = [kill for kill in kills if kill["phase"] == phase]
        calls = sum(kill["kind"] == "call" for kill in own)
        equal = sum(not differs[kill["chain"]] for kill in own)
        lines.append(f"| {phase} | {len(own)} | {calls} | {len(own) - calls} | {equal} |")
    return "\n".join([*lines, "", *(f"chain {i}: {differ or 'equal'}" for i, differ in enumerate(differs))])


if __name__ == "__main__":
    sys.exit(main())
