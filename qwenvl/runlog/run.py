"""The run folder: what a run writes down of itself, and how to read it back. Standard library only.

run.json              the settings and the versions of what ran them
metrics.jsonl         one object per line: ``step`` and numbers
rollouts/rank-0.jsonl one completion per line, a file for each process
parity/rank-0.jsonl   one group per line whose log-probs were compared (``--check_parity``), a file for each process
"""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from importlib import metadata
from pathlib import Path
from typing import Any

from qwenvl.files import written_whole

_ENDED = ("finished", "trained")  # in ``run.json``, with the last step: the model is saved, training has ended
_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class RunLogError(ValueError):
    """A file of a run folder is not what it should be. The message begins with file and line."""


@dataclass(frozen=True)
class SeenClip:
    """Which frames of a clip a completion was sampled for.

    Attributes:
        path: the clip.
        indices: F source frame numbers.
        times: F presentation times, in seconds.
        segments: for each frame the number of its segment. None where the clip is not segmented.
    """

    path: str
    indices: tuple[int, ...]
    times: tuple[float, ...]
    segments: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Rollout:
    """One completion with what became of it.

    Attributes:
        step: optimizer step, from 1. In evaluation the steps done before it.
        record_id, where: the record's ``id``, and its file and place.
        sample: place in its group, from 0.
        prompt: messages, each with ``role`` and ``text``.
        solution, completion: texts. The completion without special tokens.
        tokens: of the completion, its end token included.
        finish_reason: ``stop`` or ``length``.
        rewards: by function. None where it does not apply.
        total: what the advantage was made of. None for a completion that no function gave a reward.
        advantage: None in evaluation, and for a completion that was dropped.
        dropped: sampled and not trained on, because the rewards of its group are equal (``--filter_groups``).
        clips: of the prompt, in order.
        images: paths, in order.
        epoch: in which the prompt was drawn. With weights or a difficulty band, times that it was drawn before.
        split: ``train``, or the name of the evaluation.
        fitted: what was lowered to make the prompt fit, each before and after: the ``frames`` of each clip, and the
            ``sizes`` (height, width) of the frames of each clip and then of each image. None where nothing was.
    """

    step: int
    record_id: str
    sample: int
    prompt: tuple[Mapping[str, str], ...]
    solution: str
    completion: str
    tokens: int
    finish_reason: str
    rewards: Mapping[str, float | None]
    total: float | None
    advantage: float | None = None
    clips: tuple[SeenClip, ...] = ()
    images: tuple[str, ...] = ()
    epoch: int = 0
    split: str = "train"
    where: str = ""
    fitted: Mapping[str, Any] | None = None
    dropped: bool = False


@dataclass(frozen=True)
class Parity:
    """How far the trainer's log-probs of a group are from the sampler's.

    Attributes:
        step: optimizer step, from 1.
        where: the record's file and place.
        gaps: for each of the G completions the largest difference of a token.
    """

    step: int
    where: str
    gaps: tuple[float, ...]


