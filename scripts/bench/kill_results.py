"""What became of runs that were killed: compared with the one that was not, and as a table."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from qwenvl.runlog import read_metrics, read_rollouts


def differences(unharmed: Path, out: Path, steps: int) -> list[str]:
    """What a run of so many steps that was killed has otherwise than the one that was not."""
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


def table(kills: list[dict], runs: list[dict]) -> str:
    """What was seen, by the phase that a run was in."""
    equal = {row["chain"]: not row["differs"] for row in runs}
    lines = ["| killed in | kills | after calls, in a file, by time | an unfinished checkpoint lay there | equal |"]
    lines.append("|---" * 5 + "|")
    phases = Counter(row["at"].rpartition(" > ")[2] for row in kills)
    for phase, count in sorted(phases.items()):
        own = [row for row in kills if row["at"].rpartition(" > ")[2] == phase]
        kinds = Counter(row["moment"]["kind"] for row in own)
        told = ", ".join(str(kinds[kind]) for kind in ("call", "write", "time"))
        torn = sum(bool(row["unfinished"]) for row in own)
        lines.append(f"| {phase} | {count} | {told} | {torn} | {sum(equal[row['chain']] for row in own)} |")
    again = sum(row["resumed_from"] is None for row in kills)
    ended = f"{len(runs)} runs, {sum(equal.values())} of them equal; {again} kills came before the next step began"
    lines += ["", ended, *(f"chain {row['chain']}: {row['differs']}" for row in runs if row["differs"])]
    return "\n".join(lines)