class RunLog:
    """Writes a run folder. Each process has its own.

    Args:
        folder: made when something is written.
        rank, world_size: of this process. Only rank 0 writes metrics and configuration.
    """

    def __init__(self, folder: str | os.PathLike[str], rank: int = 0, world_size: int = 1) -> None:
        self.folder = Path(folder)
        self.rank, self.world_size = rank, world_size
        self._earlier: dict[Path, int] = {}  # bytes of a file before this process wrote to it

    def write_config(self, config: Mapping[str, Any], versions: Mapping[str, str] | None = None) -> None:
        """Write the settings of the run. Earlier ones in this folder that differ are kept as ``previous``."""
        if self.rank != 0:
            return
        path = self.folder / "run.json"
        content = {"config": plain(config), "versions": dict(versions or installed_versions())}
        previous: list[Any] = []
        if path.exists():
            earlier = read_config(self.folder)
            previous = earlier.pop("previous", [])
            for ended in _ENDED:
                earlier.pop(ended, None)
            if earlier != content:
                previous = [*previous, earlier]
        _replace(path, json.dumps({**content, "previous": previous}, indent=2, allow_nan=False) + "\n")

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append one line of numbers to ``metrics.jsonl``. NaN and infinity are written as words and read back."""
        if self.rank == 0:
            self._append(self.folder / "metrics.jsonl", [{"step": step, **metrics} | {"step": step}])

    def log_rollouts(self, rollouts: Iterable[Rollout]) -> None:
        """Append completions to the file of this process."""
        self._append(self._rollout_path(self.rank), [asdict(rollout) for rollout in rollouts])

    def log_parity(self, groups: Iterable[Parity]) -> None:
        """Append groups to the file of this process."""
        self._append(self._parity_path(self.rank), [asdict(group) for group in groups])

    def begin(self, step: int = 0, *, evaluates: bool = False) -> None:
        """Keep the rows that a run goes on from: one resumed after ``step``, or a new one (0).

        Later steps come again, and so does an evaluation that was cut short: it has completions, but no line of
        metrics. A new run keeps what this process has written before it, such as an evaluation of the untrained model.
        Each process calls it before it writes. Rank 0 also drops the lines of processes that are no more.

        Args:
            evaluates: the evaluations after ``step`` come again, those that were not cut short too.

        Raises:
            RunLogError: a file holds something else than rows.
        """
        evaluated: dict[float, set[str]] = {}
        for row in read_metrics(self.folder):
            evaluated.setdefault(row["step"], set()).update(row)
        if evaluates:
            evaluated[step] = set()
        paths = [self._rollout_path(self.rank), self._parity_path(self.rank)]
        if self.rank == 0:
            gone = (path for path in _paths(self.folder, "*") if _rank_of(path) >= self.world_size)
            paths += [self.folder / "metrics.jsonl", *gone]
        for path in paths:
            if path.exists():
                earlier = 0 if step else self._earlier.get(path, path.stat().st_size)
                lines, at = [], 0
                for line, row in _rows(path):
                    again = evaluates and row["step"] == step and any(name.startswith("eval_") for name in row)
                    if at >= earlier and not again and _is_done(row, step, evaluated):
                        lines.append(line)
                    at += len(line.encode())
                _replace(path, "".join(lines))
                self._earlier[path] = 0

    def finish(self, step: int, saved: bool = True) -> None:
        """Note that the run has ended at ``step``. One that goes on from there takes it back.

        Args:
            saved: its model is in the folder. A script may save it elsewhere, or later.
        """
        if self.rank == 0:
            content = json.dumps({**read_config(self.folder), _ENDED[not saved]: step}, indent=2)
            _replace(self.folder / "run.json", content + "\n")

    def _rollout_path(self, rank: int) -> Path:
        return self.folder / "rollouts" / f"rank-{rank}.jsonl"

    def _parity_path(self, rank: int) -> Path:
        return self.folder / "parity" / f"rank-{rank}.jsonl"

    def _append(self, path: Path, rows: list[dict[str, Any]]) -> None:
        if path not in self._earlier:
            path.parent.mkdir(parents=True, exist_ok=True)
            drop_cut_line(path)
            self._earlier[path] = path.stat().st_size if path.exists() else 0
        append_lines(path, rows)


def read_config(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """``{"config": ..., "versions": ..., "previous": [...]}``, ``"trained": step`` once training has ended, and
    ``"finished": step`` once the model is saved.

    Raises:
        RunLogError: there is none, or it is not JSON.
    """
    path = Path(folder) / "run.json"
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunLogError(f"{path}: no such file; is {folder} the output_dir of a run?") from None
    except ValueError as error:
        raise RunLogError(f"{path}: not JSON: {error}") from None


def read_metrics(folder: str | os.PathLike[str], split: str | None = None) -> list[dict[str, float]]:
    """The lines of ``metrics.jsonl`` in order. Empty where the run has not logged yet.

    Args:
        split: ``train`` for the lines of optimizer steps, the name of an evaluation (``eval``) for its lines. None for
            all, with the Trainer's own line at the end of training.

    Raises:
        RunLogError: a line, other than a cut last one, is not an object with a ``step``.
    """
    mark = {None: "step", "train": "loss"}.get(split, f"{split}_total_reward")
    rows = (row for _, row in _rows(Path(folder) / "metrics.jsonl") if mark in row)
    return [{name: _number(value) for name, value in row.items()} for row in rows]


def read_rollouts(
    folder: str | os.PathLike[str], step: int | None = None, split: str | None = "train"
) -> Iterator[Rollout]:
    """The completions of all processes, process by process in the order they were written.

    Args:
        step: only those of this step. None for all.
        split: only those of training, or of the evaluation of this name. None for all.

    Raises:
        RunLogError: a line, other than a cut last one, is not a rollout.
    """
    for path in _paths(Path(folder), "rollouts"):
        for number, (_, row) in enumerate(_rows(path), start=1):
            if step in (None, row["step"]) and split in (None, row.get("split", "train")):
                yield _rollout(row, f"{path}:{number}")


def read_parity(folder: str | os.PathLike[str]) -> list[Parity]:
    """The groups whose log-probs were compared, of all processes.

    Raises:
        RunLogError: a line, other than a cut last one, is not such a group.
    """
    found = []
    for path in _paths(Path(folder), "parity"):
        for number, (_, row) in enumerate(_rows(path), start=1):
            try:
                found.append(Parity(row["step"], row["where"], tuple(map(_number, row["gaps"]))))
            except (KeyError, TypeError) as error:
                raise RunLogError(f"{path}:{number}: not a compared group: {type(error).__name__} {error}") from None
    return found


def _rollout(row: dict[str, Any], where: str) -> Rollout:
    try:
        clips = tuple(
            SeenClip(c["path"], tuple(c["indices"]), tuple(c["times"]), c["segments"] and tuple(c["segments"]))
            for c in row["clips"]
        )
        known = {each.name: row[each.name] for each in fields(Rollout) if each.name in row or each.default is MISSING}
    except (KeyError, TypeError) as error:
        raise RunLogError(f"{where}: not a rollout: {type(error).__name__} {error}") from None
    return Rollout(**known | {"clips": clips, "images": tuple(row["images"]), "prompt": tuple(row["prompt"])})


def _rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each whole line with what it says."""
    for number, line in whole_lines(path):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise RunLogError(f"{path}:{number}: not JSON: {error}") from None
        if not isinstance(row, dict) or not isinstance(row.get("step"), int):
            raise RunLogError(f'{path}:{number}: expected an object with an integer "step", got {line[:80]!r}')
        yield line, row


def _is_done(row: Mapping[str, Any], step: int, evaluated: Mapping[float, set[str]]) -> bool:
    """Whether a run that is resumed after ``step`` does not write this row again."""
    if row["step"] > step:
        return False
    split = row.get("split", "train")
    return split == "train" or any(name.startswith(f"{split}_") for name in evaluated.get(row["step"], ()))


def _paths(folder: Path, kind: str) -> list[Path]:
    return sorted(folder.glob(f"{kind}/rank-*.jsonl"), key=_rank_of)


def _rank_of(path: Path) -> int:
    return int(path.stem.removeprefix("rank-"))


def _replace(path: Path, text: str) -> None:
    """Write a file so that a crash leaves the old one or the new one."""
    with written_whole(path) as partial:
        partial.write_text(text, encoding="utf-8")


def _number(value: Any) -> Any:
    return _NON_FINITE.get(value, value) if isinstance(value, str) else value


def append_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Append a line for each row. The folder must be there."""
    # Half a surrogate pair, which a tokenizer can decode to, becomes the escape that JSON has for it.
    with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
        file.writelines(json.dumps(plain(row), ensure_ascii=False, allow_nan=False) + "\n" for row in rows)


def whole_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a file with their numbers, from 1, without one that was cut off. None where there is no file."""
    if not path.exists():
        return
    with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith("\n"):
                return  # cut off by a crash
            yield number, line


def drop_cut_line(path: Path) -> None:
    """Take a last line without an end off a file, so that what is appended begins a line of its own."""
    if not path.exists():
        return
    with path.open("rb+") as file:
        size = position = file.seek(0, os.SEEK_END)
        while position > 0:
            start = max(position - 65536, 0)
            file.seek(start)
            found = file.read(position - start).rfind(b"\n")
            if found >= 0:
                position = start + found + 1
                break
            position = start
        if position < size:
            file.truncate(position)


def plain(value: Any) -> Any:
    """What JSON can hold: NaN and infinity as words, arrays and tensors as numbers, anything odd as its repr."""
    if isinstance(value, (str, int, type(None))):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else json.dumps(value)
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return str(value) if isinstance(value, os.PathLike) else repr(value)


def installed_versions() -> dict[str, str]:
    """Versions of Python and of the packages that decide what a run computes. Those not installed are left out."""
    names = ("qwenvl", "torch", "torchvision", "transformers", "accelerate", "peft", "av", "decord")
    versions = {"python": platform.python_version()}
    for name in (*names, "deepspeed", "flash-attn", "vllm"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions
